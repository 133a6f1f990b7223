"""The operators that stand for whole functions between capture and the passes.

F.scaled_dot_product_attention: PyTorch's own translation at opset 18 decomposes it and loses what
a fully hidden row means (a bool mask becomes a finite sentinel: torch 2.13), and refuses
three-dimensional operands. So the call is captured whole; the pass that writes attention replaces
it, and no file ever holds it.

`attnport::tensor_scatter`, an operator of torch that the models room registers, is written as what
it is, TensorScatter of ONNX, which begins with opset 24.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

DOMAIN = "attnport.capture"
OP_TYPE = "Attention"
TENSOR_SCATTER_OPSET = 24


@functools.cache
def register_schema() -> None:
    """Makes the operator known to onnx, which the exporter asks for its signature."""
    from onnx.defs import OpSchema, register_schema

    floats = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"]
    parameter, option = OpSchema.FormalParameter, OpSchema.FormalParameterOption
    register_schema(
        OpSchema(
            OP_TYPE,
            DOMAIN,
            1,
            doc="F.scaled_dot_product_attention",
            inputs=[
                parameter("query", "T"),
                parameter("key", "T"),
                parameter("value", "T"),
                parameter("mask", "M", param_option=option.Optional),
            ],
            outputs=[parameter("context", "T")],
            type_constraints=[("T", floats, ""), ("M", [*floats, "tensor(bool)"], "")],
            attributes=[
                OpSchema.Attribute("is_causal", OpSchema.AttrType.INT, required=False),
                OpSchema.Attribute("enable_gqa", OpSchema.AttrType.INT, required=False),
                OpSchema.Attribute("scale", OpSchema.AttrType.FLOAT, required=False),
            ],
        )
    )


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What `torch.onnx.export(custom_translation_table=…)` takes."""
    import torch
    from onnxscript import values

    register_schema()
    operators = values.Opset(DOMAIN, 1)

    def sdpa(  # the parameters are those of aten::scaled_dot_product_attention
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        attributes = {} if scale is None else {"scale": float(scale)}
        return operators.Attention(
            query,
            key,
            value,
            attn_mask,
            is_causal=int(is_causal),
            enable_gqa=int(enable_gqa),
            **attributes,
        )

    table: dict[Callable[..., Any], Callable[..., Any]] = {
        torch.ops.aten.scaled_dot_product_attention.default: sdpa
    }
    scatter = _tensor_scatter()
    if scatter is not None:
        standard = values.Opset("", TENSOR_SCATTER_OPSET)

        def write(cache: Any, rows: Any, write_at: Any) -> Any:
            return standard.TensorScatter(cache, rows, write_at, axis=2, mode="linear")

        table[scatter] = write
    return table


def lowest_opset(program: torch.export.ExportedProgram) -> int:
    """The opset that what was captured needs beyond what torch.onnx needs itself."""
    scatter = _tensor_scatter()
    held = scatter is not None and any(node.target is scatter for node in program.graph.nodes)
    return TENSOR_SCATTER_OPSET if held else 0


def _tensor_scatter() -> Callable[..., Any] | None:
    """The operator, if anyone has registered it in this process."""
    import torch

    found = getattr(torch.ops.attnport, "tensor_scatter", None)
    return None if found is None else found.default
