"""Builds a TensorRT plan in a child process, and puts it in its place only when it is whole."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from attnport.engines.fusion import fusion_report
from attnport.engines.graph_facts import GraphFacts, read_graph_facts
from attnport.engines.layer_table import parse_layer_tables
from attnport.engines.memory import memory_warning
from attnport.engines.plan import EnginePlan, FusionReport
from attnport.engines.plan_file import log_path, plan_path, record_path, save_record
from attnport.engines.profiles import profile_from_axes
from attnport.engines.trt_request import (
    LOG,
    PLAN,
    REQUEST,
    RESULT,
    BuildFailure,
    BuildRequest,
    BuildResult,
    ShapeRange,
)
from attnport.errors import BuildError
from attnport.export.bundle import Bundle, file_sha256

Progress = Callable[[str, float], None]
Library = Literal["tensorrt", "tensorrt_rtx"]

_LOG_TAIL_BYTES = 4000


def build_trt_plan(
    bundle: Bundle, kind: str, library: Library, out: Path, progress: Progress
) -> EnginePlan:
    """Builds `model.<kind>.plan`, its record and its log in `out`.

    Raises:
        BuildError: If TensorRT refuses the graph or dies; nothing is left behind.
        GraphError: If the file is not a whole ONNX file.
    """
    facts = read_graph_facts(bundle.model_path)
    warning = memory_warning(bundle.model_path)
    if warning:
        progress(warning, 0.0)
    out.mkdir(parents=True, exist_ok=True)
    with _workspace(out, kind) as folder:
        request = BuildRequest(
            library=library,
            model_path=bundle.model_path.resolve(),
            profiles=_profiles(bundle),
        )
        (folder / REQUEST).write_text(request.model_dump_json(), "utf-8")
        code = _run_child(folder, progress)
        result = _read_result(bundle, kind, folder, code)
        plan = EnginePlan(
            kind=kind,
            model=bundle.name,
            bundle_path=bundle.path,
            bundle_hash=bundle.hash,
            dtype=bundle.dtype,
            path=plan_path(out, kind),
            plan_sha256=file_sha256(folder / PLAN),
            versions={library: result.library_version},
            build_seconds=result.build_seconds,
            peak_memory_bytes=result.peak_memory_bytes,
            fusion=_read_fusion(bundle, facts, result, folder / PLAN),
            log_path=log_path(plan_path(out, kind)),
            warnings=(warning,) if warning else (),
        )
        _put_in_place(plan, folder, plan_path(out, kind))
    progress("done", 1.0)
    return plan


def _profiles(bundle: Bundle) -> tuple[dict[str, ShapeRange], ...]:
    profile = profile_from_axes(bundle.manifest.inputs, bundle.axes)
    return (profile,) if profile else ()


@contextlib.contextmanager
def _workspace(out: Path, kind: str) -> Iterator[Path]:
    """A hidden folder beside the result, on the same disk so that files can be renamed into place."""
    folder = Path(tempfile.mkdtemp(prefix=f".{kind}.", suffix=".building", dir=out.resolve()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_child(folder: Path, progress: Progress) -> int:
    """Runs the builder, hands on its progress, and returns its exit status."""
    command = [sys.executable, "-P", "-m", "attnport.engines.trt_child", str(folder / REQUEST)]
    with (folder / LOG).open("wb") as log:
        # The child keeps reading stdin: its end is how it learns that this process is gone.
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_child_environment(),
            encoding="utf-8",
        )
    with child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                fraction, _, phase = line.rstrip("\n").partition("\t")
                progress(phase, float(fraction))
        except BaseException:
            child.kill()
            raise
        return child.wait()


def _child_environment() -> dict[str, str]:
    """The environment with the import path of this process, for an attnport that is not installed."""
    import attnport

    home = str(Path(attnport.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([home, path] if path else [home])}


def _read_result(bundle: Bundle, kind: str, folder: Path, code: int) -> BuildResult:
    if code != 0:
        raise _with_log(_death(bundle, kind, code), folder)
    result = BuildResult.model_validate_json((folder / RESULT).read_text("utf-8"))
    if result.failure is not None:
        raise _with_log(_refusal(bundle, kind, result.failure), folder)
    return result


def _death(bundle: Bundle, kind: str, code: int) -> BuildError:
    if code > 0:
        return BuildError(
            f"the {kind} builder stopped with exit status {code} while building {bundle.name!r}: "
            "`--verbose` shows its last messages"
        )
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        remedy = "the system may have run out of memory: build on a machine with more"
    else:
        remedy = (
            "this is a fault of TensorRT that the graph provokes, such as two masks one after the "
            "other: let attnport write the graph, or combine the masks before the scores"
        )
    return BuildError(
        f"the {kind} builder died of {name} while building {bundle.name!r}: {remedy}"
    )


def _refusal(bundle: Bundle, kind: str, failure: BuildFailure) -> BuildError:
    where = f" at node {failure.node!r} ({failure.operator})" if failure.node else ""
    remedy = {
        "parse": "write that part of the model with operators that TensorRT has",
        "profile": "give axes with min <= opt <= max",
        "build": "`--verbose` shows its last messages",
    }[failure.stage]
    return BuildError(
        f"the {kind} builder refuses {bundle.name!r}{where}: {failure.message}: {remedy}"
    )


def _with_log(error: BuildError, folder: Path) -> BuildError:
    tail = (folder / LOG).read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
    error.add_note(f"The builder's last messages:\n{tail}")
    return error


def _read_fusion(
    bundle: Bundle, facts: GraphFacts, result: BuildResult, plan: Path
) -> FusionReport:
    with plan.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return fusion_report(
            bundle.manifest.attentions,
            bundle.manifest.projection_groups,
            bundle.dtype,
            parse_layer_tables(result.layer_tables),
            data,
            facts,
        )


def _put_in_place(plan: EnginePlan, folder: Path, path: Path) -> None:
    """Renames the three files into place, the record last: without it a plan is not one."""
    save_record(plan, folder / record_path(path).name, home=path.parent)
    record_path(path).unlink(missing_ok=True)
    (folder / PLAN).replace(path)
    (folder / LOG).replace(log_path(path))
    (folder / record_path(path).name).replace(record_path(path))
