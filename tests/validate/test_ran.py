"""What ONNX Runtime ran for an attention, and PyTorch beside an engine of a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from attnport.engines.ort_profile import RanAttention, RanNode
from attnport.errors import GraphError
from attnport.export.bundle import Bundle
from attnport.models.sources import spec_from_source
from attnport.pipeline_run import bundle_from_spec
from attnport.validate.device_peer import DevicePeer, peer_of
from attnport.validate.finding import Finding
from attnport.validate.ran import check_ran

NODE = RanNode(node="/attn0/mha", operator="MultiHeadAttention", provider="CUDAExecutionProvider")


def judged(bundle: Bundle, *ran: RanAttention) -> Finding:
    def profile(
        bundle: Bundle, kind: str, feeds: Mapping[str, np.ndarray]
    ) -> Sequence[RanAttention]:
        return ran

    (found,) = check_ran(bundle, "ort-cuda", ["attn0"], {}, profile)
    assert not found.required
    return found


def test_one_node_is_no_proof_of_a_fused_kernel(bundle: Bundle) -> None:
    found = judged(bundle, RanAttention(attention="attn0", fused=True, ran=(NODE,)))
    assert found.status == "not run"
    assert "does not tell with which kernel" in found.message
    assert found.numbers["ran"] == "MultiHeadAttention on CUDAExecutionProvider"


def test_several_nodes_are_proof_of_the_contrary(bundle: Bundle) -> None:
    why = "/attn0/mha ran on CPUExecutionProvider"
    found = judged(bundle, RanAttention(attention="attn0", fused=False, ran=(NODE,), reason=why))
    assert (found.status, found.message) == ("failed", f"not fused: {why}")


def test_what_the_profile_does_not_tell_is_not_run(bundle: Bundle) -> None:
    assert judged(bundle).message == "the profile does not tell of it"

    def fails(*_: object) -> Sequence[RanAttention]:
        raise GraphError("onnxruntime refuses it")

    (found,) = check_ran(bundle, "ort-cuda", ["attn0"], {}, fails)
    assert found.status == "not run"
    assert "onnxruntime refuses it" in found.message


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    sizes = {"d_model": "32", "num_heads": "2"}
    spec = spec_from_source("multi-head", sizes)
    return bundle_from_spec(spec, tmp_path_factory.mktemp("ran") / "b", max_cases=2)


def test_a_real_profile_is_read(exported: Bundle) -> None:
    """On the CPU, where the canonical pattern stays one of several nodes."""
    case = exported.load_case(exported.manifest.cases[0].name)
    (found,) = check_ran(exported, "ort-cpu", ["attn0"], case.inputs)
    assert found.status in ("failed", "not run")
    assert "CPUExecutionProvider" in str(found.numbers["ran"]) or found.status == "failed"


def test_pytorch_on_the_device_stands_beside_the_engine(exported: Bundle) -> None:
    module = spec_from_source("multi-head", {"d_model": "32", "num_heads": "2"}).make()
    case = exported.load_case(exported.manifest.cases[0].name)
    record = case.record.references["output"]
    assert record.eager is not None
    found = DevicePeer(exported, module, "cpu").errors(case)["output"]
    # The same PyTorch on the same device as when the case was made.
    assert found["pytorch_gpu_max"] == pytest.approx(record.eager.max, rel=0.5)
    assert peer_of(exported, None) is None
