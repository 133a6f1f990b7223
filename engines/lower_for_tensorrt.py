"""The forms of a bundle's graph that TensorRT may be given, and the choice among them.

    as-written       model.onnx itself
    batch-first      products on three axes, rows that the source turned itself turned back, and
                     scores in half precision where the source widens queries and keys for them
    sequence-first   the same, with the rows of tokens as the attention kernel takes them
    separate         batch-first, with a product for each of the columns that are parted unequally

Nothing is copied: the forms refer to the same file of weights as `model.onnx`.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.engines.fusion_causes import fits_the_kernel
from attnport.engines.graph_facts import PART
from attnport.engines.lowering_table import GraphSituation, TensorRtForm, choose_graph_form
from attnport.errors import InternalError
from attnport.export.bundle import Bundle

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from attnport.export.concrete import ConcreteGraph

# The code that the forms follow from, besides the graph: a plan's key holds its hash.
_SOURCES = (
    "attnport.engines.lower_for_tensorrt",
    "attnport.engines.lowering_table",
    "attnport.export.cancel_transposes",
    "attnport.export.concrete",
    "attnport.export.narrow_scores",
    "attnport.export.separate_columns",
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
        narrowed: The products of queries and keys that are in half precision in all forms but
            "as-written", and must end in an attention kernel.
    """

    contents: Mapping[TensorRtForm, bytes | None]
    chosen: TensorRtForm
    reason: str
    narrowed: tuple[str, ...] = ()

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
    from attnport.export.separate_columns import count_separable, separate_columns
    from attnport.export.sequence_first import count_swaps, to_sequence_first

    def sizes(graph: ir.Graph) -> list[ConcreteGraph]:
        wanted = sizes_to_ask_at(graph, bundle.axes)
        return [ConcreteGraph(graph, numbers) for numbers in wanted]

    model = load_onnx(bundle.model_path)
    graph = model.graph
    if _refusal(ir.to_proto(model)):
        reason = "onnx refuses the graph, so nothing is rewritten: TensorRT will say what is wrong"
        return GraphForms({"as-written": None}, "as-written", reason)
    before = count_swaps(graph)
    narrowed = _to_batch_first(graph, bundle, sizes)
    contents: dict[TensorRtForm, bytes | None] = {
        "as-written": None,
        "batch-first": _content(model),
    }
    swaps, separable = count_swaps(graph), count_separable(graph)
    if separable:
        other = load_onnx(bundle.model_path)
        _to_batch_first(other.graph, bundle, sizes)
        separate_columns(other.graph, PART)
        contents["separate"] = _content(other)
    ways = to_sequence_first(graph, sizes(graph)[0]).changed
    cancel_transposes(graph)
    contents["sequence-first"] = _content(model)
    rule = choose_graph_form(
        GraphSituation(
            refits=refits,
            ways=ways,
            transpositions=count_swaps(graph) - swaps,
            exposed=_is_exposed(graph),
            undone=before - swaps,
            narrowed=len(narrowed),
            separable=separable,
        )
    )
    return GraphForms(contents, rule.form, rule.reason, narrowed)


def _to_batch_first(
    graph: ir.Graph, bundle: Bundle, sizes: Callable[[ir.Graph], list[ConcreteGraph]]
) -> tuple[str, ...]:
    """The rewritings that all forms but "as-written" share; gives what was narrowed."""
    from attnport.export.cancel_transposes import cancel_transposes
    from attnport.export.narrow_scores import narrow_scores
    from attnport.export.sequence_first import to_batch_first
    from attnport.export.unflatten_gemm import unflatten_gemm

    unflatten_gemm(graph, sizes(graph))
    asked = sizes(graph)[0]
    to_batch_first(graph, asked)
    wide = [
        info.nodes[0]
        for info in bundle.manifest.attentions
        if info.rewritable and fits_the_kernel(info.head_size)
    ]
    narrowed = narrow_scores(graph, wide, asked).notes
    cancel_transposes(graph)
    return narrowed


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
