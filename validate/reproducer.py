"""What a failure leaves behind: the graph or plan, the inputs, and one script that shows it again.

The script needs numpy, safetensors and the engine's own library: not attnport, and not torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from attnport.engines.plan import EnginePlan
from attnport.errors import UsageError
from attnport.export.arrays import save_arrays
from attnport.export.bundle import MODEL, Bundle, Case
from attnport.validate.bound import bound
from attnport.validate.finding import Finding

# Beyond this the failures say the same, and a wrong engine fails hundreds of cases.
MOST = 10

SCRIPT = "reproduce.py"
_DATA = ".data"


class Reproducers:
    """Writes folders for failed Findings, the first few of each engine.

    Args:
        folder: Where they go; None for nowhere.
        bundle: What was judged.
    """

    def __init__(self, folder: Path | None, bundle: Bundle) -> None:
        self._folder, self._bundle = folder, bundle
        self._counts: dict[str, int] = {}

    def keep(self, finding: Finding, plan: EnginePlan | None, case: Case | None) -> Finding:
        """Writes a folder if the Finding failed; returns it with the folder's name.

        Args:
            finding: What was found.
            plan: What the engine ran; None where it ran the module.
            case: The inputs; None for what is read from a plan or a graph.

        Raises:
            UsageError: If the folder cannot be written.
        """
        if self._folder is None or finding.status != "failed":
            return finding
        count = self._counts.get(finding.engine, 0)
        if count >= MOST:
            return finding
        self._counts[finding.engine] = count + 1
        parts = (finding.model, finding.dtype, finding.engine, finding.check, finding.case)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(parts))
        target = self._folder / name
        try:
            self._write(target, finding, plan, case)
        except OSError as err:
            raise UsageError(
                f"the reproducer cannot be written to {target} ({err.strerror}): name another "
                "folder"
            ) from err
        numbers = {**finding.numbers, "reproducer": str(target)}
        return finding.model_copy(update={"numbers": numbers})

    def _write(
        self, target: Path, finding: Finding, plan: EnginePlan | None, case: Case | None
    ) -> None:
        if target.exists():
            shutil.rmtree(target)
        target.mkdir(parents=True)
        for file in _files(self._bundle, plan):
            _link_or_copy(file, target / file.name)
        (target / "finding.json").write_text(finding.model_dump_json(indent=2) + "\n", "utf-8")
        if case is not None:
            save_arrays(case.inputs, target / "inputs.safetensors")
            save_arrays(case.references, target / "reference.safetensors")
        script = _script(self._bundle, finding, case, _graph(plan))
        (target / SCRIPT).write_text(script, "utf-8")


def _files(bundle: Bundle, plan: EnginePlan | None) -> list[Path]:
    files = [bundle.model_path, bundle.path / f"{MODEL}{_DATA}"]
    if plan is not None and plan.path is not None and plan.path != bundle.model_path:
        files += [plan.path, *([plan.log_path] if plan.log_path else [])]
    return [file for file in files if file.is_file()]


def _link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the file system has them: ten reproducers then take the room of one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _bounds(bundle: Bundle, case: Case) -> Mapping[str, tuple[float, float]]:
    found = {}
    for spec in bundle.manifest.outputs:
        record = case.record.references.get(spec.name)
        if record is not None:
            limit = bound(record, spec.dtype)
            found[spec.name] = (limit.max, limit.mean)
    return found


def _graph(plan: EnginePlan | None) -> str:
    """The file that the engine loads: the bundle's graph, or what it was lowered to."""
    lowered = plan is not None and plan.path is not None and plan.path.suffix == ".onnx"
    return plan.path.name if lowered and plan and plan.path else MODEL


def _script(bundle: Bundle, finding: Finding, case: Case | None, graph: str) -> str:
    head = _HEAD.format(
        what=f"{finding.check} of {finding.case} on {finding.engine}, {finding.model} "
        f"{finding.dtype}",
        message=finding.message.replace("\\", "\\\\").replace('"""', "'''"),
    )
    if case is None or finding.engine.startswith("torch-"):
        return head + _SHOW.format(bundle=str(bundle.path), engine=finding.engine)
    if not finding.engine.startswith("ort-"):
        return head + _PLAN.format(bundle=str(bundle.path), engine=finding.engine)
    return head + _RUN.format(
        bounds=dict(_bounds(bundle, case)), provider=_provider(finding), graph=graph
    )


def _provider(finding: Finding) -> str:
    from attnport.engines.kinds import engine_kind

    return engine_kind(finding.engine).provider


_HEAD = '''"""{what}

{message}

`python reproduce.py` exits 1 where it happens again. All of finding.json is what was found.
"""

'''
_RUN = """\
import pathlib
import sys

import numpy as np
import onnxruntime
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).parent
BOUNDS = {bounds!r}  # output: (largest error, mean error)

session = onnxruntime.InferenceSession(HERE / "{graph}", providers=["{provider}"])
inputs, reference = load_file(HERE / "inputs.safetensors"), load_file(HERE / "reference.safetensors")
outputs = dict(zip(BOUNDS, session.run(list(BOUNDS), inputs)))
wrong = False
for name, (most, mean) in BOUNDS.items():
    if outputs[name].shape != reference[name].shape:
        print(name, "has shape", outputs[name].shape, "and the module", reference[name].shape)
        wrong = True
        continue
    error = np.abs(outputs[name].astype(np.float64) - reference[name])
    bad = not (error.max() <= most and error.mean() <= mean)
    print(f"{{name}}: largest error {{error.max():.3g}} (bound {{most:.3g}}), "
          f"mean {{error.mean():.3g}} (bound {{mean:.3g}}){{' WRONG' if bad else ''}}")
    wrong = wrong or bad
sys.exit(wrong)
"""
_SHOW = """\
import subprocess
import sys

sys.exit(subprocess.call(["attnport", "validate", {bundle!r}, "--engine", {engine!r}]))
"""
_PLAN = _SHOW
