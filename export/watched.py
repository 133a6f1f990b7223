"""Base of what watches a module's operators while it runs: branches and loops are watched, too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Self

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode


class Watched(TorchDispatchMode):
    """A dispatch mode under which torch.cond takes its branch as plain Python would.

    torch 2.13 runs torch.cond through its compiler even in eager mode, which refuses to do so under
    a dispatch mode; and a mode is shown the operator as a whole, not what the branch computes.
    Subclasses override `operator`.
    """

    supports_higher_order_operators = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]  # not annotated (2.13)

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch 2.13 annotates it not
        self._stances: list[contextlib.AbstractContextManager[None]] = []

    def operator(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Computes one operator."""
        return func(*args, **kwargs)

    def __enter__(self) -> Self:
        stance = torch.compiler.set_stance("force_eager")
        stance.__enter__()
        self._stances.append(stance)
        super().__enter__()  # type: ignore[no-untyped-call]  # likewise
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]  # likewise
        self._stances.pop().__exit__(*raised)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.higher_order.cond:
            condition, when_true, when_false, operands = args
            with self:
                return (when_true if bool(condition) else when_false)(*operands)
        if isinstance(func, HigherOrderOperator):  # computed as it is; nothing in it is watched
            return func(*args, **(kwargs or {}))
        return self.operator(func, args, kwargs or {})
