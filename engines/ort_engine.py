"""The bundle's graph in ONNX Runtime, on the provider asked for and on no other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnport.engines.engine import Engine
from attnport.engines.feeds import compile_check
from attnport.engines.kinds import EngineKind
from attnport.engines.lowered_graph import LoweredGraph
from attnport.engines.lowering import lower_bundle
from attnport.engines.ort_binding import BindingPool
from attnport.engines.ort_placement import require_placed, trt_options
from attnport.engines.ort_probe import require_survivable
from attnport.engines.ort_session import DISABLED_OPTIMIZERS, create_session, load_cuda_libraries
from attnport.engines.sharded.alone import refuse_lone_rank
from attnport.errors import (
    EngineUnavailableError,
    GraphError,
    UnsupportedDtypeError,
    UsageError,
)
from attnport.export.bundle import Bundle

_UNIMPLEMENTED = re.compile(r"implementation for (\w+)\(\d+\) node with name '([^']*)'")


class OrtEngine(Engine):
    """An ONNX Runtime session on one provider.

    Args:
        bundle: What to run.
        kind: The kind, which names the provider.
        threads: How many threads compute one node; None leaves it to ONNX Runtime.

    Attributes:
        lowered: What each attention was given to ONNX Runtime as.

    Raises:
        UnsupportedDtypeError: If the provider has no kernel for an operator in the graph's dtype.
        EngineUnavailableError: If the provider was replaced by another, for all or some nodes.
        GraphError: If ONNX Runtime refuses the graph, or dies of it.
    """

    def __init__(self, bundle: Bundle, kind: EngineKind, *, threads: int | None = None) -> None:
        refuse_lone_rank(bundle)
        self.kind = kind.name
        self.inputs = bundle.manifest.inputs
        self.outputs = bundle.manifest.outputs
        self._check = compile_check(self.inputs, bundle.axes)
        self._output_names = [output.name for output in self.outputs]
        self.lowered: LoweredGraph = lower_bundle(bundle, kind.name)
        self._session: Any = _open(bundle, kind, self.lowered, threads)
        _require_provider(self._session, kind)
        require_placed(self._session, kind)
        _require_arrays(bundle, kind)
        self._compute: Callable[[Any, Mapping[str, np.ndarray]], dict[str, np.ndarray]]
        self._compute = self._plainly
        if kind.device == "cuda":
            pool = BindingPool(self._session, self.inputs, self.outputs, "cuda")
            self._compute = lambda session, feeds: pool.run(feeds)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        checked = self._check(feeds)
        session = self._session  # another thread may close the engine meanwhile
        if session is None:
            raise UsageError(f"this {self.kind} engine was closed: open it again")
        try:
            return self._compute(session, checked)
        except Exception as err:  # onnxruntime's errors derive from Exception alone
            raise GraphError(
                f"onnxruntime failed while running the graph ({_first_line(err)}): the graph does "
                "not work for these sizes, so export again or narrow its axes"
            ) from err

    @property
    def session(self) -> Any:
        """ONNX Runtime's session, for what keeps values bound to it.

        Raises:
            UsageError: If the engine was closed.
        """
        if self._session is None:
            raise UsageError(f"this {self.kind} engine was closed: open it again")
        return self._session

    def placement(self) -> dict[str, int]:
        if self._session is None:
            return {}
        counts: Counter[str] = Counter()
        for subgraph in self._session.get_provider_graph_assignment_info():
            counts[subgraph.ep_name] += len(subgraph.get_nodes())
        return dict(counts)

    def close(self) -> None:
        self._session = None
        self._compute = self._plainly  # the bindings hold the session, too

    def _plainly(self, session: Any, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = session.run(self._output_names, feeds)
        return dict(zip(self._output_names, results, strict=True))


def _open(bundle: Bundle, kind: EngineKind, lowered: LoweredGraph, threads: int | None) -> Any:
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as OrtNotImplemented

    require_survivable(bundle.model_path, lowered.content, kind.provider, DISABLED_OPTIMIZERS)
    load_cuda_libraries(kind.provider)
    try:
        return create_session(
            lowered.content or bundle.model_path,
            bundle.path,
            kind.provider,
            DISABLED_OPTIMIZERS,
            provider_options=trt_options(bundle) if kind.name == "ort-tensorrt" else None,
            threads=threads,
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
