"""The model.py that Triton's python backend runs: model.onnx beside it, in ONNX Runtime.

It imports nothing of attnport, since it travels with the repository. It works with numpy 1 and 2.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

Arrays = dict[str, np.ndarray]


class TritonPythonModel:
    """What Triton looks for in model.py."""

    def initialize(self, args: dict[str, str]) -> None:
        """Called once, when the model is loaded."""
        config = json.loads(args["model_config"])
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self.batches = config["max_batch_size"] > 0
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        threads = config.get("parameters", {}).get("intra_op_thread_count")
        if threads is not None:
            options.intra_op_num_threads = int(threads["string_value"])
        here = os.path.dirname(os.path.abspath(__file__))
        self.session = onnxruntime.InferenceSession(
            os.path.join(here, "model.onnx"),
            options,
            providers=["CPUExecutionProvider"],
            # onnxruntime 1.32 dies of this layout pass on some fp16 graphs.
            disabled_optimizers=["NchwcTransformer"],
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Called with the requests that Triton batched; those of one shape are computed at once."""
        feeds = [self._feeds(request) for request in requests]
        groups: dict[Any, list[int]] = {}
        for number, arrays in enumerate(feeds):
            shapes = tuple(arrays[name].shape[1:] for name in self.inputs)
            groups.setdefault(shapes if self.batches else number, []).append(number)
        responses: list[Any] = [None] * len(requests)
        for numbers in groups.values():
            results = self._compute([feeds[number] for number in numbers])
            for number, response in zip(numbers, results, strict=True):
                responses[number] = response
        return responses

    def finalize(self) -> None:
        """Called once, when the model is unloaded."""
        del self.session

    def _feeds(self, request: Any) -> Arrays:
        return {
            name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in self.inputs
        }

    def _compute(self, feeds: list[Arrays]) -> list[Any]:
        try:
            results = self._run(feeds)
        except Exception as error:  # onnxruntime's errors derive from Exception alone
            if len(feeds) > 1:  # nobody pays for what another one sent
                return [self._compute([one])[0] for one in feeds]
            failed = pb_utils.TritonError(str(error))
            return [pb_utils.InferenceResponse(output_tensors=[], error=failed)]
        return [
            pb_utils.InferenceResponse(
                output_tensors=[pb_utils.Tensor(name, arrays[name]) for name in self.outputs]
            )
            for arrays in results
        ]

    def _run(self, feeds: list[Arrays]) -> list[Arrays]:
        if len(feeds) == 1:
            return [dict(zip(self.outputs, self.session.run(self.outputs, feeds[0]), strict=True))]
        joined = {name: np.concatenate([one[name] for one in feeds]) for name in self.inputs}
        ends = np.cumsum([len(one[self.inputs[0]]) for one in feeds])[:-1]
        parts = [np.split(array, ends) for array in self.session.run(self.outputs, joined)]
        return [dict(zip(self.outputs, row, strict=True)) for row in zip(*parts, strict=True)]
