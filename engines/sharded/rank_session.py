"""One rank in ONNX Runtime: segment after segment, with a sum over the ranks between them."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnport.engines.ort_session import DISABLED_OPTIMIZERS, create_session, load_cuda_libraries
from attnport.engines.sharded.segments import Segment, cut_into_segments
from attnport.errors import EngineUnavailableError, GraphError, UnsupportedDtypeError
from attnport.export.bundle import Bundle

Arrays = dict[str, np.ndarray]
# What is partial goes out, what is summed over all ranks comes back; in the end the results.
Steps = Generator[np.ndarray, np.ndarray, Arrays]


@dataclass(frozen=True)
class _Part:
    """A segment, its session, and what nobody wants any more behind it."""

    segment: Segment
    session: Any
    done: frozenset[str]


class RankSession:
    """The sessions of one rank's segments.

    Args:
        bundle: The rank's.
        provider: What runs the nodes.
        provider_options: Its own, such as the number of the GPU.
        threads: How many CPU threads compute one node; None leaves it to ONNX Runtime.

    Attributes:
        sums: The names of the sums, in the order in which they are asked for.

    Raises:
        UnsupportedDtypeError: If ONNX Runtime has no kernel for the graph's dtype.
        GraphError: If ONNX Runtime refuses a segment.
        EngineUnavailableError: If the provider was replaced by another.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        provider: str = "CPUExecutionProvider",
        provider_options: Mapping[str, str] | None = None,
        threads: int | None = None,
    ) -> None:
        segments = cut_into_segments(bundle.model_path)
        load_cuda_libraries(provider)
        self._outputs = [spec.name for spec in bundle.manifest.outputs]
        self._parts = [
            _Part(segment, _session(segment, bundle, provider, provider_options, threads), done)
            for segment, done in zip(
                segments, _no_longer_wanted(segments, self._outputs), strict=True
            )
        ]
        self.sums = tuple(name for segment in segments for name, _ in segment.sums)

    def steps(self, feeds: Mapping[str, np.ndarray]) -> Steps:
        """Computes the rank's outputs, stopping at each sum.

        Args:
            feeds: The rank's inputs.

        Yields:
            What this rank adds to the next sum of `sums`; the whole sum is to be sent back.

        Returns:
            The rank's outputs.
        """
        values: Arrays = dict(feeds)
        for part in self._parts:
            if part.session is not None:
                fed = {name: values[name] for name in part.segment.inputs}
                results = part.session.run(part.segment.outputs, fed)
                values.update(zip(part.segment.outputs, results, strict=True))
            for total, partial in part.segment.sums:
                values[total] = yield values[partial]
            for name in part.done:
                values.pop(name, None)
        return {name: values[name] for name in self._outputs}


def _no_longer_wanted(segments: list[Segment], outputs: list[str]) -> list[frozenset[str]]:
    last: dict[str, int] = {}
    for at, segment in enumerate(segments):
        last.update(dict.fromkeys(segment.inputs, at))
        last.update(dict.fromkeys([partial for _, partial in segment.sums], at))
    kept = set(outputs)
    return [
        frozenset(name for name, end in last.items() if end == at and name not in kept)
        for at in range(len(segments))
    ]


def _session(
    segment: Segment,
    bundle: Bundle,
    provider: str,
    provider_options: Mapping[str, str] | None,
    threads: int | None,
) -> Any:
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as OrtNotImplemented

    if not segment.content:
        return None
    try:
        session = create_session(
            segment.content,
            bundle.path,
            provider,
            DISABLED_OPTIMIZERS,
            provider_options=provider_options,
            threads=threads,
        )
    except OrtNotImplemented as err:
        raise UnsupportedDtypeError(
            f"onnxruntime has no kernel for {bundle.dtype} on {provider} ({err}): export in "
            "float32 or float16"
        ) from err
    except Exception as err:  # onnxruntime's errors derive from Exception alone
        raise GraphError(
            f"onnxruntime refuses a segment of {bundle.model_path} ({err}): please report the model"
        ) from err
    if session.get_providers()[:1] != [provider]:
        raise EngineUnavailableError(
            f"onnxruntime replaced {provider} by {', '.join(session.get_providers())}: install "
            "what it needs"
        )
    return session
