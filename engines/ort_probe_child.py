"""The process that opens graphs of which nobody knows whether ONNX Runtime survives them.

It reads a question as JSON from each line of stdin, and answers with a line. The questions:
    {"identity": true, "provider": P}                             a graph of its own
    {"model": FILE, "provider": P, "disabled": [OPTIMIZERS]}      a file
    {"model": FILE, "content": FILE, …}                           a graph whose weights lie by FILE
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this one ends
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")


def _answer(question: dict[str, Any]) -> dict[str, object]:
    from attnport.engines.ort_session import create_session, load_cuda_libraries

    load_cuda_libraries(question["provider"])
    try:
        if question.get("identity"):
            session = create_session(_identity(), None, question["provider"])
        else:
            model = Path(question["model"])
            content = Path(question["content"]).read_bytes() if "content" in question else None
            session = create_session(
                content or model, model.parent, question["provider"], question["disabled"]
            )
    except Exception as err:  # onnxruntime's errors derive from Exception alone
        return {"providers": [], "error": (str(err).splitlines() or [type(err).__name__])[0]}
    return {"providers": session.get_providers(), "error": ""}


def _identity() -> bytes:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
