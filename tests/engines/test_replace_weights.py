"""Weights of a bundle are replaced by value, or refused; never guessed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from attnport import cli
from attnport.engines.open import open_engine
from attnport.engines.replace_weights import load_weights, replace_weights
from attnport.engines.weight_recipes import Part, Recipe, find_recipes
from attnport.errors import GraphError, UsageError
from attnport.export.arrays import save_arrays
from attnport.export.bundle import Bundle

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="exports a module")

FLOAT = np.dtype(np.float32)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


WEIGHTS = {"q": drawn(4, 6), "k": drawn(4, 6, seed=1), "o": drawn(6, 4, seed=2), "b": drawn(4)}


def recipes(graph: dict[str, np.ndarray], *changed: str) -> dict[str, Recipe]:
    return find_recipes(graph, WEIGHTS, changed, FLOAT)


def test_a_weight_is_found_as_it_is_transposed_and_beside_others() -> None:
    packed = np.concatenate([WEIGHTS["q"].T, WEIGHTS["k"].T], axis=1)
    graph = {"val_1": WEIGHTS["o"].T, "qk": packed, "bias": WEIGHTS["b"], "one": drawn(1)}
    found = recipes(graph, "q", "k", "o", "b")
    assert found["val_1"] == Recipe((Part("o", transposed=True),))
    assert found["qk"] == Recipe((Part("q", transposed=True), Part("k", transposed=True)), 1)
    assert found["bias"] == Recipe((Part("b", transposed=False),))
    new = {name: array + 1 for name, array in WEIGHTS.items()}
    np.testing.assert_array_equal(found["qk"].make(new), packed + 1)


def test_only_what_changed_is_replaced() -> None:
    graph = {"q": WEIGHTS["q"], "o": WEIGHTS["o"]}
    assert list(recipes(graph, "o")) == ["o"]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            {"w": WEIGHTS["q"] * 2, "q": WEIGHTS["q"]},
            r"weight 'w' \(4, 6\) is made of no parameter",
        ),
        ({"k": WEIGHTS["k"]}, "parameter 'q' stands nowhere in the graph"),
    ],
)
def test_what_no_parameter_explains_is_refused(graph: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        recipes(graph, "q")


def test_equal_parameters_are_told_apart_by_name_or_not_at_all() -> None:
    twins = {"norm1.weight": np.ones(4, FLOAT), "norm2.weight": np.ones(4, FLOAT)}
    found = find_recipes(twins, twins, ["norm2.weight"], FLOAT)
    assert found == {"norm2.weight": Recipe((Part("norm2.weight", transposed=False),))}
    with pytest.raises(GraphError, match=r"'ones' may be norm\d\.weight or norm\d\.weight"):
        find_recipes({"ones": np.ones(4, FLOAT)}, twins, ["norm2.weight"], FLOAT)


MODULE = """
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.W_Q, self.W_K, self.W_V, self.W_O = (
            torch.nn.Linear(32, 32, bias=bias) for bias in (False, False, False, True)
        )

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (2, 16)).transpose(1, 2)
                   for w in (self.W_Q, self.W_K, self.W_V))
        p = torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1)
        return self.W_O((p @ v).transpose(1, 2).flatten(2))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    tmp_path = tmp_path_factory.mktemp("exported")
    (tmp_path / "small.py").write_text(MODULE, "utf-8")
    command = ["export", f"{tmp_path / 'small.py'}:Small", "--out", str(tmp_path / "bundle")]
    command += ["--input", "x:float32[batch,seq,32]", "--axis", "batch=1:2:4"]
    command += ["--axis", "seq=1:4:8", "--max-cases", "2"]
    assert cli.main(command) == 0
    return Bundle.load(tmp_path / "bundle")


def module_of(bundle: Bundle) -> torch.nn.Module:
    from attnport.models.sources import module_from_source

    return module_from_source(bundle.manifest.source)


def tuned(module: torch.nn.Module) -> dict[str, np.ndarray]:
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    return {name: array + drawn(*array.shape) / 8 for name, array in state.items()}


def test_the_new_bundle_computes_what_the_tuned_module_does(
    exported: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = module_of(exported)
    weights = tuned(module)
    save_arrays(weights, tmp_path / "tuned.safetensors")
    command = ["build", str(exported.path), "--engine", "ort-cpu", "--out", str(tmp_path / "new")]
    assert cli.main([*command, "--weights", str(tmp_path / "tuned.safetensors")]) == 0
    assert "the same graph with the weights of" in capsys.readouterr().out
    bundle = Bundle.load(tmp_path / "new")
    assert bundle.hash != exported.hash
    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    x = drawn(2, 5, 32)
    with torch.no_grad():
        wanted = module(torch.from_numpy(x)).numpy()
    with open_engine(bundle, "ort-cpu") as engine:
        found = engine.run({"x": x})["output"]
    bound = 4 * 32 * np.finfo(np.float32).eps * np.abs(wanted).max()
    assert np.abs(found - wanted).max() <= bound
    case = bundle.load_case(bundle.manifest.cases[0].name)
    with open_engine(bundle, "ort-cpu") as engine:
        assert np.abs(engine.run(case.inputs)["output"] - case.references["output"]).max() <= bound


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"W_X.weight": drawn(32, 32)}, r"no weight 'W_X\.weight' .*such as W_Q\.weight"),
        ({"W_Q.weight": drawn(16, 32)}, r"'W_Q\.weight' is \(16, 32\), and the module's is"),
    ],
)
def test_weights_of_another_model(
    exported: Bundle, tmp_path: Path, weights: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        replace_weights(exported, module_of(exported), weights, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_module_that_the_graph_is_not_made_of(exported: Bundle, tmp_path: Path) -> None:
    module = module_of(exported)
    with torch.no_grad():
        module.get_parameter("W_Q.weight").add_(1)
    with pytest.raises(GraphError, match="is made of no parameter of the module"):
        replace_weights(exported, module, tuned(module), tmp_path / "new")


def test_what_the_command_needs(exported: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.safetensors does not exist"):
        load_weights(tmp_path / "none.safetensors")
    command = ["build", str(exported.path), "--engine", "ort-cpu", "--weights", "x.safetensors"]
    assert cli.main(command) == 2
