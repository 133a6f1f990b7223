"""A bundle's graph in ONNX Runtime against the references in its cases."""

from __future__ import annotations

import numpy as np
import onnxruntime

from attnport.export.bundle import Bundle
from attnport.validate.bound import bound, incomparable, uninformative


def assert_parity(bundle: Bundle) -> int:
    """Every output of every case is within its bound; returns how many of them proved something."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        bundle.model_path, options, providers=["CPUExecutionProvider"]
    )
    names = [spec.name for spec in bundle.manifest.outputs]
    proved = 0
    for record in bundle.manifest.cases:
        case = bundle.load_case(record.name)
        for name, result in zip(names, session.run(names, dict(case.inputs)), strict=True):
            known, truth = record.references[name], case.references[name]
            assert result.shape == truth.shape
            if incomparable(known) or uninformative(known, bundle.dtype):
                continue
            error = np.abs(result.astype(np.float64) - truth)
            limit = bound(known, bundle.dtype)
            assert error.max() <= limit.max, (record.name, name)
            assert error.mean() <= limit.mean, (record.name, name)
            proved += 1
    assert proved
    return proved
