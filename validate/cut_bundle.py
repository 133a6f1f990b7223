"""A bundle cut short: the same graph up to some tensors, which become its outputs.

TensorRT fuses what lies before a cut as it does in the whole graph; an output in the middle of it
would keep it from fusing, which is why the graph is cut and not tapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from attnport.export.bundle import MODEL, Bundle, file_sha256
from attnport.export.records import Dtype, TensorSpec
from attnport.validate.graph_taps import Tap

_DTYPES: dict[int, Dtype] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
}


def cut(
    bundle: Bundle,
    model: onnx.ModelProto,
    taps: Sequence[Tap],
    folder: Path,
    *,
    keep_rest: bool = False,
) -> Bundle:
    """Writes a bundle whose outputs are these tensors, without cases.

    Args:
        bundle: The whole one, for inputs and axes.
        model: Its graph with the weights.
        taps: What is to come out.
        folder: A new folder.
        keep_rest: Whether the rest of the graph stays, so that nothing is fused otherwise than
            what these outputs force.
    """
    folder.mkdir(parents=True)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    outputs = [helper.make_tensor_value_info(t.name, t.element, None) for t in taps]
    if keep_rest:
        named = {tap.name for tap in taps}
        outputs += [output for output in made.graph.output if output.name not in named]
    del made.graph.output[:]
    made.graph.output.extend(outputs)
    if not keep_rest:
        _drop_what_is_not_needed(made)
    path = folder / MODEL
    onnx.save(
        made, path, save_as_external_data=True, location=f"{MODEL}.data", size_threshold=1 << 20
    )
    specs = tuple(_spec(tap) for tap in taps)
    data = folder / f"{MODEL}.data"
    manifest = bundle.manifest.model_copy(
        update={
            "outputs": specs if not keep_rest else specs + _others(bundle, specs),
            "inputs": tuple(s for s in bundle.manifest.inputs if _is_input(made, s.name)),
            "cases": (),
            "graph_sha256": file_sha256(path),
            "weights_sha256": file_sha256(data) if data.is_file() else "",
        }
    )
    return Bundle(folder, manifest)


def _drop_what_is_not_needed(model: onnx.ModelProto) -> None:
    needed = {output.name for output in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed.update(node.input)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    weights = [w for w in model.graph.initializer if w.name in needed]
    weights = [onnx.TensorProto.FromString(w.SerializeToString()) for w in weights]
    inputs = [v for v in model.graph.input if v.name in needed]
    inputs = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in inputs]
    for field, values in (
        (model.graph.node, nodes),
        (model.graph.initializer, weights),
        (model.graph.input, inputs),
    ):
        del field[:]
        field.extend(values)
    del model.graph.value_info[:]


def _is_input(model: onnx.ModelProto, name: str) -> bool:
    return any(value.name == name for value in model.graph.input)


def _spec(tap: Tap) -> TensorSpec:
    return TensorSpec(name=tap.name, dtype=_DTYPES[tap.element], shape=())


def _others(bundle: Bundle, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    named = {spec.name for spec in specs}
    return tuple(spec for spec in bundle.manifest.outputs if spec.name not in named)
