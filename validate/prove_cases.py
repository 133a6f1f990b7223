"""Adds to what engines are judged with the cases that an extent asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.errors import ModuleError
from attnport.validate.extent import Extent
from attnport.validate.finding import Finding, Subject
from attnport.validate.progress import Progress, Steps
from attnport.validate.prove_engine import Bench

if TYPE_CHECKING:
    import torch


def with_further_cases(
    bench: Bench,
    module: torch.nn.Module,
    extent: Extent,
    folder: Path,
    kinds: int,
    progress: Progress | None,
) -> tuple[Bench, Steps, list[Finding]]:
    """Makes the cases; a module at fault is a Finding, not an exception.

    Args:
        bench: With the shipped cases.
        module: The module.
        extent: What is asked for.
        folder: An empty one, for the cases.
        kinds: How many engines will run them.
        progress: Called with what is being done and the fraction that is done.

    Raises:
        InputError: If a case of the user's own does not fit.
        UsageError: If the budget does not hold the module's weights.
    """
    from attnport.validate.further_cases import make_cases

    tell = progress or (lambda what, fraction: None)
    faults: list[Finding] = []
    try:
        made = make_cases(
            bench.bundle, module, extent, folder, lambda name: tell(f"reference: {name}", 0.0)
        )
    except ModuleError as err:
        subject = Subject.of(bench.bundle)
        faults.append(subject.finding("module", "cases", "failed", str(err), required=True))
    else:
        bench = replace(bench, cases=[*bench.cases, *made.cases], left_out=made.left_out)
    steps = Steps(progress, kinds * (1 + len(bench.cases)) + 1)
    return replace(bench, tell=steps.begin), steps, faults
