"""The rule of the specification for dead rows, for modules whose own softmax has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_SOFTMAXES = {
    torch.ops.aten.softmax.int,
    torch.ops.aten._softmax.default,
    torch.ops.aten.special_softmax.default,
}


class DeadRowsAreZero(TorchDispatchMode):
    """Makes a softmax give 0 where every score is -inf, as the specification says of dead rows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch 2.13 annotates it not
        self.met_dead_row = False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _SOFTMAXES:
            dead = (args[0] == -torch.inf).all(args[1], keepdim=True)
            if dead.any():
                self.met_dead_row = True
                result = result.masked_fill(dead, 0)
        return result
