"""What was reported, where, and what becomes of it here: right numbers and a plan, or a refusal.

Nothing is copied from a report: a case is a module or a file of our own with the same fault in it.
"""

from __future__ import annotations

from dataclasses import dataclass

MODULE = "right, from a module"  # tests/cases/test_cases.py
FILE = "right, from an ONNX file"  # tests/cases/test_operator_files.py
REFUSED = "refused in words"  # tests/cases/test_refusals.py


@dataclass(frozen=True)
class Report:
    """One report.

    Attributes:
        where: On github.com; the nearest one, where the fault itself was found otherwise.
        outcome: MODULE, FILE or REFUSED.
        case: The case of that kind, or the test of the refusal.
        symptom: What was reported.
    """

    where: str
    outcome: str
    case: str
    symptom: str


REPORTED = (
    Report("microsoft/onnxruntime/issues/29020", MODULE, "causal-fewer-queries",
           "a causal triangle with fewer queries than keys is anchored at the wrong corner"),
    Report("pytorch/TensorRT/pull/4246", MODULE, "causal-more-queries",
           "a causal triangle with more queries than keys is refused or wrong"),
    Report("microsoft/onnxscript/pull/2479", MODULE, "bool-mask-dead-row",
           "a row whose keys are all hidden becomes NaN"),
    Report("pytorch/pytorch/issues/109336", MODULE, "lowest-half-mask",
           "a mask of float16's lowest number overflows to -inf"),
    Report("microsoft/onnxscript/pull/2992", MODULE, "causal",
           "the constants of a causal mask overflow in half precision"),
    Report("pytorch/pytorch/issues/151762", MODULE, "grouped-query",
           "grouped queries cannot be exported"),
    Report("microsoft/onnxruntime/pull/25966", MODULE, "grouped-query-causal-other-length",
           "query heads are given the wrong key/value heads"),
    Report("pytorch/pytorch/issues/152018", MODULE, "three-dimensions",
           "q, k and v without a head axis freeze the example's sizes, or are refused"),
    Report("pytorch/pytorch/issues/135615", MODULE, "scale-of-its-own",
           "a scale that is not 1/sqrt(Dh) makes the export fail"),
    Report("microsoft/onnxscript/pull/2332", MODULE, "mask-of-keys",
           "a mask (1,1,1,T) is legal broadcast, and kernels want it expanded"),
    Report("microsoft/onnxruntime/pull/28198", MODULE, "wider-values",
           "buffers of the values are sized by the queries' heads"),
    Report("NVIDIA/TensorRT/issues/4705", MODULE, "head-size-512",
           "no kernel takes heads of 512, and the build fails"),
    Report("pytorch/pytorch/issues/120075", MODULE, "sequence-first-bool-mask",
           "the traced sequence length stays in a Reshape"),
    Report("pytorch/pytorch/issues/143107", MODULE, "fast-path",
           "the fast path of nn.MultiheadAttention is traced"),
    Report("pytorch/pytorch/issues/99701", MODULE, "weights-averaged",
           "returned weights have a fixed or wrong shape"),
    Report("pytorch/pytorch/issues/64525", MODULE, "all-keys-padded",
           "an item whose keys are all padded is NaN on one path and 0 on the other"),
    Report("microsoft/onnxscript/pull/2337", MODULE, "widths-of-their-own",
           "keys and values of other widths are packed or left in four dimensions"),
    Report(
        "livekit/livekit-wakeword/pull/39", MODULE, "exported-at-batch-1", "a batch of 1 stays 1"
    ),
    Report("pytorch/pytorch/issues/177013", MODULE, "encoder-layer",
           "the fast path of nn.TransformerEncoderLayer is traced"),
    Report("pytorch/pytorch/issues/117209", MODULE, "encoder",
           "nn.TransformerEncoder keeps the traced length"),
    Report("pytorch/pytorch/issues/97111", MODULE, "encoder-padded",
           "the nested-tensor path drops columns that are padded everywhere"),
    Report("pytorch/pytorch/issues/153955", MODULE, "decoder-made-triangle",
           "a mask made from a dynamic length cannot be exported"),
    Report("pytorch/pytorch/issues/139508", REFUSED, "test_a_view_that_the_strides_do_not_allow",
           "a view that works eagerly does not on the exported strides"),
    Report("NVIDIA/TensorRT/issues/4333", MODULE, "normalised-heads",
           "the form of SDPA gives other numbers than the products written out"),
    Report("NVIDIA/TensorRT/issues/3620", MODULE, "normalised-heads-by-hand",
           "attention written out is not run by one kernel"),
    Report("NVIDIA/TensorRT/issues/4639", MODULE, "rms-normalised-heads",
           "RMSNormalization on query and key is not parsed"),
    Report("triton-inference-server/server/issues/5959", MODULE, "lowest-float",
           "(1 - m)·float32.min in a graph of float16 is -inf, and 0·-inf is NaN"),
    Report("NVIDIA/TensorRT/issues/2922", MODULE, "minus-10000",
           "a mask of -10000 must survive half precision"),
    Report("microsoft/onnxruntime/issues/18945", MODULE, "left-padding",
           "a fusion assumes padding on the right, and holes give wrong numbers"),
    Report("microsoft/onnxscript/issues/2424", MODULE, "cross",
           "a fusion leaves an operator behind that nothing runs"),
    Report("pytorch/pytorch/issues/172903", MODULE, "mask-beside",
           "the length of past and new tokens together cannot be declared"),
    Report("pytorch/pytorch/issues/152465", MODULE, "mask-from-lengths",
           "a cache, grouped queries and a mask from offsets, under dynamic shapes"),
    Report("pytorch/pytorch/issues/145100", MODULE, "rotary-interleaved",
           "interleaved rotary positions cannot be exported"),
    Report("huggingface/optimum/issues/1092", MODULE, "relative-buckets",
           "a relative position bias is folded at the exported length"),
    Report("onnx/onnx/issues/7865", MODULE, "capped-then-masked",
           "capped after the mask, hidden keys leak"),
    Report("huggingface/transformers/issues/47491", REFUSED, "test_a_length_that_python_looked_at",
           "a loop over the sequence fixes its length"),
    Report("ccdv-ai/convert_checkpoint_to_lsg/issues/15", REFUSED, "test_a_length_that_python_looked_at",
           "a branch on the length keeps the traced side alone"),
    Report("pytorch/pytorch/issues/143643", REFUSED, "test_bfloat16_builds_and_onnx_runtime_says_what_it_lacks",
           "kernels for bfloat16 are missing, and nothing says which"),
    Report("NVIDIA/TensorRT/issues/4739", MODULE, "conditional",
           "attention inside of a conditional does not build"),
    Report("pytorch/pytorch/issues/126269", MODULE, "weights-beside",
           "weights beside the graph are lost when it moves"),
    Report("pytorch/pytorch/pull/161056", REFUSED, "test_an_opset_that_would_be_stamped_wrongly",
           "a file is stamped with an opset that its operators are not of"),
    Report("onnx/onnx/issues/7118", FILE, "three-axes",
           "rows (B,N,H·Dh) are reshaped to heads without a transposition"),
    Report("onnx/onnx/pull/7297", FILE, "past-causal", "a causal triangle hides the past"),
    Report("NVIDIA/TensorRT/issues/4738", FILE, "past",
           "a node with present keys and values is not parsed"),
    Report("microsoft/onnxruntime/issues/26262", FILE, "present-alone",
           "present keys and values are asked for without a past"),
    Report("onnx/onnx/issues/8054", FILE, "key-lengths",
           "lengths of keys anchor the triangle at the wrong corner"),
    Report("microsoft/onnxruntime/pull/29050", FILE, "causal-fewer-queries",
           "a causal triangle with fewer queries than keys is anchored at the wrong corner"),
)  # fmt: skip
