"""From an ONNX file to an ONNX file in which every attention is merged and written anew."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import onnx_ir as ir
import onnx_ir.passes.common as common

from attnport.axes import Axis
from attnport.errors import GraphError, InternalError, UsageError
from attnport.export.onnx_file import load_onnx, onnx_fault, save_onnx
from attnport.export.passes import inspect_graph, run_passes
from attnport.export.records import Form, Inspection, PassRecord, Record

# The operator is part of the standard since this opset.
OPERATOR_OPSET = 23
# The oldest that the converter to a later opset starts from (onnxscript 0.7).
_OLDEST_CONVERTED = 18
# Two equal weights above this many bytes are compared by content.
_LARGEST_HASHED_BYTES = 1 << 32


class Outcome(Record):
    """What became of one attention or projection group.

    Attributes:
        name: As `inspect` says it.
        kind: Which of the two.
        done: Whether it is written, or merged, as it should be.
        what: What was done, or what is in the way.
    """

    name: str
    kind: Literal["attention", "projections"]
    done: bool
    what: str


class Fused(Record):
    """What `fuse_file` did.

    Attributes:
        path: The file that it wrote.
        form: What attentions are written as.
        opset: Of the file.
        outcomes: One for each attention and projection group.
        passes: What each pass did.
    """

    path: str
    form: Form
    opset: int
    outcomes: tuple[Outcome, ...]
    passes: tuple[PassRecord, ...]

    @property
    def complete(self) -> bool:
        """Whether everything that was found is done."""
        return all(outcome.done for outcome in self.outcomes)


def fuse_file(
    source: str | Path,
    out: str | Path,
    *,
    form: Form = "pattern",
    axes: Mapping[str, Axis] | None = None,
) -> Fused:
    """Runs the passes on a file; the result appears whole or not at all.

    Args:
        source: The file to read; its weights may lie in another folder.
        out: The file to write, which may be the same one; weights above 1 MiB go beside it.
        form: What attentions are written as.
        axes: The ranges of symbolic dimensions, where they are known.

    Raises:
        GraphError: If the file cannot be read, or not be written in this form.
        UsageError: If `out` cannot be written.
    """
    target = Path(out)
    if target.is_dir():
        raise UsageError(f"{target} is a folder: give the path of the .onnx file to write")
    model = load_onnx(source)
    records = [_free_inputs(model)]
    _require_opset(model, form)
    records += run_passes(model, axes, form)
    if form == "attention":
        _convert(model)
    common.DeduplicateHashedInitializersPass(_LARGEST_HASHED_BYTES)(model)
    inspection = inspect_graph(model.graph, axes)
    records.append(_write(model, target, Path(source)))
    return Fused(
        path=str(target),
        form=form,
        opset=model.opset_imports[""],
        outcomes=tuple(_outcomes(inspection, records)),
        passes=tuple(records),
    )


def _free_inputs(model: ir.Model) -> PassRecord:
    """Old files list weights as inputs that could be given anew: then nothing is constant."""
    both = [v for v in model.graph.inputs if v.name in model.graph.initializers]
    common.RemoveInitializersFromInputsPass()(model)
    notes = (f"{len(both)} weights were listed as inputs, too: they are constants now",)
    return PassRecord(name="free_inputs", changed=len(both), notes=notes if both else ())


def _require_opset(model: ir.Model, form: Form) -> None:
    opset = model.opset_imports.get("", 0)
    if form == "attention" and opset < _OLDEST_CONVERTED:
        raise GraphError(
            f"the file is of opset {opset}, and the Attention operator needs {OPERATOR_OPSET}: "
            "export the file at opset 18 or later, or take --form pattern"
        )


def _convert(model: ir.Model) -> None:
    """Brings an older file to the opset of the operator, if one is in it."""
    opset = model.opset_imports[""]
    operators = any(n.op_type == "Attention" and not n.domain for n in model.graph)
    if opset >= OPERATOR_OPSET or not operators:
        return
    from onnxscript import version_converter

    version_converter.convert_version(model, target_version=OPERATOR_OPSET, fallback=False)
    if model.opset_imports[""] != OPERATOR_OPSET:
        raise GraphError(
            f"the file could not be brought from opset {opset} to {OPERATOR_OPSET}, which the "
            "Attention operator needs: take --form pattern"
        )


def _outcomes(inspection: Inspection, records: list[PassRecord]) -> list[Outcome]:
    said = dict(note.split(": ", 1) for record in records for note in record.notes if ": " in note)
    outcomes = []
    for info in inspection.attentions:
        what = said.get(info.name, "") or info.reason
        left = not info.rewritable or what.startswith("left as it is")
        what = info.reason if info.reason and not info.rewritable else what
        outcomes.append(Outcome(name=info.name, kind="attention", done=not left, what=what))
    for group in inspection.projection_groups:
        what = said.get(group.name, "") if group.merged else group.reason
        outcomes.append(Outcome(name=group.name, kind="projections", done=group.merged, what=what))
    return outcomes


def _write(model: ir.Model, target: Path, source: Path) -> PassRecord:
    """Beside the target first, so that what stands there is replaced by whole files only."""
    notes: tuple[str, ...] = ()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
            made = Path(folder) / target.name
            try:
                save_onnx(model, made)
            except InternalError:
                fault = onnx_fault(source)
                if fault is None:
                    raise
                notes = (f"onnx's checker refuses the file, before and after: {fault}",)
            beside = made.with_name(f"{made.name}.data")
            if beside.exists():
                os.replace(beside, target.with_name(beside.name))
            os.replace(made, target)
    except OSError as err:
        raise UsageError(
            f"{target} cannot be written ({err.strerror}): give another path"
        ) from err
    return PassRecord(name="written", changed=0, notes=notes)
