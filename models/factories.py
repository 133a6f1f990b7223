"""Factories: the user's own callables that make a model, found by text and called with sizes.

`package.module:factory` is imported as Python does, with the current folder importable;
`path.py:factory` is loaded from the file, with the file's folder importable.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from attnport.errors import AttnportError, ModuleError, UsageError
from attnport.models.spec import seeded


@dataclass(frozen=True)
class Factory:
    """A callable that makes a model.

    Attributes:
        source: Where it is: `package.module:factory`, or the absolute `path.py:factory`.
        name: What to call its model.
        make: The callable.
        folder: What is importable while it runs.
    """

    source: str
    name: str
    make: Callable[..., object]
    folder: Path

    def __call__(self, sizes: Mapping[str, object]) -> object:
        """Calls it with the sizes as keywords, seeded, so that the weights are the same each time.

        Raises:
            UsageError: If it does not take a size, or needs one that is not given.
            ModuleError: If it raises.
        """
        self._check_sizes(sizes)
        try:
            with _importable(self.folder):
                return seeded(lambda: self.make(**sizes))
        except AttnportError:
            raise
        except Exception as error:
            raise ModuleError(
                f"{self.source} called with {dict(sizes)} raised {_in_words(error)}: "
                "give sizes that it accepts, or mend it"
            ) from error

    def _check_sizes(self, sizes: Mapping[str, object]) -> None:
        try:
            parameters = inspect.signature(self.make).parameters.values()
        except ValueError:  # a callable written in C need not tell
            return
        by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters)
        taken = [p.name for p in by_name]
        unknown = [name for name in sizes if name not in taken]
        if unknown and not takes_any:
            takes = f"it takes {', '.join(taken)}" if taken else "it takes none"
            raise UsageError(f"{self.source} does not take {', '.join(unknown)}: {takes}")
        needed = [p.name for p in by_name if p.default is p.empty and p.name not in sizes]
        if needed:
            options = " ".join(f"--set {name}=…" for name in needed)
            braces = ",".join(f"{name}=…" for name in needed)
            raise UsageError(
                f"{self.source} needs {', '.join(needed)}: give each a value, with {options} or "
                f"as {self.source}{{{braces}}}"
            )


def load_factory(text: str) -> Factory:
    """Finds the callable that `package.module:factory` or `path.py:factory` means.

    Raises:
        UsageError: If the text is of neither form, or there is no such module, file or callable.
    """
    location, _, attribute = text.rpartition(":")
    if not location or not all(part.isidentifier() for part in attribute.split(".")):
        raise UsageError(
            f"{text!r} does not name a factory: write package.module:factory or "
            "path.py:factory, such as my_model.py:make"
        )
    if location.endswith(".py"):
        path = Path(location).expanduser().resolve()
        module = _module_from_file(path)
        place, name, folder = str(path), f"{path.stem}-{attribute}", path.parent
    else:
        place, name, folder = location, attribute, Path.cwd()
        module = _module_by_name(location, folder)
    make = _attribute(module, attribute, place)
    return Factory(f"{place}:{attribute}", name.replace(".", "-"), make, folder)


def _module_by_name(name: str, folder: Path) -> ModuleType:
    try:
        with _importable(folder):
            return importlib.import_module(name)
    except Exception as error:
        raise UsageError(
            f"{name} cannot be imported ({_in_words(error)}): install it, run from the folder "
            "that holds it, or give its file as path.py:factory"
        ) from error


def _module_from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(
            f"{path} is not a file: give the path of the Python file with the factory"
        )
    # The content is in the name so that an edited file is loaded again, and one that is not
    # edited keeps its classes.
    digest = hashlib.sha256(str(path).encode() + b"\0" + path.read_bytes()).hexdigest()[:12]
    stem = re.sub(r"\W", "_", path.stem)
    name = f"attnport_user_{stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _importable(path.parent):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(
            f"{path} cannot be loaded ({_in_words(error)}): mend the file, "
            f"`python {path.name}` shows where"
        ) from error
    return module


def _attribute(module: ModuleType, attribute: str, place: str) -> Callable[..., object]:
    try:
        found: object = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        public = [name for name, value in vars(module).items() if callable(value)]
        close = difflib.get_close_matches(attribute, [n for n in public if n[0] != "_"], n=3)
        meant = f"did you mean {' or '.join(close)}" if close else "name a function or class of it"
        raise UsageError(f"{place} has no {attribute!r}: {meant}") from error
    if not callable(found):
        raise UsageError(
            f"{place}:{attribute} is {type(found).__name__}, which cannot be called: "
            "name a function or class that makes the module"
        )
    return found


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code may have removed it
            sys.path.remove(str(folder))


def _in_words(error: Exception) -> str:
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
