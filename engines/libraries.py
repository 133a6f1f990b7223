"""Which libraries this Python really loads, not only finds installed."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from types import ModuleType

# The distribution that gives each module, and the extra of attnport that installs it.
_DISTRIBUTIONS = {
    "torch": ("torch",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "tensorrt": ("tensorrt", "tensorrt-cu13"),
    "tensorrt_rtx": ("tensorrt-rtx-cu13", "tensorrt-rtx"),
}
_EXTRAS = {
    "torch": "export",
    "onnxscript": "export",
    "onnxruntime": "ort",
    "tensorrt": "trt",
    "tensorrt_rtx": "rtx",
    "cuda.bindings.runtime": "rtx",
    "starlette": "serve",
    "uvicorn": "serve",
}


def load(library: str) -> ModuleType | None:
    """The module, or None where it cannot be imported; `why_missing` says why."""
    return None if why_missing(library) else importlib.import_module(library)


@functools.cache
def why_missing(library: str) -> str:
    """Why a library cannot be imported, as a clause; "" where it can."""
    try:
        importlib.import_module(library)
    except ModuleNotFoundError as err:
        if err.name is not None and f"{library}.".startswith(f"{err.name}."):
            return f"{library} is not installed"
        return f"{library} is installed and needs {err.name}, which is not"
    except Exception as err:  # a shared library that does not load raises as it likes
        return f"{library} is installed and does not load ({_first_line(err)})"
    return _conflict(library)


def install_command(library: str) -> str:
    """The command that supplies a library."""
    extra = _EXTRAS.get(library)
    return f"pip install 'attnport[{extra}]'" if extra else "pip install attnport"


def version(library: str) -> str:
    """The version of a library that loads, as the module itself says."""
    module = importlib.import_module(library)
    found = getattr(module, "__version__", None)
    if found is None:
        # Such as cuda.bindings.runtime, whose package says it.
        found = getattr(importlib.import_module(library.rpartition(".")[0]), "__version__", "")
    return str(found)


def has_distribution(library: str) -> bool:
    """Whether pip installed it; another way to have it is not looked for."""
    return any(installed_version(name) for name in _DISTRIBUTIONS.get(library, ()))


def version_without_loading(library: str) -> str:
    """The version of a library by its distribution, which takes no import; else as it says."""
    for distribution in _DISTRIBUTIONS.get(library, ()):
        found = installed_version(distribution)
        if found:
            return found
    return version(library)


def installed_version(distribution: str) -> str:
    """The version of a distribution, without importing it; "" where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _conflict(library: str) -> str:
    """Two distributions that write the same files: the second one wins, silently."""
    installed = [name for name in _DISTRIBUTIONS.get(library, ()) if installed_version(name)]
    if library == "onnxruntime" and len(installed) > 1:
        return (
            "onnxruntime and onnxruntime-gpu are both installed, and overwrite each other's "
            "files: uninstall both, then install one"
        )
    return ""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
