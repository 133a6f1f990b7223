"""What a person sees of an exception: one sentence on stderr, and the exit code."""

from __future__ import annotations

import sys
import traceback

from attnport.errors import AttnportError

BAD_INPUT, OURS = 2, 4

# The modules that an extra of attnport brings; any other missing one is a broken installation.
_EXTRAS = {
    "torch": "export",
    "onnxscript": "export",
    "starlette": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "prometheus_client": "serve",
    "pythonjsonlogger": "serve",
}


def tell_failure(error: Exception, *, verbose: bool) -> int:
    """Writes what went wrong, with the traceback if asked for, and gives the exit code."""
    if verbose:
        traceback.print_exception(error, file=sys.stderr)
    sentence, code = _sentence(error)
    print(f"attnport: {sentence}", file=sys.stderr)
    return code


def _sentence(error: Exception) -> tuple[str, int]:
    if isinstance(error, AttnportError):
        return str(error), error.exit_code
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        extra = _EXTRAS[error.name]
        remedy = f"`pip install 'attnport[{extra}]'`"
        return f"this command needs {error.name}, which is not installed: {remedy}", BAD_INPUT
    if isinstance(error, OSError) and error.filename is not None:
        reason = error.strerror or type(error).__name__
        return f"{error.filename} cannot be used: {reason}; name another path", BAD_INPUT
    if isinstance(error, MemoryError):
        remedy = "choose smaller sizes or fewer cases, or a larger machine"
        return f"this machine has not enough memory for it: {remedy}", BAD_INPUT
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return (
        f"an error of attnport itself ({what}): run it again with --verbose, and please report "
        "what it prints"
    ), OURS
