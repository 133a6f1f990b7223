"""What torch.onnx cannot translate though it means something plain, said in another way first."""

from __future__ import annotations

import torch


def widen_reversed_subtractions(program: torch.export.ExportedProgram) -> None:
    """`1.0 - mask` of an integer mask: the mask is converted before, and not by the subtraction.

    torch.onnx 2.13 decomposes aten::rsub to a subtraction from a Python number, for which there is
    no operator. The numbers stay the same: PyTorch converts the mask to that very dtype.
    """
    for node in list(program.graph.nodes):
        if node.target is not torch.ops.aten.rsub.Scalar:
            continue
        source, dtype = node.args[0], node.meta["val"].dtype
        if source.meta["val"].dtype == dtype:
            continue
        with program.graph.inserting_before(node):
            cast = program.graph.call_function(
                torch.ops.aten._to_copy.default, (source,), {"dtype": dtype}
            )
        cast.meta["val"] = source.meta["val"].to(dtype)
        node.replace_input_with(source, cast)
    program.graph_module.recompile()
