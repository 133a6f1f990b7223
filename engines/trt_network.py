"""From an ONNX file to a serialized plan, with TensorRT or TensorRT for RTX.

The two are one interface under two names; what only one of them has is asked for by name. Where
TensorRT says no, `StoppedError` carries its reason.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from attnport.engines.build_options import BuildOptions
from attnport.engines.trt_request import BuildFailure, BuildRequest
from attnport.export.shard.files import ranks_of

_MAX_ERRORS_SHOWN = 3
_CANCELLED = "BuildCanceled"
_BAD_TIMING_CACHE = "Failed to deserialize timing cache"


class StoppedError(Exception):
    """Ends the build with a failure."""

    def __init__(self, failure: BuildFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def build_plan(trt: Any, logger: Any, request: BuildRequest, monitor: Any) -> Any:
    """Parses and builds; gives TensorRT's memory of the plan, which is not copied."""
    builder = trt.Builder(logger)
    # Precision is the graph's in every version that this supports: since TensorRT 11, and in
    # TensorRT for RTX, it is so without the flag too.
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    if not _parse(parser, request):
        raise StoppedError(_parse_failure(parser, logger))
    _allow_decomposition(trt, network)
    config = builder.create_builder_config()
    # Only DETAILED makes the builder log its table of layers.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.progress_monitor = monitor
    _add_profiles(builder, config, logger, request)
    cache = _apply_options(trt, config, logger, request.options)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        reason = _reasons(logger, "no reason was given")
        stage = "cancelled" if _CANCELLED in reason else "build"
        raise StoppedError(BuildFailure.model_validate({"stage": stage, "message": reason}))
    if cache is not None and request.options.timing_cache is not None:
        _write_whole(request.options.timing_cache, memoryview(cache.serialize()))
    return plan


def _parse(parser: Any, request: BuildRequest) -> bool:
    ranks = ranks_of(request.model_path)
    if request.graph_path is None and ranks is None:
        return bool(parser.parse_from_file(str(request.model_path)))
    content = (request.graph_path or request.model_path).read_bytes()
    if ranks is not None:
        from attnport.export.shard.collectives import with_collectives

        content = with_collectives(content, ranks)
    # The path is where the parser looks for external weights.
    return bool(parser.parse(content, str(request.model_path)))


def inspect_plan(trt: Any, logger: Any, plan: Any) -> tuple[str, ...]:
    """What the engine inspector says of each profile, as JSON. Unrun on a GPU; needs one."""
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    if engine is None:
        return ()
    said = []
    for profile in range(engine.num_optimization_profiles):
        inspector = engine.create_engine_inspector()
        context = engine.create_execution_context()
        context.set_optimization_profile_async(profile, 0)
        inspector.execution_context = context
        said.append(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    return tuple(said)


def _add_profiles(builder: Any, config: Any, logger: Any, request: BuildRequest) -> None:
    for index, ranges in enumerate(request.profiles):
        profile = builder.create_optimization_profile()
        for name, shape in ranges.items():
            profile.set_shape(name, shape.min, shape.opt, shape.max)
        # -1 is all that says so where a profile is refused (TensorRT for RTX 1.7.1).
        if config.add_optimization_profile(profile) == -1:
            message = _reasons(logger, f"profile {index} is refused, without a reason")
            raise StoppedError(BuildFailure(stage="profile", message=message))


def _apply_options(trt: Any, config: Any, logger: Any, options: BuildOptions) -> Any:
    """Hands the options to TensorRT; gives the timing cache, if one was asked for."""
    if options.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    for asked, names in (
        (options.version_compatible, ("VERSION_COMPATIBLE",)),
        (options.weight_stripped, ("STRIP_PLAN",)),
        # The docs of TensorRT 11.3 prefer it to REFIT, which may drop a GEMM's bias.
        (options.refittable, ("REFIT_IDENTICAL", "REFIT")),
    ):
        if asked:
            _set_flag(trt, config, names)
    _set_targets(trt, config, options.targets)
    return _set_timing_cache(trt, config, logger, options.timing_cache)


def _set_flag(trt: Any, config: Any, names: tuple[str, ...]) -> None:
    found = next((name for name in names if hasattr(trt.BuilderFlag, name)), None)
    if found is None:
        message = f"{trt.__name__} {trt.__version__} has no builder flag {names[0]}"
        raise StoppedError(BuildFailure(stage="option", message=message))
    config.set_flag(getattr(trt.BuilderFlag, found))


def _set_targets(trt: Any, config: Any, targets: tuple[int, ...]) -> None:
    if not targets:
        return
    if not hasattr(trt, "ComputeCapability"):
        message = f"{trt.__name__} builds for the GPU that it runs on, and takes no targets"
        raise StoppedError(BuildFailure(stage="option", message=message))
    config.num_compute_capabilities = len(targets)
    for index, target in enumerate(targets):
        found = getattr(trt.ComputeCapability, f"SM{target}", None)
        if found is None or not config.set_compute_capability(found, index):
            known = sorted(
                int(name[2:]) for name in dir(trt.ComputeCapability) if name.startswith("SM")
            )
            message = (
                f"{trt.__name__} {trt.__version__} has no target for compute capability "
                f"{target // 10}.{target % 10}; it has {', '.join(map(str, known))}"
            )
            raise StoppedError(BuildFailure(stage="option", message=message))


def _set_timing_cache(trt: Any, config: Any, logger: Any, path: Path | None) -> Any:
    if path is None:
        return None
    if hasattr(trt, "ComputeCapability"):
        # It says so itself since 1.2, and takes any file for a cache, the user's source included.
        message = (
            f"{trt.__name__} times no kernels while it builds, so a timing cache does nothing"
        )
        raise StoppedError(BuildFailure(stage="option", message=message))
    content = path.read_bytes() if path.exists() else b""
    cache = config.create_timing_cache(content)
    damaged = any(_BAD_TIMING_CACHE in warning for warning in logger.warnings)
    if cache is None or damaged or not config.set_timing_cache(cache, ignore_mismatch=False):
        message = (
            f"the timing cache {path} is damaged, none, or of another version or device, and would "
            "be overwritten"
        )
        raise StoppedError(BuildFailure(stage="option", message=message))
    return cache


def _write_whole(path: Path, content: memoryview) -> None:
    beside = path.with_name(f".{path.name}.writing")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    beside.write_bytes(content)
    beside.replace(path)


def _parse_failure(parser: Any, logger: Any) -> BuildFailure:
    if parser.num_errors == 0:
        return BuildFailure(stage="parse", message=_reasons(logger, "no reason was given"))
    error = parser.get_error(0)
    node, operator = error.node_name(), error.node_operator()
    if not node:
        # Errors found in the parser's helpers name no node; the last one that it began is it.
        node, _, rest = logger.last_node.partition(" [")
        operator = rest.rstrip("]")
    return BuildFailure(stage="parse", message=error.desc(), node=node, operator=operator)


def _reasons(logger: Any, otherwise: str) -> str:
    return "; ".join(logger.errors[:_MAX_ERRORS_SHOWN]) or otherwise


def _allow_decomposition(trt: Any, network: Any) -> None:
    """Lets attentions that no fused kernel takes be built from simpler kernels.

    Otherwise TensorRT refuses `Attention` in fp32 and with head sizes out of 9..256. A layer comes
    back from the network as a plain ILayer; changing its class is what gives its attention
    (TensorRT for RTX 1.7.1). The ONNX attribute TRT_decomposable would do it too, and make the
    file unreadable for onnx.checker and ONNX Runtime.
    """
    kind = getattr(trt.LayerType, "ATTENTION_INPUT", None)
    if kind is None:
        return
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == kind:
            layer.__class__ = trt.IAttentionInputLayer
            layer.attention.decomposable = True
