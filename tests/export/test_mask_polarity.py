"""What True means in a mask input is read from the graph, and the cases follow it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module

AXES = {"batch": (1, 2, 4), "seq": (1, 5, 9)}
WIDTH, HEADS = 16, 2


class HidesWhereTrue(torch.nn.Module):
    """torch.nn's own convention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[
            0
        ]
        return output


class SeesWhereTrue(HidesWhereTrue):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().forward(x, ~mask)


class BertMask(HidesWhereTrue):
    """(1 - m)·finfo.min of an integer mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = x @ x.transpose(1, 2)
        hidden = (1.0 - mask[:, None, :].to(x.dtype)) * torch.finfo(torch.float32).min
        return torch.softmax(scores + hidden, -1) @ x


def exported(module: torch.nn.Module, folder: Path, dtype: torch.dtype) -> Bundle:
    return export_module(
        module,
        (torch.randn(2, 5, WIDTH), torch.ones(2, 5, dtype=dtype)),
        folder,
        dynamic_shapes=({0: "batch", 1: "seq"}, {0: "batch", 1: "seq"}),
        axes=AXES,
    )


@pytest.mark.parametrize(
    ("module", "dtype", "hides"),
    [
        (HidesWhereTrue, torch.bool, True),
        (SeesWhereTrue, torch.bool, False),
        (BertMask, torch.int64, False),
    ],
)
def test_what_true_means(
    module: type[torch.nn.Module], dtype: torch.dtype, hides: bool, tmp_path: Path
) -> None:
    bundle = exported(module(), tmp_path / "bundle", dtype)
    (mask,) = (spec for spec in bundle.manifest.inputs if spec.name == "mask")
    assert (mask.role, mask.hides_where_true) == ("mask", hides)
    seen = bundle.load_case("between-visible")
    assert seen.inputs["mask"].astype(bool).all() != hides
    assert all(record.references["output"].rms > 0 for record in bundle.manifest.cases)
