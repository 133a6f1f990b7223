"""Whether ONNX Runtime can really use a provider here: the packages, the libraries, a session.

That a provider is listed says only that it was compiled in. It is loaded when a session asks for
it, and where that fails ONNX Runtime takes the CPU and says so on stderr alone.
"""

from __future__ import annotations

import functools
import re
from importlib import metadata
from pathlib import Path

from attnport.engines import libraries
from attnport.engines.ort_probe import ask_child

_TENSORRT = "TensorrtExecutionProvider"
_MISSING_LIBRARY = re.compile(r"with error: ([^:\s]+): cannot open shared object")
_NVINFER = re.compile(rb"libnvinfer\.so\.(\d+)")

# The package of NVIDIA's that holds a library, on PyPI; CUDA 13 names carry no number.
_PACKAGES = (
    ("libcublas", "nvidia-cublas"),
    ("libcudnn", "nvidia-cudnn-cu13"),
    ("libcurand", "nvidia-curand"),
    ("libcufft", "nvidia-cufft"),
    ("libcudart", "nvidia-cuda-runtime"),
    ("libnvrtc", "nvidia-cuda-nvrtc"),
    ("libnvinfer.so.10", "'tensorrt-cu13<11'"),
    ("libnvonnxparser.so.10", "'tensorrt-cu13<11'"),
)


@functools.cache
def why_provider_fails(provider: str) -> tuple[str, str]:
    """Why a provider cannot be used, and the command that would help; ("", "") where it can.

    The packages are looked at first; then a child process opens a session of one Identity on the
    provider, which loads its libraries for real.
    """
    mismatch = tensorrt_mismatch() if provider == _TENSORRT else ("", "")
    if mismatch[0]:
        return mismatch
    answer = ask_child({"identity": True, "provider": provider})
    if answer.died:
        return f"onnxruntime died of {answer.died} while it loaded {provider}", ""
    if answer.providers[:1] == (provider,):
        return "", ""
    missing = _MISSING_LIBRARY.search(answer.messages)
    if missing is None:
        reason = answer.error or "it says no reason"
        return f"onnxruntime does not load {provider} ({reason})", ""
    library = missing[1]
    return f"onnxruntime's {provider} needs {library}, which is not there", _command_for(library)


def tensorrt_mismatch() -> tuple[str, str]:
    """The TensorRT that onnxruntime-gpu was linked with against the one that is installed."""
    wanted = _linked_tensorrt()
    installed = libraries.version_without_loading("tensorrt") if _has_tensorrt() else ""
    if wanted is None or not installed or installed.split(".")[0] == str(wanted):
        return "", ""
    version = libraries.version_without_loading("onnxruntime")
    return (
        f"onnxruntime-gpu {version} was linked with TensorRT {wanted}, and TensorRT {installed} is "
        "installed: they need an environment each, and plans of the newer one run as `tensorrt`",
        f"pip install 'tensorrt-cu13<{wanted + 1}'",
    )


def _has_tensorrt() -> bool:
    return libraries.has_distribution("tensorrt")


def _linked_tensorrt() -> int | None:
    """The major version in the name of the library that the provider needs; None without one."""
    for distribution in ("onnxruntime-gpu", "onnxruntime"):
        try:
            files = metadata.files(distribution) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith("libonnxruntime_providers_tensorrt"):
                return _nvinfer_version(Path(str(file.locate())))
    return None


def _nvinfer_version(path: Path) -> int | None:
    found = _NVINFER.search(path.read_bytes()) if path.is_file() else None
    return int(found[1]) if found else None


def _command_for(library: str) -> str:
    package = next((name for start, name in _PACKAGES if library.startswith(start)), "")
    return f"pip install {package}" if package else ""
