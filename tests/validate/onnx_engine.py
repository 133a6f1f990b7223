"""An engine on the small bundle that can be made wrong: in its graph, or in what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
from tests.validate.small_bundle import Fault, model, weight_of

from attnport.engines.engine import Engine
from attnport.export.bundle import Bundle

Change = Callable[[np.ndarray], np.ndarray]


@dataclass
class OnnxEngine(Engine):
    """onnxruntime on a graph, and then a change made to what it gives."""

    bundle: Bundle
    fault: Fault = field(default_factory=Fault)
    change: Change = field(default=lambda y: y)
    rename: str = "y"
    kind: str = "ort-cpu"

    def __post_init__(self) -> None:
        import onnxruntime

        self.inputs, self.outputs = self.bundle.manifest.inputs, self.bundle.manifest.outputs
        graph = model(weight_of(self.bundle), self.bundle.dtype, self.fault)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {self.rename: self.change(self.session.run(["y"], dict(feeds))[0])}

    def placement(self) -> dict[str, int]:
        return {"CPUExecutionProvider": 1}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
