"""What runs under a dispatch mode of ours: branches of torch.cond are computed, and watched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnport.export.arrays import load_arrays, save_arrays
from attnport.export.dead_rows import DeadRowsAreZero
from attnport.export.module_forms import calls_sdpa
from attnport.export.rounding import RoundingNoise
from attnport.export.watched import Watched


class Either(torch.nn.Module):
    """Softmax, or SDPA, by a flag."""

    def forward(self, scores: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        def normalised(x: torch.Tensor) -> torch.Tensor:
            return x.softmax(-1)

        def attended(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

        result: torch.Tensor = torch.cond(flag, normalised, attended, (scores,))
        return result


class Seen(Watched):
    """The names of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def operator(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.names.append(str(func))
        return super().operator(func, args, kwargs)


def test_the_branch_that_is_taken_is_watched() -> None:
    with torch.inference_mode(), Seen() as seen:
        Either()(torch.ones(1, 2, 4), torch.tensor(True))
    assert any("softmax" in name for name in seen.names)
    assert not any("attention" in name for name in seen.names)


def test_a_dead_row_inside_a_branch_is_zero() -> None:
    scores = torch.tensor([[[0.0, 1.0], [-torch.inf, -torch.inf]]], dtype=torch.float64)
    with torch.inference_mode(), DeadRowsAreZero() as softmax:
        result = Either()(scores, torch.tensor(True))
    assert softmax.met_dead_row
    assert result[0, 1].tolist() == [0.0, 0.0]


def test_numbers_inside_a_branch_are_moved() -> None:
    scores = torch.rand(1, 3, 4, dtype=torch.float64)
    plain = Either()(scores, torch.tensor(True))
    with torch.inference_mode(), RoundingNoise("float16", 0):
        moved = Either()(scores, torch.tensor(True))
    assert not torch.equal(plain, moved)


def test_sdpa_inside_a_branch_is_seen() -> None:
    x = torch.ones(1, 2, 4)
    assert calls_sdpa(Either(), {"scores": x, "flag": torch.tensor(False)})
    assert not calls_sdpa(Either(), {"scores": x, "flag": torch.tensor(True)})


def test_a_number_without_axes_stays_one_in_a_case(tmp_path: Path) -> None:
    save_arrays({"flag": np.array(True)}, tmp_path / "case.safetensors")
    assert load_arrays(tmp_path / "case.safetensors")["flag"].shape == ()
