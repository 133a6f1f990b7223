"""Other weights in a bundle, without exporting its module again.

The passes merge, transpose and rename, so no initializer of the graph need be a parameter of the
module. What each one is made of is found by value: the module as it was exported is made again from
the bundle's source, and an initializer is one of its parameters, a transposed one, or several of
them side by side. What cannot be explained so is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.engines.weight_recipes import Recipe, find_recipes
from attnport.errors import UsageError
from attnport.export.arrays import load_arrays, numpy_dtype, save_arrays
from attnport.export.bundle import MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.folder import new_folder
from attnport.export.onnx_file import load_onnx, save_onnx
from attnport.export.records import CaseRecord

if TYPE_CHECKING:
    import torch

Progress = Callable[[str, float], None]
Weights = Mapping[str, np.ndarray]


def load_weights(path: Path) -> dict[str, np.ndarray]:
    """Reads a state dict from safetensors.

    Raises:
        UsageError: If there is no such file.
        BundleError: If it is not whole.
    """
    if not path.is_file():
        raise UsageError(f"{path} does not exist: give a .safetensors file of the new weights")
    return load_arrays(path)


def replace_weights(
    bundle: Bundle,
    module: torch.nn.Module,
    weights: Weights,
    out: Path,
    *,
    progress: Progress | None = None,
) -> Bundle:
    """Writes a bundle with the same graph, other weights, and cases for these.

    Args:
        bundle: The exported model.
        module: The module that it was exported from, with the weights of then. It is not changed.
        weights: The new weights, named as in its state dict; those left out stay as they are.
        out: The new bundle's folder.
        progress: Called with what is being done and the fraction that is done.

    Raises:
        UsageError: If a name or a shape is not the module's, or `out` cannot be written.
        ModuleError: If the module fails with the new weights.
        GraphError: If the graph holds weights that are not those of the module, or that no
            parameter explains.
    """
    from attnport.export.module_forms import module_in_dtype

    tell = progress or (lambda what, fraction: None)
    _require_known(module, weights)
    tell("matching the weights", 0.0)
    before = _weights_of(module_in_dtype(module, bundle.dtype))
    after_module = module_in_dtype(module, "float64")
    _load_into(after_module, weights)
    after_module = module_in_dtype(after_module, bundle.dtype)
    after = _weights_of(after_module)
    model = load_onnx(bundle.model_path)
    initializers = {
        name: value.const_value.numpy()
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
    }
    changed = {name for name in after if not _same(before[name], after[name])}
    recipes = find_recipes(initializers, before, changed, numpy_dtype(bundle.dtype))
    _replace_in(model, recipes, after)
    with new_folder(out) as folder:
        tell("writing the graph", 0.2)
        save_onnx(model, folder / MODEL)
        cases = _recompute_cases(bundle, after_module, folder, tell)
        _write_manifest(bundle, folder, cases)
    tell("done", 1.0)
    return Bundle.load(out)


def _require_known(module: torch.nn.Module, weights: Weights) -> None:
    own = module.state_dict()
    unknown = sorted(weights.keys() - own.keys())
    if unknown:
        raise UsageError(
            f"the module has no weight {unknown[0]!r} ({len(unknown)} of the names are unknown): "
            f"give a state dict with names such as {', '.join(list(own)[:3])}"
        )
    for name, array in weights.items():
        if tuple(own[name].shape) != array.shape:
            raise UsageError(
                f"the weight {name!r} is {array.shape}, and the module's is "
                f"{tuple(own[name].shape)}: these are weights of another model"
            )


def _load_into(module: torch.nn.Module, weights: Weights) -> None:
    from attnport.export.module_forms import to_torch

    module.load_state_dict(
        {name: to_torch(array) for name, array in weights.items()}, strict=False
    )


def _weights_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """Parameters and buffers, those that no state dict holds included."""
    from attnport.export.module_forms import to_numpy

    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: np.ascontiguousarray(to_numpy(tensor.detach())) for name, tensor in named}


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.tobytes() == other.tobytes()


def _replace_in(model: object, recipes: Mapping[str, Recipe], after: Weights) -> None:
    import onnx_ir as ir

    assert isinstance(model, ir.Model)
    for name, recipe in recipes.items():
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(np.ascontiguousarray(recipe.make(after)), name=name)


def _recompute_cases(
    bundle: Bundle, module: torch.nn.Module, folder: Path, tell: Progress
) -> tuple[CaseRecord, ...]:
    """The same inputs, with the float64 result of the module as it is now."""
    from attnport.export.reference import Reference

    reference = Reference(module, bundle.dtype, bundle.manifest.outputs)
    measured = ("activation", "bias", "cache")
    perturbed = [spec.name for spec in bundle.manifest.inputs if spec.role in measured]
    records = []
    for number, record in enumerate(bundle.manifest.cases):
        tell(f"reference {record.name}", 0.3 + 0.7 * number / len(bundle.manifest.cases))
        inputs = bundle.load_case(record.name).inputs
        computed = reference.compute(inputs, perturbed, record.seed)
        arrays = {f"input.{name}": array for name, array in inputs.items()}
        arrays |= {f"reference.{name}": array for name, array in computed.arrays.items()}
        (folder / record.file).parent.mkdir(exist_ok=True)
        save_arrays(arrays, folder / record.file)
        records.append(record.model_copy(update={"references": computed.references}))
    return tuple(records)


def _write_manifest(bundle: Bundle, folder: Path, cases: tuple[CaseRecord, ...]) -> None:
    files = {
        str(file.relative_to(folder)): file_sha256(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    note = f"its weights were replaced after export; the bundle before has hash {bundle.hash}"
    manifest = bundle.manifest.model_copy(
        update={
            # The source makes the module as it was: it is no longer this one.
            "source": "",
            "files": files,
            "graph_sha256": files[MODEL],
            "weights_sha256": files.get(f"{MODEL}.data", ""),
            "cases": cases,
            "warnings": (*bundle.manifest.warnings, note),
        }
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", "utf-8")
