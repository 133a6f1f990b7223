"""Every error that attnport raises on purpose.

Each says what is wrong, what was given and what to do, in words for the person at the terminal.

    AttnportError
    ├── UsageError             an unknown model, engine or option            (also ValueError)
    ├── ModuleError            the module cannot be captured as asked        (also ValueError)
    ├── NarrowedRangeError     the module works on fewer sizes than declared (also ValueError)
    ├── GraphError             an ONNX file that cannot be read or rewritten (also ValueError)
    ├── BundleError            a bundle folder that is not whole             (also ValueError)
    ├── InputError             inputs that do not fit the engine             (also ValueError)
    ├── EngineUnavailableError this machine cannot run the engine asked for  (also RuntimeError)
    ├── UnsupportedDtypeError  the engine has no kernel for the dtype        (also RuntimeError)
    ├── BuildError             the engine's builder refused the graph or died(also RuntimeError)
    └── InternalError          a promise of ours that did not hold: a bug    (also RuntimeError)
"""

from __future__ import annotations


class AttnportError(Exception):
    """Base of every error of ours.

    Attributes:
        exit_code: What the command line exits with: 2 for bad input, 4 for an error of ours.
    """

    exit_code = 2


class UsageError(AttnportError, ValueError):
    """An unknown name, option or combination was asked for."""


class ModuleError(AttnportError, ValueError):
    """The PyTorch module, or its example inputs, cannot be captured as asked."""


class NarrowedRangeError(ModuleError):
    """The captured graph is right for fewer sizes than the axes declare."""


class GraphError(AttnportError, ValueError):
    """An ONNX file cannot be read, or does not hold what an operation on it needs."""


class BundleError(AttnportError, ValueError):
    """A bundle folder is missing something, was changed, or is of another format version."""


class InputError(AttnportError, ValueError):
    """Inputs given to an engine do not fit what it declares."""


class EngineUnavailableError(AttnportError, RuntimeError):
    """The engine exists, but this machine cannot run it: a device or a library is missing."""


class UnsupportedDtypeError(AttnportError, RuntimeError):
    """The engine has no kernel for an operator in the graph's dtype."""


class BuildError(AttnportError, RuntimeError):
    """The engine's builder refused the graph, or died while building."""


class InternalError(AttnportError, RuntimeError):
    """A step of ours did not deliver what it promised; please report it."""

    exit_code = 4
