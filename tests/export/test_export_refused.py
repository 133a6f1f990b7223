"""Options and modules that do not fit an export are refused with a sentence, and nothing is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnport.errors import ModuleError, UsageError
from attnport.export.export_module import HIGHEST_OPSET, export_module

AXES = {"batch": (1, 2, 3), "seq": (1, 5, 9)}
TOKENS = {0: "batch", 1: "seq"}


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def export(module: nn.Module, out: Path, **options: Any) -> None:
    given: dict[str, Any] = {"dynamic_shapes": (TOKENS,), "axes": AXES, **options}
    export_module(module, (torch.zeros(2, 5, 8),), out / "bundle", **given)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a dtype that is none": ({"dtype": "float17"}, "'float17' is not one that is exported: float32"),
    "float64": ({"dtype": "float64"}, "'float64' is not one that is exported"),
    "a form that is none": ({"form": "operator"}, "'operator' is not one of pattern, attention"),
    "an opset too low": ({"opset": 17}, f"opset 17 .*at 18 to {HIGHEST_OPSET}"),
    "an opset too high": ({"opset": 99}, f"opset 99 .*at 18 to {HIGHEST_OPSET}"),
    "the operator before it was one": (
        {"form": "attention", "opset": 22}, f"opset 22 .*'attention' is written at 23 to {HIGHEST_OPSET}",
    ),
    "an axis that no input has": ({"axes": {**AXES, "words": (1, 2, 3)}}, "axes words are given"),
    "an axis without a range": ({"axes": {"batch": (1, 2, 3)}}, "axis 'seq' of x has no range"),
    "a range upside down": ({"axes": {**AXES, "seq": (9, 5, 1)}}, "min <= opt <= max"),
    "a role that is none": ({"inputs": {"x": "msak"}}, "'x' cannot be a 'msak'"),
    "an input that is none": ({"inputs": {"y": "mask"}}, "no input 'y'; the inputs are x"),
    "a cap that is no axis": ({"case_sizes": {"words": 3}}, "no axis 'words' to cap"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_options_that_do_not_fit(what: str, tmp_path: Path) -> None:
    options, message = REFUSED[what]
    with pytest.raises(UsageError, match=message):
        export(Doubled(), tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


class WholeNumbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x > 0).sum(-1)


class NoTensor(nn.Module):
    def forward(self, x: Tensor) -> int:
        return 3


@pytest.mark.parametrize(
    ("module", "message"), [(WholeNumbers, "no floating output"), (NoTensor, "NoTensor")]
)
def test_modules_that_nothing_can_be_proved_of(
    module: type[nn.Module], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModuleError, match=message):
        export(module(), tmp_path)
    assert list(tmp_path.iterdir()) == []
