"""On which provider each node of a session runs, and what may run elsewhere.

ONNX Runtime gives nodes that its CUDA provider has no kernel for to the CPU without a word, and
with them copies of their tensors in both directions. It also keeps the arithmetic of shapes there
on purpose, since shapes are needed on the CPU: that is no fallback.
"""

from __future__ import annotations

from typing import Any

from attnport.engines.kinds import EngineKind
from attnport.errors import EngineUnavailableError
from attnport.export.bundle import Bundle

_CPU = "CPUExecutionProvider"
# What shape arithmetic consists of, in graphs that PyTorch's exporter and our passes write.
_SHAPE_OPERATORS = frozenset(
    {
        "Add", "And", "Cast", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Expand",
        "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max",
        "Min", "Mod", "Mul", "Not", "Or", "Range", "ReduceProd", "Reshape", "Shape", "Size",
        "Slice", "Squeeze", "Sub", "Unsqueeze", "Where",
    }
)  # fmt: skip
_SHOWN = 3


def require_placed(session: Any, kind: EngineKind) -> None:
    """Raises EngineUnavailableError where a node that computes was given to another provider."""
    if kind.provider == _CPU:
        return
    elsewhere = [
        (node.name, node.op_type, subgraph.ep_name)
        for subgraph in session.get_provider_graph_assignment_info()
        for node in subgraph.get_nodes()
        if subgraph.ep_name != kind.provider
        and not (subgraph.ep_name == _CPU and node.op_type in _SHAPE_OPERATORS)
    ]
    if elsewhere:
        shown = ", ".join(f"{op} {name!r} on {ep}" for name, op, ep in elsewhere[:_SHOWN])
        raise EngineUnavailableError(
            f"onnxruntime gave {len(elsewhere)} nodes to another provider than {kind.provider} "
            f"({shown}): it has no kernel for them in this dtype, so export in another one, or use "
            "another engine"
        )


def trt_options(bundle: Bundle) -> dict[str, str]:
    """Options of the TensorRT provider: the bundle's ranges, and its dtype. Unrun on a GPU.

    Without ranges it would build again for every size that it meets.
    """
    options = {}
    for which in ("min", "opt", "max"):
        shapes = [
            f"{spec.name}:{'x'.join(str(_size(bundle, dim, which)) for dim in spec.shape)}"
            for spec in bundle.manifest.inputs
            if any(isinstance(dim, str) for dim in spec.shape)
        ]
        if shapes:
            options[f"trt_profile_{which}_shapes"] = ",".join(shapes)
    if bundle.dtype == "float16":
        # Its builder is not strongly typed: without it half precision is computed in float32.
        options["trt_fp16_enable"] = "1"
    return options


def _size(bundle: Bundle, dim: int | str, which: str) -> int:
    size: int = dim if isinstance(dim, int) else getattr(bundle.axes[dim], which)
    return size
