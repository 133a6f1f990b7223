"""How the user's module travels to the process that measures latency.

The measuring process is a fresh one, so the user's module is pickled for it (by us, a moment
before, in a folder only this user can read: that is why loading the pickle there is safe). A pickle
names classes by their module; those that Python cannot find by name again, such as a file run by
path, are sent as name and file, and the script itself as `main_file`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from attnport.errors import ModuleError, UsageError
from attnport.validate.latency_job import LatencyJob

if TYPE_CHECKING:
    import torch


def pickle_module(module: torch.nn.Module, path: Path) -> None:
    """Writes the whole module, code by name and weights by value.

    Raises:
        ModuleError: If it cannot be pickled, or was defined where no other process can find it.
    """
    import torch

    for part in module.modules():
        home = type(part).__module__
        if home == "__main__" and main_file() is None:
            raise ModuleError(
                f"{type(part).__qualname__} was defined at a prompt, where the measuring process "
                "cannot find it: put the class in a file and import it from there"
            )
    try:
        torch.save(module, path)
    except Exception as err:  # pickling runs the module's own code
        raise ModuleError(
            f"{type(module).__name__} cannot be sent to the process that measures latency, since "
            f"pickle refuses it ({err}): define its classes at the top of a file, not in a function"
        ) from err


def unpickle_module(path: Path, job: LatencyJob) -> torch.nn.Module:
    """Loads what `pickle_module` wrote.

    Raises:
        ModuleError: If its classes cannot be found, or their files fail to run.
    """
    import torch

    sys.meta_path.append(_StrayFinder(job.stray_files))
    if job.main_file is not None:
        # pickle looks classes of the script up in `__main__`, which is another one here.
        setattr(sys.modules["__main__"], "__getattr__", _MainLookup(job.main_file))  # noqa: B010
    try:
        module = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as err:  # unpickling imports the user's files
        raise ModuleError(
            f"the module cannot be loaded in the process that measures latency ({err}): its "
            "classes must be importable without running the script that uses them"
        ) from err
    return _checked(module, "the pickle")


def make_module(maker: str, argument: str) -> torch.nn.Module:
    """Calls `package.module:function` with the argument.

    Raises:
        UsageError: If there is no such function.
        ModuleError: If it returns something else than a module.
    """
    package, _, name = maker.partition(":")
    try:
        function = getattr(importlib.import_module(package), name)
    except (ImportError, AttributeError, ValueError) as err:
        raise UsageError(
            f"{maker!r} is not a function to make a module with ({err}): "
            "give it as package.module:function"
        ) from err
    return _checked(function(argument), maker)


def _checked(module: object, origin: str) -> torch.nn.Module:
    import torch

    if not isinstance(module, torch.nn.Module):
        raise ModuleError(f"{origin} gave {type(module).__name__}, not a torch.nn.Module")
    return module


def main_file() -> str | None:
    """The script that is running; None at a prompt and in `python -c`."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(file).resolve()) if file and Path(file).is_file() else None


def stray_files() -> dict[str, str]:
    """Loaded Python modules outside the installation, by name: any may be a file run by path.

    Those that can be found by name are harmless here: the finder made of this comes last.
    """
    installed = tuple({sysconfig.get_path(key) for key in ("stdlib", "purelib", "platlib")})
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            name != "__main__"
            and isinstance(file, str)
            and file.endswith(".py")
            and not file.startswith(installed)
        ):
            found[name] = str(Path(file).absolute())
    return found


class _StrayFinder(importlib.abc.MetaPathFinder):
    """Finds modules by the files that they were loaded from in another process."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            if any(known.startswith(f"{name}.") for known in self._files):
                # A package without a file of its own, whose modules are known here.
                return importlib.machinery.ModuleSpec(name, None, is_package=True)
            return None
        folders = [str(Path(file).parent)] if Path(file).name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, file, submodule_search_locations=folders
        )


class _MainLookup:
    """Runs the script on the first question, under a name that its main guard does not match."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._script: ModuleType | None = None

    def __call__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._script is None:
            loader = importlib.machinery.SourceFileLoader("__attnport_main__", self._file)
            self._script = ModuleType(loader.name)
            self._script.__file__ = self._file
            sys.modules[loader.name] = self._script
            loader.exec_module(self._script)
        return getattr(self._script, name)
