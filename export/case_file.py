"""One case, computed and written: its inputs, its float64 result, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.axes import Axis
from attnport.export.arrays import save_arrays
from attnport.export.cases import CasePlan
from attnport.export.records import CaseRecord, TensorSpec

if TYPE_CHECKING:
    from attnport.export.reference import Reference

INPUT, REFERENCE = "input.", "reference."


def write_case(
    folder: Path,
    file: str,
    plan: CasePlan,
    inputs: Mapping[str, np.ndarray],
    reference: Reference,
    specs: Sequence[TensorSpec],
    axes: Mapping[str, Axis],
    *,
    with_properties: bool,
) -> CaseRecord:
    """Computes the reference of some inputs and writes both.

    Args:
        folder: Where the file goes.
        file: Its name, relative to the folder.
        plan: The case's name, sizes and seed.
        inputs: In the bundle's dtypes.
        reference: Of the module.
        specs: The inputs' forms.
        axes: The axes.
        with_properties: Whether to find out which properties the float64 module has here.

    Raises:
        ModuleError: If the module itself fails, or is not deterministic.
    """
    perturbed = [spec.name for spec in specs if spec.role in ("activation", "bias", "cache")]
    computed = reference.compute(inputs, perturbed, plan.seed)
    held: tuple[str, ...] = ()
    if with_properties:
        held = reference.properties(inputs, computed.arrays, specs, axes, plan.sizes, plan.seed)
    arrays = {INPUT + name: array for name, array in inputs.items()}
    arrays |= {REFERENCE + name: array for name, array in computed.arrays.items()}
    save_arrays(arrays, folder / file)
    return CaseRecord(
        name=plan.name,
        file=file,
        seed=plan.seed,
        sizes=plan.sizes,
        mask=plan.mask,
        magnitude=plan.magnitude,
        fill=plan.fill,
        references=computed.references,
        properties=held,
    )
