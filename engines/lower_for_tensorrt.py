"""The forms of a bundle's graph that TensorRT may be given, and the choice among them.

    as-written       model.onnx itself
    batch-first      products on three axes, and rows that the source turned itself turned back
    sequence-first   the same, with the rows of tokens as the attention kernel takes them

Nothing is copied: the forms refer to the same file of weights as `model.onnx`.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.engines.lowering_table import GraphSituation, TensorRtForm, choose_graph_form
from attnport.errors import InternalError
from attnport.export.bundle import Bundle

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

# The code that the forms follow from, besides the graph: a plan's key holds its hash.
_SOURCES = (
    "attnport.engines.lower_for_tensorrt",
    "attnport.engines.lowering_table",
    "attnport.export.cancel_transposes",
    "attnport.export.concrete",
    "attnport.export.sequence_first",
    "attnport.export.unflatten_gemm",
)


@dataclass(frozen=True)
class GraphForms:
    """The forms of one graph, and the one that the table chooses.

    Attributes:
        contents: The serialized graphs, which refer to the weights of `model.onnx`; None for
            `model.onnx` itself.
        chosen: The table's.
        reason: Its reason.
    """

    contents: Mapping[TensorRtForm, bytes | None]
    chosen: TensorRtForm
    reason: str

    def distinct(self) -> list[TensorRtForm]:
        """The table's form first, then those that are another graph than all before."""
        order = [self.chosen, *(form for form in self.contents if form != self.chosen)]
        first: dict[bytes | None, TensorRtForm] = {}
        for form in order:
            first.setdefault(self.contents[form], form)
        return list(first.values())


def tensorrt_forms(bundle: Bundle, *, refits: bool = False) -> GraphForms:
    """Writes the forms of a bundle's graph.

    Args:
        bundle: The exported model; its `model.onnx` is not changed.
        refits: Whether weights shall be put into the plan later.

    Raises:
        GraphError: If the graph cannot be read.
        InternalError: If a form is not a valid graph.
    """
    import onnx_ir as ir

    from attnport.export.asking_sizes import sizes_to_ask_at
    from attnport.export.cancel_transposes import cancel_transposes
    from attnport.export.concrete import ConcreteGraph
    from attnport.export.onnx_file import load_onnx
    from attnport.export.sequence_first import (
        count_swaps,
        to_batch_first,
        to_sequence_first,
    )
    from attnport.export.unflatten_gemm import unflatten_gemm

    model = load_onnx(bundle.model_path)
    graph = model.graph

    def sizes() -> list[ConcreteGraph]:
        wanted = sizes_to_ask_at(graph, bundle.axes)
        return [ConcreteGraph(graph, numbers) for numbers in wanted]

    if _refusal(ir.to_proto(model)):
        reason = "onnx refuses the graph, so nothing is rewritten: TensorRT will say what is wrong"
        return GraphForms({"as-written": None}, "as-written", reason)
    before = count_swaps(graph)
    unflatten_gemm(graph, sizes())
    to_batch_first(graph, sizes()[0])
    cancel_transposes(graph)
    contents: dict[TensorRtForm, bytes | None] = {
        "as-written": None,
        "batch-first": _content(model),
    }
    swaps = count_swaps(graph)
    ways = to_sequence_first(graph, sizes()[0]).changed
    cancel_transposes(graph)
    contents["sequence-first"] = _content(model)
    rule = choose_graph_form(
        GraphSituation(
            refits=refits,
            ways=ways,
            transpositions=count_swaps(graph) - swaps,
            exposed=_is_exposed(graph),
            undone=before - swaps,
        )
    )
    return GraphForms(contents, rule.form, rule.reason)


def _is_exposed(graph: ir.Graph) -> bool:
    """Whether a product with a constant reads rows right behind a transposition of rows."""
    from attnport.export.sequence_first import swaps_of

    users = (use.node for swap in swaps_of(graph) for use in swap.outputs[0].uses())
    return any(user.op_type == "MatMul" for user in users)


def forms_digest() -> str:
    """The hash of what the forms follow from besides the graph: the code that writes them."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()


def _content(model: ir.Model) -> bytes:
    """The model as it stands, with shapes inferred anew, checked."""
    import onnx_ir as ir
    import onnx_ir.passes.common as common

    common.RemoveUnusedNodesPass()(model)
    common.ShapeInferencePass()(model)
    proto = ir.to_proto(model)
    said = _refusal(proto)
    if said:
        raise InternalError(
            f"a form for TensorRT is a graph that onnx refuses ({said}): please report the model, "
            "and build with --form as-written meanwhile"
        )
    return bytes(proto.SerializeToString())


def _refusal(proto: onnx.ModelProto) -> str:
    """What onnx's checker has against a model; "" for nothing."""
    import onnx

    try:
        onnx.checker.check_model(_without_weights(proto), full_check=True)
    except Exception as err:  # the checker's error is not a public type
        return str(err) or type(err).__name__
    return ""


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose external weights are inputs: the checker looks for their files otherwise."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    kept = []
    for constant in copy.graph.initializer:
        if constant.data_location != onnx.TensorProto.EXTERNAL:
            kept.append(constant)
            continue
        copy.graph.input.append(
            onnx.helper.make_tensor_value_info(
                constant.name, constant.data_type, list(constant.dims)
            )
        )
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    return copy
