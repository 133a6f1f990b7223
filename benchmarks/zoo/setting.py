"""The machine and the versions that results were measured with."""

from __future__ import annotations

import importlib.metadata
import os
import platform

_PACKAGES = (
    "attnport",
    "torch",
    "transformers",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "tensorrt-rtx-cu13",
)


def this_setting() -> dict[str, str]:
    """What a reader needs to repeat a measurement."""
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        **versions,
    }
