"""A rank's graph that is not the part it should be is refused, whatever went wrong in making it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir
import pytest

from attnport.errors import GraphError
from attnport.export.bundle import Bundle
from attnport.export.shard.held import CannotSplitError, Held, held_of_mask, union
from attnport.export.shard.split_graph import RankModel, WholeGraph, load_whole, rank_model
from attnport.export.shard.split_graph import require_parts as require


@pytest.fixture(scope="module")
def whole(block: Bundle) -> WholeGraph:
    return load_whole(block, 2)


@pytest.fixture
def rank(block: Bundle, whole: WholeGraph) -> RankModel:
    return rank_model(block, whole, 1, 2)


def _nodes(rank: RankModel, op_type: str) -> Iterator[ir.Node]:
    return (node for node in rank.model.graph if node.op_type == op_type)


def _constant(graph: ir.Graph, array: np.ndarray, name: str) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name,
        const_value=tensor,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
    )
    graph.register_initializer(value)
    return value


def _heads_in_another_order(rank: RankModel) -> None:
    node = next(n for n in _nodes(rank, "Reshape") if n.name and "qkv" in n.name)
    value = _constant(rank.model.graph, np.array([0, 0, 8, 6]), "other_sizes")
    node.replace_input_with(1, value)


def _axes_exchanged(rank: RankModel) -> None:
    node = next(n for n in _nodes(rank, "Transpose") if n.name and "context" in n.name)
    node.attributes["perm"] = ir.AttrInt64s("perm", [0, 1, 2, 3])


def _parts_exchanged(rank: RankModel) -> None:
    node = next(_nodes(rank, "Split"))
    value = _constant(rank.model.graph, np.array([1, 3, 2]), "other_parts")
    node.replace_input_with(1, value)


FAULTS = [_heads_in_another_order, _axes_exchanged, _parts_exchanged]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused(
    whole: WholeGraph, rank: RankModel, fault: Callable[[RankModel], None]
) -> None:
    require(rank.model.graph, whole, rank.parts)
    fault(rank)
    with pytest.raises(GraphError, match=r"cannot be split at .*please report the model"):
        require(rank.model.graph, whole, rank.parts)


def test_masks_are_read_off() -> None:
    part = Held(1, (0, 2), 4)
    assert held_of_mask(part.mask((3, 4, 5))) == part
    assert held_of_mask(np.ones((2, 3), bool)) is None
    assert np.array_equal(part.take(np.arange(4)[None]), [[0, 2]])
    assert part.index_of([2, 0]).tolist() == [1, 0]


def test_a_part_that_is_no_set_of_positions() -> None:
    diagonal = np.eye(3, dtype=bool)
    for mask in (diagonal, np.zeros((2, 2), bool)):
        with pytest.raises(CannotSplitError, match="no set of positions"):
            held_of_mask(mask)


def test_elements_that_nobody_uses_may_be_held() -> None:
    """Half of each head is sliced off: the rank's part are its heads, whole."""
    used = np.zeros((4, 6), bool)
    used[:, :3] = True
    mask = used.copy()
    mask[2:] = False
    assert held_of_mask(mask, used) == Held(0, (0, 1), 4)


def test_parts_are_joined() -> None:
    first, second = Held(1, (0,), 4), Held(1, (2, 0), 4)
    assert union([first, second]) == Held(1, (0, 2), 4)
    assert union([first, Held(2, (0,), 4)]) is None
