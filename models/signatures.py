"""Whether the inputs that a user names fit the forward method of the user's module."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from torch import nn

from attnport.errors import UsageError
from attnport.models.inputs import InputSpec


def check_inputs_fit_forward(module: nn.Module, inputs: Sequence[InputSpec], source: str) -> None:
    """Refuses inputs that are not the first arguments of forward, in its order, by its names.

    Raises:
        UsageError: With the order that forward has, or the option to add.
    """
    parameters = [
        p
        for p in inspect.signature(module.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
    ]
    named = [p for p in parameters if p.kind != p.VAR_POSITIONAL]
    takes_more = len(named) < len(parameters)
    order = ", ".join(p.name for p in named) + (", …" if takes_more else "")
    given = [spec.name for spec in inputs]
    needed = [p.name for p in named if p.default is p.empty and p.name not in given]
    if needed or not given:
        options = " ".join(f"--input '{name}:float32[batch,seq,64]'" for name in needed or ["x"])
        raise UsageError(
            f"{source} is a module that needs {', '.join(needed) or 'inputs'}: say what goes "
            f"into forward({order}) with {options}, with its own dtype and dimensions"
        )
    rest = given[len(named) :]
    if given[: len(named)] != [p.name for p in named][: len(given)] or (rest and not takes_more):
        raise UsageError(
            f"the inputs {', '.join(given)} are not the first arguments of forward({order}) "
            f"of {source}: give them in that order and by these names; to leave one out, "
            "write a factory whose module calls this one"
        )
