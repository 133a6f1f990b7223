"""Sessions of ONNX Runtime, made in one way everywhere: here, in the trial process, in profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# onnxruntime 1.32 dies with a segmentation fault while it creates a session of an fp16 graph with
# Transpose(1,0,2) -> MatMul(constant); without this layout pass, which is for convolutions, it
# does not, and attention graphs lose nothing.
DISABLED_OPTIMIZERS = ["NchwcTransformer"]
_ERRORS_ONLY = 3


def create_session(
    graph: Path | bytes,
    weights_folder: Path | None,
    provider: str,
    disabled_optimizers: Sequence[str] = (),
    *,
    provider_options: Mapping[str, str] | None = None,
    threads: int | None = None,
    profile_prefix: str = "",
) -> Any:
    """Creates a session on one provider, without trying another where that fails.

    Args:
        graph: The file, or its content.
        weights_folder: Where the external weights of a content lie.
        provider: The provider.
        disabled_optimizers: Optimizers to do without.
        provider_options: The provider's own options.
        threads: How many threads compute one node; None leaves it to ONNX Runtime.
        profile_prefix: Where to write a profile of every run; "" for none.

    Raises:
        Exception: Whatever onnxruntime raises.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    # Workers that spin after a run slow whatever runs next on their cores, other engines included.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if isinstance(graph, bytes) and weights_folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(weights_folder)
        )
    if threads is not None:
        options.intra_op_num_threads = threads
    if profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    return onnxruntime.InferenceSession(
        graph,
        options,
        providers=[(provider, dict(provider_options or {}))],
        disabled_optimizers=list(disabled_optimizers),
        enable_fallback=0,
    )


def load_cuda_libraries(provider: str) -> None:
    """Finds CUDA's libraries where pip put them, before the provider looks for them itself."""
    if provider == "CPUExecutionProvider":
        return
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
