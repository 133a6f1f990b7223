"""ONNX files: what cannot be read is said in a sentence; what is written can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.export.nets import AXES, WIDTH, Net, project, self_attention, to_ir

from attnport.errors import GraphError, InternalError
from attnport.export.onnx_file import EXTERNAL_BYTES, inspect_model, load_onnx, save_onnx


def wide() -> onnx.ModelProto:
    """A product with a weight of more than 1 MiB, and one of less."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    columns = EXTERNAL_BYTES // (4 * WIDTH) + 1
    return net.model(net.op("Add", project(net, x, columns), 1.0))


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    save_onnx(to_ir(self_attention()), tmp_path / "model.onnx")
    model = load_onnx(tmp_path / "model.onnx")
    assert [node.op_type for node in model.graph] == [
        node.op_type for node in self_attention().graph.node
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx"}


def test_weights_over_a_mebibyte_are_beside_the_graph(tmp_path: Path) -> None:
    before = wide()
    save_onnx(to_ir(before), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").stat().st_size < 10_000
    assert (tmp_path / "model.onnx.data").stat().st_size >= EXTERNAL_BYTES
    model = load_onnx(tmp_path / "model.onnx")
    written = {v.name: v.const_value for v in model.graph.initializers.values()}
    for tensor in before.graph.initializer:
        found = written[tensor.name]
        assert found is not None
        np.testing.assert_array_equal(found.numpy(), onnx.numpy_helper.to_array(tensor))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"no file .*nothing\.onnx: give the path"):
        load_onnx(tmp_path / "nothing.onnx")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="there is no file"):
        load_onnx(tmp_path)


@pytest.mark.parametrize("content", [b"", b"this is no model", b"\x00" * 100, b"\x08\x0a"])
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(GraphError, match=r"model\.onnx .*(is not an ONNX|was cut short)"):
        load_onnx(tmp_path / "model.onnx")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated(tmp_path: Path, share: float) -> None:
    whole = self_attention().SerializeToString()
    (tmp_path / "model.onnx").write_bytes(whole[: int(len(whole) * share)])
    for read in (load_onnx, inspect_model):
        with pytest.raises(GraphError, match=r"model\.onnx .*(is not an ONNX|was cut short)"):
            read(tmp_path / "model.onnx")


def test_external_data_that_is_missing(tmp_path: Path) -> None:
    save_onnx(to_ir(wide()), tmp_path / "model.onnx")
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(GraphError, match=r"model\.onnx\.data"):
        inspect_model(tmp_path / "model.onnx")


def test_external_data_that_was_cut_short(tmp_path: Path) -> None:
    save_onnx(to_ir(wide()), tmp_path / "model.onnx")
    data = (tmp_path / "model.onnx.data").read_bytes()
    (tmp_path / "model.onnx.data").write_bytes(data[:1000])
    with pytest.raises(GraphError, match=r"model\.onnx\.data"):
        inspect_model(tmp_path / "model.onnx")


def test_inspecting_does_not_change_the_file(tmp_path: Path) -> None:
    onnx.save(self_attention(), tmp_path / "model.onnx")
    before = (tmp_path / "model.onnx").read_bytes()
    found = inspect_model(tmp_path / "model.onnx", AXES)
    assert [info.recognised for info in found.attentions] == [True]
    assert [group.kind for group in found.projection_groups] == ["qkv"]
    assert (tmp_path / "model.onnx").read_bytes() == before


def test_inspecting_a_graph_without_attention(tmp_path: Path) -> None:
    onnx.save(wide(), tmp_path / "model.onnx")
    found = inspect_model(tmp_path / "model.onnx")
    assert (found.attentions, found.projection_groups) == ((), ())


def test_constants_may_be_nodes(tmp_path: Path) -> None:
    """Old exporters write weights and scales as Constant nodes."""
    model = self_attention()
    constants = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
    ]
    nodes = [*constants, *model.graph.node]
    del model.graph.initializer[:]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, tmp_path / "model.onnx")
    found = inspect_model(tmp_path / "model.onnx")
    assert [info.scale for info in found.attentions] == [0.25]
    assert [group.kind for group in found.projection_groups] == ["qkv"]


def test_a_graph_that_onnx_refuses_is_an_error_of_ours(tmp_path: Path) -> None:
    model = to_ir(wide())
    node = next(iter(model.graph))
    node.attributes.add(ir.AttrInt64("no_such_attribute", 1))
    with pytest.raises(InternalError, match=r"(?s)onnx refuses .*please report"):
        save_onnx(model, tmp_path / "model.onnx")
