"""`export_module`: from a module to a bundle, whole or not at all."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from attnport.axes import Axis, AxisLike, AxisSum, axes_by_name
from attnport.errors import ModuleError, UsageError
from attnport.export.bundle import FORMAT_VERSION, MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.caches import find_caches, require_room
from attnport.export.capture import onnx_from_module
from attnport.export.case_file import write_case
from attnport.export.cases import CasePlan, plan_cases, within_budget
from attnport.export.dynamic_shapes import DynamicShapes, bind_example
from attnport.export.folder import new_folder
from attnport.export.module_forms import dtype_name, module_in_dtype, torch_dtype
from attnport.export.onnx_file import save_onnx
from attnport.export.passes import inspect_graph, run_passes
from attnport.export.records import CaseRecord, Dtype, Form, Manifest, PassRecord, TensorSpec
from attnport.export.reference import Reference
from attnport.export.roles import input_specs, tensor_spec
from attnport.export.value_names import name_inputs, name_outputs

Progress = Callable[[str, float], None]

# The pattern needs nothing above 18; the operator came with 23, and 18 is the lowest that
# torch.onnx (2.13) writes without converting.
OPSETS: dict[Form, int] = {"pattern": 18, "attention": 23}
HIGHEST_OPSET = 24
DTYPES = ("float32", "float16", "bfloat16")
_PACKAGES = ("attnport", "torch", "onnx", "onnx-ir", "onnxscript", "numpy")


@dataclass(frozen=True)
class CaseOptions:
    """Which cases a bundle gets.

    Attributes:
        seed: What every case's random numbers follow from.
        caps: Sizes that no case exceeds, by axis.
        most: How many cases at most; None for all that fit the budget of 64 MiB.
    """

    seed: int = 0
    caps: Mapping[str, int] | None = None
    most: int | None = None


def export_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    out: str | Path,
    *,
    dynamic_shapes: DynamicShapes,
    axes: Mapping[str, AxisLike] | Iterable[Axis | AxisSum],
    dtype: str | None = None,
    inputs: Mapping[str, str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    form: Form = "pattern",
    opset: int | None = None,
    name: str | None = None,
    source: str = "",
    seed: int = 0,
    case_sizes: Mapping[str, int] | None = None,
    max_cases: int | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Exports a module to a bundle: ONNX with merged QKV and canonical attention, and cases.

    Args:
        module: Any module; a copy is exported, in eval mode.
        args: Example inputs, by position.
        out: The bundle's folder; an earlier bundle there is replaced.
        dynamic_shapes: For each input which axis stands at which dimension, as torch.export takes
            it: `({0: "batch", 1: "seq"},)`.
        axes: The range of each axis: `{"batch": (1, 2, 8), "seq": (1, 128, 512)}`; of a derived
            one what it is the sum of: `{"total": "past + seq"}`.
        dtype: "float32", "float16" or "bfloat16"; the module's own where it is not given.
        inputs: The role of an input, where it is not what the graph shows: `{"x": "activation"}`.
        kwargs: Example inputs, by name.
        form: What attention is written as: the "pattern", or the ONNX "attention" operator.
        opset: Of the file; the lowest that the form needs where it is not given.
        name: The model's name; the class's where it is not given.
        source: From what the module can be made again (`registry:…`, `package.module:factory`).
        seed: What the cases' random numbers follow from.
        case_sizes: Sizes that no case exceeds, by axis.
        max_cases: How many cases at most.
        progress: Called with each step's name and the fraction that is done.

    Returns:
        The bundle, opened.

    Raises:
        UsageError: For options or axes that do not fit.
        NarrowedRangeError: If the module works on fewer sizes than the axes say.
        ModuleError: If it cannot be captured, or fails itself.
    """
    tell = progress or (lambda step, fraction: None)
    _require_module_and_args(module, args)
    chosen = _dtype(module, args, dtype)
    ranges = axes_by_name(axes)
    low = module_in_dtype(module, chosen)
    tell("capturing the module", 0.0)
    example = bind_example(
        low, _cast(args, chosen), _cast_all(kwargs or {}, chosen), dynamic_shapes, ranges
    )
    model = onnx_from_module(low, example, ranges, _opset(form, opset), exactly=opset is not None)
    name_inputs(model.graph, module)
    tell("running the passes", 0.3)
    records = run_passes(model, ranges, form)
    name_outputs(model.graph, module)
    specs = input_specs(model.graph, ranges, inputs)
    require_room(specs, ranges)
    outputs = tuple(tensor_spec(value) for value in model.graph.outputs)
    _require_float_output(low, outputs)
    options = CaseOptions(seed, case_sizes, max_cases)
    plans, left_out = within_budget(
        plan_cases(specs, ranges, seed=seed, caps=options.caps), specs, outputs, most=options.most
    )
    with new_folder(out) as folder:
        tell("writing the graph", 0.4)
        save_onnx(model, folder / MODEL)
        cases = _write_cases(folder, plans, low, chosen, specs, outputs, ranges, tell)
        manifest = _manifest(
            folder, model, records, ranges, name or type(module).__name__, source, chosen, form,
            specs, outputs, cases, left_out,
        )  # fmt: skip
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", "utf-8")
    tell("done", 1.0)
    return Bundle(Path(out), manifest)


def _dtype(module: torch.nn.Module, args: Sequence[Any], asked: str | None) -> Dtype:
    if asked is None:
        tensors = [*module.parameters(), *(arg for arg in args if isinstance(arg, torch.Tensor))]
        found = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
        asked = dtype_name(found)
    if asked not in DTYPES:
        raise UsageError(f"dtype {asked!r} is not one that is exported: {', '.join(DTYPES)}")
    return asked  # type: ignore[return-value]


def _opset(form: Form, asked: int | None) -> int:
    if form not in OPSETS:
        raise UsageError(f"form {form!r} is not one of {', '.join(OPSETS)}")
    lowest = OPSETS[form]
    if asked is not None and not lowest <= asked <= HIGHEST_OPSET:
        raise UsageError(
            f"opset {asked} was asked for, and the form {form!r} is written at {lowest} to "
            f"{HIGHEST_OPSET}: torch.onnx writes files with a wrong stamp outside of that"
        )
    return asked or lowest


def _cast(args: Sequence[Any], dtype: str) -> tuple[Any, ...]:
    return tuple(_cast_one(arg, dtype) for arg in args)


def _cast_all(kwargs: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    return {name: _cast_one(arg, dtype) for name, arg in kwargs.items()}


def _cast_one(arg: Any, dtype: str) -> Any:
    """Floating inputs are exported in the bundle's dtype, with the module."""
    floating = isinstance(arg, torch.Tensor) and arg.is_floating_point()
    return arg.to(torch_dtype(dtype)) if floating else arg


def _require_module_and_args(module: object, args: object) -> None:
    if not isinstance(module, torch.nn.Module):
        what = f"the class {module.__name__}" if isinstance(module, type) else repr(module)
        raise ModuleError(f"{what} is no module: give an instance of a torch.nn.Module")
    if isinstance(args, torch.Tensor):
        raise ModuleError("args is one tensor: give the example inputs as a tuple, (tensor,)")


def _require_float_output(module: torch.nn.Module, outputs: Sequence[TensorSpec]) -> None:
    if not any(spec.dtype.startswith(("float", "bfloat")) for spec in outputs):
        raise ModuleError(
            f"{type(module).__name__} has no floating output, so parity would compare nothing: "
            "return what it is made of as well, such as the logits before argmax"
        )


def _write_cases(
    folder: Path,
    plans: Sequence[CasePlan],
    module: torch.nn.Module,
    dtype: str,
    specs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    axes: Mapping[str, Axis],
    tell: Progress,
) -> tuple[CaseRecord, ...]:
    (folder / "cases").mkdir()
    if not plans:
        return ()  # the reference holds the module in float64, twice
    reference = Reference(module, dtype, outputs)
    names = [plan.name for plan in plans]
    # At one middling size: a property holds at every size or is none of the module's.
    properties_of = "between" if "between" in names else (names[-1] if names else "")
    records = []
    for number, plan in enumerate(plans):
        tell(f"reference {plan.name}", 0.5 + 0.5 * number / len(plans))
        records.append(
            write_case(
                folder, f"cases/{plan.name}.safetensors", plan, plan.inputs(specs), reference,
                specs, axes, with_properties=plan.name == properties_of,
            )
        )  # fmt: skip
    return tuple(records)


def _manifest(
    folder: Path,
    model: ir.Model,
    records: tuple[PassRecord, ...],
    axes: Mapping[str, Axis],
    name: str,
    source: str,
    dtype: Dtype,
    form: Form,
    specs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    cases: tuple[CaseRecord, ...],
    left_out: Sequence[str],
) -> Manifest:
    files = {
        str(file.relative_to(folder)): file_sha256(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    inspection = inspect_graph(model.graph, axes)
    return Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        source=source,
        dtype=dtype,
        form=form,
        opset=model.opset_imports[""],
        axes={axis.name: (axis.min, axis.opt, axis.max) for axis in axes.values()},
        derived_axes={axis.name: axis.terms for axis in axes.values() if axis.terms},
        inputs=specs,
        outputs=outputs,
        caches=tuple(cache.record for cache in find_caches(model.graph)),
        graph_sha256=files[MODEL],
        weights_sha256=files.get(f"{MODEL}.data", ""),
        files=files,
        versions={package: importlib.metadata.version(package) for package in _PACKAGES},
        passes=records,
        attentions=inspection.attentions,
        projection_groups=inspection.projection_groups,
        cases=cases,
        cases_left_out=tuple(left_out),
    )
