"""What each input means: read from what the graph does with it, unless the user says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import onnx_ir as ir

from attnport.axes import Axis
from attnport.errors import UsageError
from attnport.export.caches import find_caches
from attnport.export.mask_data import ancestry
from attnport.export.mask_polarity import hides_where_true
from attnport.export.passes import View, look_at
from attnport.export.records import Dtype, Role, TensorSpec

ROLES: tuple[Role, ...] = (
    "activation", "token_ids", "mask", "bias", "lengths", "positions", "cache",
    "write_at",
)  # fmt: skip


# What leaves numbers as they are, on their way from an input to a Gather.
_RESHAPED = ("Reshape", "Unsqueeze", "Squeeze", "Flatten", "Cast", "Identity")


def input_specs(
    graph: ir.Graph, axes: Mapping[str, Axis], given: Mapping[str, str] | None = None
) -> tuple[TensorSpec, ...]:
    """The inputs, with their roles.

    Args:
        graph: The graph.
        axes: Its axes.
        given: Roles that the user names, by input.

    Raises:
        UsageError: If a role or an input is named that does not exist.
    """
    given = given or {}
    names = [str(value.name) for value in graph.inputs]
    for name, role in given.items():
        if name not in names:
            raise UsageError(f"there is no input {name!r}; the inputs are {', '.join(names)}")
        if role not in ROLES:
            raise UsageError(f"{name!r} cannot be a {role!r}: a role is one of {', '.join(ROLES)}")
    view = look_at(graph, axes)
    masks, biases = _mask_inputs(view)
    specs: dict[ir.Value, TensorSpec] = {}
    caches = find_caches(graph)
    past = {cache.input for cache in caches}
    places = dict(cache.write_at() for cache in caches)
    for value in graph.inputs:
        role, high = _role(value, masks, biases)
        if value in past or value in places:
            role = "cache" if value in past else "write_at"
        role = cast(Role, given.get(str(value.name), role))
        found = tensor_spec(value, role, high if role in ("token_ids", "positions") else None)
        after = _tokens_before(found, axes) if role == "positions" else ""
        room = places.get(value) if role == "write_at" else None
        specs[value] = found.model_copy(update={"after": after, "room": room})
    hiding = [value for value, spec in specs.items() if spec.role == "mask"]
    turned = hides_where_true(graph, view.graphs[0], view.sites, hiding)
    return tuple(
        spec.model_copy(update={"hides_where_true": value in turned})
        for value, spec in specs.items()
    )


def tensor_spec(value: ir.Value, role: Role = "activation", high: int | None = None) -> TensorSpec:
    """The name, dtype and shape of a graph input or output."""
    shape = tuple(dim if isinstance(dim, int) else str(dim.value) for dim in (value.shape or ()))
    assert value.dtype is not None
    return TensorSpec(
        name=str(value.name), dtype=dtype_of(value.dtype), shape=shape, role=role, high=high
    )


def dtype_of(dtype: ir.DataType) -> Dtype:
    """The name of an ONNX dtype in records."""
    return str(dtype.numpy().name)  # type: ignore[return-value]


def _tokens_before(spec: TensorSpec, axes: Mapping[str, Axis]) -> str:
    """The axis that a derived one has before that of the positions: the past."""
    last = spec.shape[-1] if spec.shape else None
    for axis in axes.values():
        others = [term for term in axis.terms if isinstance(term, str) and term != last]
        if last in axis.terms and len(others) == 1:
            return others[0]
    return ""


def _mask_inputs(view: View) -> tuple[set[ir.Value], set[ir.Value]]:
    """The inputs that hide scores, and those that are added to them."""
    masks: set[ir.Value] = set()
    biases: set[ir.Value] = set()
    for site in view.sites:
        for term in site.terms:
            inputs, _, complete = ancestry([term.value])
            if complete:
                (masks if term.kind == "bool" else biases).update(inputs)
    return masks, biases


def _rows_looked_up(value: ir.Value) -> int | None:
    """The rows of the constant table that the value, reshaped or not, holds indices of."""
    pending, seen = [value], {value}
    while pending:
        for use in pending.pop().uses():
            node, table = use.node, use.node.inputs[0]
            if node.op_type == "Gather" and use.idx == 1 and table is not None:
                tensor = table.const_value
                if tensor is not None and len(tensor.shape) == 2:
                    return int(tensor.shape.numpy()[0])
            if node.op_type in _RESHAPED and use.idx == 0 and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                pending.append(node.outputs[0])
    return None


def _role(value: ir.Value, masks: set[ir.Value], biases: set[ir.Value]) -> tuple[Role, int | None]:
    """The role, and for token ids the number of tokens there are."""
    assert value.dtype is not None
    rows = _rows_looked_up(value)
    if rows is not None:
        # A table of positions is like one of tokens; transformers and others name the input so.
        return ("positions" if "position" in str(value.name) else "token_ids"), rows
    if value in masks:
        return "mask", None
    if value in biases:
        # Integers and bools become a bias by arithmetic of the module's own: (1 - m)·finfo.min.
        return ("bias" if value.dtype.is_floating_point() else "mask"), None
    if value.dtype == ir.DataType.BOOL:
        return "mask", None
    return ("positions" if value.dtype.is_integer() else "activation"), None
