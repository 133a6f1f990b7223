"""Whether the machine has the memory that a build will want."""

from __future__ import annotations

from pathlib import Path

# Peak resident memory of TensorRT for RTX 1.7.1 over the size of the weights, for plans of 0.13
# to 4.3 GB of fp16: 3.0, above 0.23 GB of the builder's own.
_BYTES_PER_WEIGHT_BYTE = 3
_BUILDER_BYTES = 230_000_000
_GIB = 1 << 30


def estimated_build_bytes(model_path: Path) -> int:
    """About what TensorRT will hold at once, from the size of the graph and its weights."""
    files = model_path.parent.glob(model_path.name + "*")
    weights = sum(file.stat().st_size for file in files if file.is_file())
    return _BUILDER_BYTES + _BYTES_PER_WEIGHT_BYTE * weights


def memory_warning(model_path: Path) -> str:
    """A sentence where a build will want more memory than is free; "" where it fits."""
    import psutil

    wanted, free = estimated_build_bytes(model_path), psutil.virtual_memory().available
    if wanted <= free:
        return ""
    return (
        f"the build needs about {wanted / _GIB:.1f} GiB of memory and {free / _GIB:.1f} GiB are "
        "free: it may be killed; close other programs, or build on a larger machine"
    )
