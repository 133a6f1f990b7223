"""The rule of the specification for dead rows, for modules whose own softmax has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnport.export.watched import Watched

_SOFTMAXES = {
    torch.ops.aten.softmax.int,
    torch.ops.aten._softmax.default,
    torch.ops.aten.special_softmax.default,
}


class DeadRowsAreZero(Watched):
    """Makes a softmax give 0 where every score is -inf, as the specification says of dead rows."""

    def __init__(self) -> None:
        super().__init__()
        self.met_dead_row = False

    def operator(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if func in _SOFTMAXES:
            dead = (args[0] == -torch.inf).all(args[1], keepdim=True)
            if dead.any():
                self.met_dead_row = True
                result = result.masked_fill(dead, 0)
        return result
