"""The key of a plan: everything that it follows from, as one hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnport.engines import devices, libraries
from attnport.engines.build_options import BuildOptions
from attnport.engines.lower_for_tensorrt import forms_digest
from attnport.engines.trt_request import ShapeRange
from attnport.export.bundle import Bundle
from attnport.export.digests import remembered_sha256

# Raised when attnport asks TensorRT in another way, so that earlier plans are not taken for it.
_WAY_OF_ASKING = 3


def plan_key(
    bundle: Bundle,
    library: str,
    profiles: Sequence[Mapping[str, ShapeRange]],
    options: BuildOptions,
    *,
    rehash: bool = False,
) -> str:
    """Hashes graph, weights, types, profiles, options, the library's version and the device.

    Args:
        bundle: What is built; the files are looked at, not only what `bundle.json` says of them.
        library: "tensorrt" or "tensorrt_rtx".
        profiles: The optimization profiles.
        options: What else is asked for.
        rehash: Whether to read files again that did not change since they were hashed last.
    """
    asked = options.model_dump(mode="json", exclude={"profiles", "timing_cache"})
    parts = {
        "way": _WAY_OF_ASKING,
        "files": {
            file.name: remembered_sha256(file, again=rehash) for file in graph_files(bundle)
        },
        "dtype": bundle.dtype,
        "profiles": [
            {name: shape.model_dump() for name, shape in ranges.items()} for ranges in profiles
        ],
        # Where it lies changes nothing; that kernels were timed before may.
        "options": asked | {"timing_cache": options.timing_cache is not None},
        "library": [library, libraries.version_without_loading(library)],
        "device": build_device(library),
        # The lowered graph follows from the graph and this code.
        "forms": forms_digest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def graph_files(bundle: Bundle) -> list[Path]:
    """The graph and its weights."""
    found = bundle.model_path.parent.glob(bundle.model_path.name + "*")
    return sorted(file for file in found if file.is_file())


def build_device(library: str) -> str:
    """The device that a plan is for, where it is the one it was built on; "" for RTX.

    TensorRT for RTX builds for compute capabilities, which the options name.
    """
    if library == "tensorrt_rtx" or not devices.cuda_devices():
        return ""
    device = devices.cuda_devices()[0]
    major, minor = device.compute_capability
    return f"{device.name} (compute capability {major}.{minor})"
