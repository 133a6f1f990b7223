"""The bundle's graph in ONNX Runtime, on the provider asked for and on no other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnport.engines.engine import Engine
from attnport.engines.feeds import compile_check
from attnport.engines.kinds import EngineKind
from attnport.errors import (
    EngineUnavailableError,
    GraphError,
    UnsupportedDtypeError,
    UsageError,
)
from attnport.export.bundle import Bundle

_UNIMPLEMENTED = re.compile(r"implementation for (\w+)\(\d+\) node with name '([^']*)'")
# onnxruntime 1.32 dies with a segmentation fault while it creates a session of an fp16 graph with
# Transpose(1,0,2) -> MatMul(constant); without this layout pass, which is for convolutions, it
# does not, and attention graphs lose nothing.
_DISABLED_OPTIMIZERS = ["NchwcTransformer"]
_ERRORS_ONLY = 3


class OrtEngine(Engine):
    """An ONNX Runtime session on one provider.

    Args:
        bundle: What to run.
        kind: The kind, which names the provider.
        threads: How many threads compute one node; None leaves it to ONNX Runtime.

    Raises:
        UnsupportedDtypeError: If the provider has no kernel for an operator in the graph's dtype.
        EngineUnavailableError: If the provider was replaced by another.
        GraphError: If ONNX Runtime refuses the graph.
    """

    def __init__(self, bundle: Bundle, kind: EngineKind, *, threads: int | None = None) -> None:
        self.kind = kind.name
        self.inputs = bundle.manifest.inputs
        self.outputs = bundle.manifest.outputs
        self._check = compile_check(self.inputs, bundle.axes)
        self._output_names = [output.name for output in self.outputs]
        self._session: Any = _create_session(bundle, kind, threads)
        _require_provider(self._session, kind)
        _require_arrays(bundle, kind)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        checked = self._check(feeds)
        session = self._session  # another thread may close the engine meanwhile
        if session is None:
            raise UsageError(f"this {self.kind} engine was closed: open it again")
        try:
            results = session.run(self._output_names, checked)
        except Exception as err:  # onnxruntime's errors derive from Exception alone
            raise GraphError(
                f"onnxruntime failed while running the graph ({_first_line(err)}): the graph does "
                "not work for these sizes, so export again or narrow its axes"
            ) from err
        return dict(zip(self._output_names, results, strict=True))

    def placement(self) -> dict[str, int]:
        if self._session is None:
            return {}
        counts: Counter[str] = Counter()
        for subgraph in self._session.get_provider_graph_assignment_info():
            counts[subgraph.ep_name] += len(subgraph.get_nodes())
        return dict(counts)

    def close(self) -> None:
        self._session = None


def _create_session(bundle: Bundle, kind: EngineKind, threads: int | None) -> Any:
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as OrtNotImplemented

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    # Workers that spin after a run slow whatever runs next on their cores, other engines included.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(
            bundle.model_path,
            options,
            providers=[kind.provider],
            disabled_optimizers=_DISABLED_OPTIMIZERS,
        )
    except OrtNotImplemented as err:
        raise _no_kernel(bundle, kind, err) from err
    except Exception as err:  # onnxruntime's errors derive from Exception alone
        raise GraphError(
            f"onnxruntime refuses {bundle.model_path} ({_first_line(err)}): export again"
        ) from err


def _no_kernel(bundle: Bundle, kind: EngineKind, error: Exception) -> UnsupportedDtypeError:
    found = _UNIMPLEMENTED.search(str(error))
    what = f"{found[1]} (node {found[2]!r})" if found else _first_line(error)
    return UnsupportedDtypeError(
        f"{kind.name} has no kernel for {what} in {bundle.dtype}: export in float32 or float16, or "
        "use another engine"
    )


def _require_arrays(bundle: Bundle, kind: EngineKind) -> None:
    """A graph may load in bfloat16 (an Identity does) and still not be fed.

    onnxruntime 1.32 takes no numpy array of ml_dtypes' bfloat16.
    """
    tensors = (*bundle.manifest.inputs, *bundle.manifest.outputs)
    named = [spec.name for spec in tensors if spec.dtype == "bfloat16"]
    if named:
        raise UnsupportedDtypeError(
            f"{kind.name} takes no bfloat16 arrays, and {', '.join(named)} would be: export in "
            "float32 or float16, or use another engine"
        )


def _require_provider(session: Any, kind: EngineKind) -> None:
    used = session.get_providers()
    if used[:1] != [kind.provider]:
        raise EngineUnavailableError(
            f"onnxruntime replaced {kind.provider} by {', '.join(used)}: install what it needs, or "
            "ask for another engine"
        )


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.removeprefix("[ONNXRuntimeError] : ")
