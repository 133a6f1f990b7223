"""What a person reads of a TensorRT build that gave no plan."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from attnport.engines.build_options import BuildOptions
from attnport.engines.trt_request import LOG, BuildFailure
from attnport.errors import BuildError

_LOG_TAIL_BYTES = 4000
_NODE_NAME = re.compile(r"(?:node|layer|Node)[^'\[{]{0,40}['\[{]+([^'\]}]+)['\]}]")
_FOREIGN = re.compile(r"^ForeignNode\[(.*)")
_NO_TYPE = re.compile(r"HW-specific datatypes: (\w+)")


def death(model: str, kind: str, code: int, folder: Path) -> BuildError:
    """The error for a builder that ended without a result.

    Args:
        model: The bundle's name.
        kind: The kind of engine.
        code: The exit status, negative for a signal.
        folder: Where its messages lie.
    """
    if code > 0:
        said = (
            f"the {kind} builder stopped with exit status {code} while building {model!r}: "
            "`--verbose` shows its last messages"
        )
        return with_log(BuildError(said), folder)
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        remedy = "the system may have run out of memory: build on a machine with more"
    else:
        remedy = (
            "this is a fault of TensorRT that the graph provokes, such as two masks one after the "
            "other: let attnport write the graph, or combine the masks before the scores"
        )
    said = f"the {kind} builder died of {name} while building {model!r}: {remedy}"
    return with_log(BuildError(said), folder)


def refusal(
    model: str, kind: str, failure: BuildFailure, options: BuildOptions, folder: Path
) -> BuildError:
    """The error for a graph, a profile or an option that TensorRT does not take.

    Args:
        model: The bundle's name.
        kind: The kind of engine.
        failure: TensorRT's reason.
        options: What was asked for.
        folder: Where its messages lie.
    """
    node = failure.node or _node_in(failure.message)
    operator = f" ({failure.operator})" if failure.operator else ""
    where = f" at node {node!r}{operator}" if node else ""
    return with_log(
        BuildError(
            f"the {kind} builder refuses {model!r}{where}: {failure.message}: "
            f"{_remedy(failure, options)}"
        ),
        folder,
    )


def with_log(error: BuildError, folder: Path) -> BuildError:
    """Adds the end of the builder's messages, which `--verbose` shows."""
    tail = (folder / LOG).read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
    error.add_note(f"The builder's last messages:\n{tail}")
    return error


def _remedy(failure: BuildFailure, options: BuildOptions) -> str:
    if failure.stage == "parse":
        return "write that part of the model with operators that TensorRT has"
    if failure.stage == "profile":
        return "give axes with min <= opt <= max"
    if failure.stage == "option":
        return "leave that option out, or choose one of what is there"
    dtype = _NO_TYPE.search(failure.message)
    if dtype is not None:
        return (
            f"the type {dtype[1]} does not exist on every target asked for: leave that target out, "
            "or export in another dtype"
        )
    if options.version_compatible and "lean" in failure.message:
        return (
            "--version-compatible was asked for, which needs TensorRT's lean runtime, and this "
            "installation lacks it: leave it out, or build with tensorrt on a GPU machine"
        )
    asked = _device_options(options)
    if asked:
        return (
            f"{asked} was asked for, which TensorRT for RTX 1.7 does only where there is a CUDA "
            "device: build there, or leave it out"
        )
    if "workspace" in failure.message and options.workspace_bytes is not None:
        return f"give more than {options.workspace_bytes} bytes of workspace, or no limit"
    return "`--verbose` shows its last messages"


def _device_options(options: BuildOptions) -> str:
    """The options that fail without CUDA, as they are written on the command line."""
    asked = {
        "--version-compatible": options.version_compatible,
        "--weight-stripped": options.weight_stripped,
        "--refittable": options.refittable,
    }
    return " and ".join(name for name, given in asked.items() if given)


def _node_in(message: str) -> str:
    """The node that TensorRT's sentence names; "" where it names none."""
    found = _NODE_NAME.search(message)
    if found is None:
        return ""
    return _FOREIGN.sub(r"\1", found[1]).strip()
