"""Triton's config for a bundle: dims, types and profile come from its axes, warm-up from its cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnport.engines.plan import EnginePlan
from attnport.engines.plan_file import load_plan, plan_path
from attnport.engines.profiles import profile_from_axes
from attnport.errors import BundleError, UsageError
from attnport.export.bundle import MODEL, Bundle
from attnport.export.records import CaseRecord, TensorSpec
from attnport.export.shard.files import ranks_of
from attnport.serve.batch_axis import BATCH
from attnport.serve.repository.config import (
    Backend,
    Device,
    ModelConfig,
    TensorConfig,
    Warmup,
    WarmupInput,
)
from attnport.serve.repository.several_devices import over_devices

PLAN = "model.plan"
_FILES: dict[Backend, str] = {"onnxruntime": MODEL, "tensorrt": PLAN, "python": "model.py"}
_WARMUPS = 3


@dataclass(frozen=True)
class RepositoryOptions:
    """How Triton is to run the models.

    Attributes:
        backend: Which of its backends.
        device: Where; None takes the GPU where the backend or the accelerator needs one.
        accelerator: Whether ONNX Runtime is to use TensorRT.
        instances: How many copies compute at a time.
        max_batch: The most rows of a batch; None takes the bundle's axis, 0 turns batching off.
        preferred_batches: Sizes at which a batch need not wait any longer.
        queue_delay_us: How long a request may wait for company.
        threads: CPU threads of one copy; None leaves it to ONNX Runtime.
    """

    backend: Backend = "onnxruntime"
    device: Device | None = None
    accelerator: bool = False
    instances: int = 1
    max_batch: int | None = None
    preferred_batches: tuple[int, ...] = ()
    queue_delay_us: int = 0
    threads: int | None = None


def config_from_bundle(
    bundle: Bundle, name: str, versions: Sequence[int], options: RepositoryOptions
) -> tuple[ModelConfig, dict[str, bytes]]:
    """A config, and the content of the files in warmup/ that it names.

    Raises:
        UsageError: If the backend has no such dtype.
        BundleError: If a case, or the plan that is to be served, cannot be read.
    """
    manifest = bundle.manifest
    tensors = (*manifest.inputs, *manifest.outputs)
    if options.backend == "python" and any(spec.dtype == "bfloat16" for spec in tensors):
        raise UsageError(
            "Triton's python backend has no bfloat16: export in float32 or float16, or choose "
            "another --backend"
        )
    rows = _max_batch(bundle, options)
    warmups, files = _warmups(bundle, rows)
    uses_gpu = options.backend == "tensorrt" or options.accelerator
    config = ModelConfig(
        name=name,
        backend=options.backend,
        file=_FILES[options.backend],
        max_batch_size=rows,
        inputs=tuple(_tensor(spec, rows) for spec in manifest.inputs),
        outputs=tuple(_tensor(spec, rows) for spec in manifest.outputs),
        versions=tuple(versions),
        instances=options.instances,
        device=options.device or ("gpu" if uses_gpu else "cpu"),
        profiles=_profiles(bundle) if options.backend == "tensorrt" else (),
        queue_delay_us=options.queue_delay_us if rows > 0 else None,
        preferred_batch_sizes=options.preferred_batches,
        warmups=warmups,
        accelerator=_accelerator(bundle) if options.accelerator else None,
        parameters=_parameters(options),
    )
    return over_devices(config, bundle), files


def triton_plan(bundle: Bundle) -> EnginePlan:
    """The plan of TensorRT proper that lies in the bundle.

    Raises:
        BundleError: If there is none, or it is not whole, or of another export.
    """
    plan = load_plan(plan_path(bundle.path, "tensorrt"))
    if plan.bundle_hash != bundle.hash or plan.path is None:
        raise BundleError(
            f"the plan in {bundle.path} was built from another export: build it again with "
            f"`attnport build {bundle.path} --engine tensorrt`"
        )
    return plan


def _profiles(bundle: Bundle) -> tuple[int, ...]:
    return tuple(range(max(len(triton_plan(bundle).profiles), 1)))


def _max_batch(bundle: Bundle, options: RepositoryOptions) -> int:
    """Triton's batch is the first axis of every tensor, and leaves another one over."""
    if ranks_of(bundle.model_path) is not None:
        return 0  # as Triton's page on several devices has it
    tensors = (*bundle.manifest.inputs, *bundle.manifest.outputs)
    fits = all(
        len(spec.shape) > 1 and spec.shape[0] == BATCH and BATCH not in spec.shape[1:]
        for spec in tensors
    )
    if BATCH not in bundle.axes or not fits:
        if options.max_batch:
            raise UsageError(
                f"{bundle.path} cannot be batched by Triton: not every tensor has the axis "
                f"{BATCH!r} first and another one, so leave --max-batch out"
            )
        return 0
    axis = bundle.axes[BATCH]
    if options.max_batch is None:
        return axis.max
    if options.max_batch > axis.max:
        raise UsageError(
            f"--max-batch {options.max_batch} exceeds the axis {BATCH!r} of {bundle.path}, which "
            f"ends at {axis.max}: give at most that"
        )
    return options.max_batch


def _tensor(spec: TensorSpec, rows: int) -> TensorConfig:
    sizes = [dim if isinstance(dim, int) else -1 for dim in spec.shape]
    return TensorConfig(spec.name, spec.dtype, tuple(sizes[1:] if rows else sizes))


def _warmups(bundle: Bundle, rows: int) -> tuple[tuple[Warmup, ...], dict[str, bytes]]:
    """The smallest cases: with a batch, each sends its first row as often as it has rows."""
    cases = sorted(
        bundle.manifest.cases, key=lambda record: int(np.prod([*record.sizes.values()]))
    )
    warmups = []
    files: dict[str, bytes] = {}
    for record in cases[:_WARMUPS]:
        inputs = {}
        for spec in bundle.manifest.inputs:
            array = bundle.load_case(record.name).inputs[spec.name]
            array = array[0] if rows else array
            file = f"{record.name}.{spec.name}"
            files[file] = np.ascontiguousarray(array).tobytes()
            inputs[spec.name] = WarmupInput(spec.dtype, array.shape, file)
        warmups.append(Warmup(record.name, _warmup_rows(record, rows), inputs))
    return tuple(warmups), files


def _warmup_rows(record: CaseRecord, rows: int) -> int:
    return min(record.sizes.get(BATCH, 1), rows) if rows else 1


def _accelerator(bundle: Bundle) -> dict[str, str]:
    """ONNX Runtime's TensorRT provider with the bundle's own ranges as its profile.

    Keys as in the README of triton-inference-server/onnxruntime_backend.
    """
    profile = profile_from_axes(bundle.manifest.inputs, bundle.axes)
    shapes = {
        f"trt_profile_{which}_shapes": ",".join(
            f"{name}:{'x'.join(map(str, getattr(shape, which)))}"
            for name, shape in profile.items()
        )
        for which in ("min", "opt", "max")
    }
    precision = "FP16" if bundle.dtype == "float16" else "FP32"
    # Without a cache the plan is built anew at each start, for each instance.
    cache = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": f"/tmp/{bundle.hash[:12]}"}
    return {"precision_mode": precision, **cache, **(shapes if profile else {})}


def _parameters(options: RepositoryOptions) -> Mapping[str, str]:
    if options.backend == "tensorrt" or options.threads is None:
        return {}
    return {"intra_op_thread_count": str(options.threads)}
