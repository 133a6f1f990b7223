"""Whether this machine can run a plan, told before the plan is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attnport.engines import devices, libraries
from attnport.engines.kinds import engine_kind
from attnport.engines.plan import EnginePlan
from attnport.engines.plan_file import load_plan
from attnport.errors import BundleError
from attnport.export.bundle import Bundle
from attnport.export.records import Record

# TensorRT for RTX 1.7 without targets builds for these, and newer; its documentation.
DEFAULT_TARGETS = (80, 86, 89, 120)
_LEAST_DEFAULT_TARGET = 80


class PlanFact(Record):
    """One thing that running a plan needs.

    Attributes:
        name: "file", "library", "version", "device", "target" or "bundle".
        status: "passed", "failed" (it will not run), or "not run" (this machine cannot tell).
        message: What was found, and what to do where it did not pass.
    """

    name: str
    status: Literal["passed", "failed", "not run"]
    message: str


class PlanCheck(Record):
    """What `attnport check` says of a plan.

    Attributes:
        plan: The plan.
        facts: What was looked at, in order.
    """

    plan: EnginePlan
    facts: tuple[PlanFact, ...]

    @property
    def verdict(self) -> Literal["runs here", "does not run here", "cannot be told here"]:
        """Failed outranks not run."""
        statuses = [fact.status for fact in self.facts]
        if "failed" in statuses:
            return "does not run here"
        return "cannot be told here" if "not run" in statuses else "runs here"

    @property
    def exit_code(self) -> int:
        return {"runs here": 0, "does not run here": 1, "cannot be told here": 3}[self.verdict]


def check_plan(path: str | Path, *, rehash: bool = False) -> PlanCheck:
    """Compares a plan's record with this machine; TensorRT never sees the plan.

    Args:
        path: The `.plan`, or the `.plan.json` beside it.
        rehash: Whether to read the plan again where it did not change since it was hashed last.

    Raises:
        BundleError: If the plan or its record is missing or damaged, or they do not belong
            together.
    """
    plan = load_plan(path, rehash=rehash)
    if plan.path is None or plan.plan_sha256 is None:
        raise BundleError(f"{path} is the record of an engine that has no plan: nothing to check")
    facts = [PlanFact(name="file", status="passed", message="whole, and the one of its record")]
    library = _library(plan)
    facts.append(library)
    if library.status == "passed":
        facts.append(_version(plan))
    facts.append(_device(plan))
    facts.append(_bundle(plan))
    return PlanCheck(plan=plan, facts=tuple(facts))


def _library(plan: EnginePlan) -> PlanFact:
    name = engine_kind(plan.kind).library
    why = libraries.why_missing(name)
    if why:
        remedy = libraries.install_command(name)
        return PlanFact(name="library", status="not run", message=f"{why}: `{remedy}`")
    return PlanFact(name="library", status="passed", message=f"{name} loads")


def _version(plan: EnginePlan) -> PlanFact:
    name = engine_kind(plan.kind).library
    built, here = plan.versions.get(name, "an unknown version"), libraries.version(name)
    if built == here:
        return PlanFact(name="version", status="passed", message=f"built by {name} {here}")
    if plan.options.version_compatible and _numbers(built) <= _numbers(here):
        message = f"built by {name} {built} for that and later versions; here is {here}"
        return PlanFact(name="version", status="passed", message=message)
    return PlanFact(
        name="version",
        status="failed",
        message=(
            f"built by {name} {built}, and here is {here}, which does not take it: build again "
            f"here, or install {name} {built}"
        ),
    )


def _device(plan: EnginePlan) -> PlanFact:
    why = devices.why_no_cuda()
    if why:
        return PlanFact(
            name="device", status="not run", message=f"{why}: check it on the machine that runs it"
        )
    device = devices.cuda_devices()[0]
    major, minor = device.compute_capability
    here, named = major * 10 + minor, f"{device.name} (compute capability {major}.{minor})"
    if plan.device:
        return _same_device(plan.device, named)
    targets = plan.options.targets
    if here in (targets or DEFAULT_TARGETS) or (not targets and here >= max(DEFAULT_TARGETS)):
        return PlanFact(name="device", status="passed", message=f"built for {named}, too")
    built = ", ".join(map(str, targets or DEFAULT_TARGETS))
    if not targets and here > _LEAST_DEFAULT_TARGET:
        # 9.0 (H100, H200) and 10.0: TensorRT for RTX 1.7.1 has no name for them, and whether it
        # compiles for them all the same was never tried.
        message = (
            f"TensorRT for RTX names no target for {named} (it was built for {built}): open it to "
            "see, or use tensorrt"
        )
        return PlanFact(name="device", status="not run", message=message)
    message = f"built for {built}, and here is {named}: build again with --sm {here}"
    return PlanFact(name="device", status="failed", message=message)


def _same_device(built: str, here: str) -> PlanFact:
    if built == here:
        return PlanFact(name="device", status="passed", message=f"built on {here}")
    message = f"built on {built}, and here is {here}: build again on this machine"
    return PlanFact(name="device", status="failed", message=message)


def _bundle(plan: EnginePlan) -> PlanFact:
    """Not needed to run it, but to check and prove its numbers."""
    try:
        bundle = Bundle.load(plan.bundle_path, verify=False)
    except BundleError:
        message = (
            f"its bundle is not at {plan.bundle_path}: copy that along, which holds the inputs' "
            "ranges and the cases that prove it"
        )
        return PlanFact(name="bundle", status="failed", message=message)
    if bundle.hash != plan.bundle_hash:
        message = f"{bundle.path} was exported again since: build again"
        return PlanFact(name="bundle", status="failed", message=message)
    return PlanFact(name="bundle", status="passed", message=f"built from {bundle.path}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
