"""Peers: the torch forms and the stock export, measured beside the engines on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.validate.mutants.subjects import SUBJECTS, exported, module_of
from torch import nn

from attnport.engines import kinds
from attnport.errors import EngineUnavailableError
from attnport.export.bundle import Bundle
from attnport.validate.bound import bound
from attnport.validate.latency import measure_latency
from attnport.validate.stock_export import STOCK, open_stock


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exported(SUBJECTS["plain"], "float32", tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return module_of(SUBJECTS["plain"], 1)


def feeds_of(bundle: Bundle, case: str = "between") -> Mapping[str, np.ndarray]:
    return bundle.load_case(case).inputs


def test_the_stock_export_computes_the_module(
    plain: Bundle, module: nn.Module, tmp_path: Path
) -> None:
    with open_stock(plain, module, feeds_of(plain), tmp_path, threads=1) as engine:
        assert engine.kind == STOCK
        for name in ("between", "max"):
            case = plain.load_case(name)
            (output,) = engine.run(case.inputs).values()
            limit = bound(case.record.references["output"], "float32")
            assert np.abs(output - case.references["output"]).max() <= limit.max


class Refusing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_module_that_torch_cannot_export_alone_is_left_out(
    plain: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(EngineUnavailableError, match=r"torch.onnx cannot export it by itself"):
        open_stock(plain, Refusing(), feeds_of(plain), tmp_path, threads=1)


def test_peers_are_measured_beside_the_engine(
    plain: Bundle, module: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch.compile takes a minute to compile: it has its own test among the engines.
    monkeypatch.setitem(
        kinds.KINDS, "torch-compile", kinds.EngineKind("torch-compile", "", "torch", "cuda")
    )
    result = measure_latency(
        plain, ["ort-cpu"], module=module, peers=True, seconds=0.3, rounds=3, threads=1
    )
    measured = {m.engine for m in result.measurements}
    assert measured >= {"ort-cpu", "torch-eager", "torch-sdpa", STOCK}, result.left_out
    (stock,) = (m for m in result.measurements if m.engine == STOCK)
    assert str(stock.values["reference"]).startswith("torch-")


def test_without_the_module_there_are_no_peers(plain: Bundle) -> None:
    result = measure_latency(plain, ["ort-cpu"], peers=True, seconds=0.2, rounds=2, threads=1)
    assert {m.engine for m in result.measurements} == {"ort-cpu"}
