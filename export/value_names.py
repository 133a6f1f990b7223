"""What a graph's inputs and outputs are called: by the module's own word where it gives one.

A module says it by attributes, since forward's *args and its results have no names of their own:

    input_names    one for each input, in forward's order
    output_names   one for each output, in the order of what forward returns
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from attnport.errors import ModuleError


def name_inputs(graph: ir.Graph, module: torch.nn.Module) -> None:
    """Gives the inputs the names that the module has for them, if it has.

    Raises:
        ModuleError: If there is not one name for each, or two are alike.
    """
    names = _names_of(module, "input_names", len(graph.inputs))
    for value, name in zip(graph.inputs, names or (), strict=False):
        value.name = name


def name_outputs(graph: ir.Graph, module: torch.nn.Module) -> None:
    """Gives outputs names to ask for, in place of those of the nodes that made them.

    Raises:
        ModuleError: If the module names them, and not one name for each, or two alike.
    """
    count = len(graph.outputs)
    numbered = ["output"] if count == 1 else [f"output_{index}" for index in range(count)]
    names = _names_of(module, "output_names", count) or numbered
    inputs = {value.name for value in graph.inputs}
    for value, wanted in zip(graph.outputs, names, strict=True):
        if not value.is_graph_input() and wanted not in inputs:
            value.name = wanted


def _names_of(module: torch.nn.Module, attribute: str, count: int) -> Sequence[str] | None:
    names = getattr(module, attribute, None)
    if names is None:
        return None
    given = list(names)
    if len(given) != count or len(set(given)) != count or not all(map(str.isidentifier, given)):
        raise ModuleError(
            f"{type(module).__name__}.{attribute} is {given}, and the graph has {count}: give "
            "each a name of its own, in their order"
        )
    return given
