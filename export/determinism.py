"""Whether a module gives the same on the same inputs, and what in it does not.

A module that does not cannot be compared with anything. Dropout that was left on is the usual
reason: nn.Dropout is switched off by eval(), `F.dropout(x, 0.1)` is not.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnport.errors import ModuleError
from attnport.export.module_forms import call_module, to_numpy
from attnport.export.watched import Watched

_TORCH = str(Path(torch.__file__).parent)


def require_deterministic(module: torch.nn.Module, feeds: Mapping[str, torch.Tensor]) -> None:
    """Runs a module twice on the same inputs.

    Raises:
        ModuleError: If the results differ; names what draws random numbers, and where.
    """
    # Not watched: torch takes other kernels under a dispatch mode, and other bits come out.
    first, second = ([to_numpy(r) for r in call_module(module, feeds)] for _ in range(2))
    if all(_same_bits(a, b) for a, b in zip(first, second, strict=False)):
        return
    watch = _WatchRandomness()
    with watch:
        call_module(module, feeds)
    if watch.found:
        draws = "; ".join(dict.fromkeys(watch.found))
        cause = f"it draws random numbers in eval mode ({draws})"
        remedy = "switch dropout off for inference: F.dropout(x, p, training=self.training)"
    else:
        cause = "no operator of it draws random numbers, so it changes its own state"
        remedy = "export one whose forward leaves the module as it was"
    raise ModuleError(
        f"{type(module).__name__} is not deterministic: two runs on the same inputs differ, since "
        f"{cause}. Nothing can be compared with it: {remedy}"
    )


class _WatchRandomness(Watched):
    """Notes every operator that draws, by torch's own tag, with the line that called it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def operator(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            self.found.append(f"{func} at {_calling_line()}")
        return super().operator(func, args, kwargs)


def _calling_line() -> str:
    own = (_TORCH, str(Path(__file__).parent))
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(own) and not frame.filename.startswith("<"):
            return f"{frame.filename}:{frame.lineno}"
    return "an unknown line"


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()
