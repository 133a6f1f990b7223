"""What each check means, how it is judged, and what to try when it fails."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from attnport.errors import UsageError
from attnport.validate.finding import Check


@dataclass(frozen=True)
class Explanation:
    """One check, for people.

    Attributes:
        meaning: What it says of an engine.
        judged: How it is judged: what passes, what fails, what is not run.
        remedies: What to try, the likeliest first.
    """

    meaning: str
    judged: str
    remedies: tuple[str, ...]


EXPLANATIONS: dict[Check, Explanation] = {
    "parity": Explanation(
        "The engine gives what the module gives, as near as the dtype allows.",
        "Shape and dtype must be exact. Every element must be finite where the float64 module is. "
        "Then the largest and the mean error against the float64 module must be within the bound: "
        "5 times the largest of what eager PyTorch, SDPA and the rounding of every number err by "
        "in this dtype, plus 2 ulp. A case whose bound is so wide that wrong results would pass is "
        "uninformative: not run, and no proof. `coverage` sums up: an output that passed in no "
        "informative case is not proved, nor is an engine that passed none at the smallest size of "
        "an axis.",
        (
            "attnport bisect BUNDLE names the first node that leaves its bound",
            "an error of 2 and more times the bound everywhere: scale, mask, head order, weights, "
            "or an engine of another bundle",
            "an error at odd lengths or other sizes than opt only: a size frozen at export",
            "not finite: a sentinel that overflows in half precision, or rows without a visible key",
            "uninformative everywhere: export in float32 or float16, or with smaller magnitudes",
        ),
    ),
    "property": Explanation(
        "What must not matter does not: other rows of the batch, the order of keys, the future.",
        "The inputs are changed (a row alone, rows permuted, a row of NaN, later tokens replaced) "
        "and the result compared with the part of the reference that it must give, by the bound of "
        "parity. Only properties that the float64 module was found to have are looked at.",
        (
            "alone, permuted or beside-nan along the batch: a reduction or a mask over the wrong "
            "axis, or padding that is read",
            "future: causality anchored at the wrong corner, or missing",
            "permuted along keys: positions that the module does not have, or a mask of a fixed "
            "order",
        ),
    ),
    "decoding": Explanation(
        "Token by token, from its caches, the engine gives what one pass over the sequence gives.",
        "Sequences are run in every way that must not matter: in one pass, one token a step, in "
        "chunks, padded left and right, with prompts of different lengths, alone and beside "
        "others. Each result at every position is judged against the float64 module by the bound "
        "of parity. `greedy`: 20 prompts are continued by 64 tokens, and PyTorch must choose each "
        "of them, too; where the two logits are closer than the bound, either is right, which is "
        "said and is no fault.",
        (
            "token-by-token fails and full passes: positions that begin at 0 in each step, a cache "
            "that is not fed back, or written a row too far",
            "only padded ways fail: the mask of padding is not part of the mask of a decoding step",
            "only prompts of different lengths fail: one position or one row for the whole batch",
            "beside-others fails: caches of different sequences share memory",
            "not run for want of sequences: export with past and seq from 0 and 1, and all cases",
        ),
    ),
    "repeat": Explanation(
        "Running, opening and building again give the same bits, or the difference is stated.",
        "The same bits pass; others pass while the second result is within the bound of parity, "
        "and the largest difference is said. A rebuilt plan that differs is stated, not failed.",
        (
            "outside the bound: uninitialised memory, or a race; run it under compute-sanitizer",
            "other bits on a GPU: atomics or another tactic; pin the plan and compare that",
        ),
    ),
    "fusion": Explanation(
        "The plan runs each attention (scale, mask, softmax, both products) as one kernel.",
        "Read from the builder's own table and from the plan, never from the graph's names. For "
        "kinds without attention kernels it is not run: not applicable.",
        (
            "float32 has no fused attention in TensorRT: export with --dtype float16 or bfloat16",
            "head sizes of 8 and less or 257 and more are never fused",
            "softcap, or probabilities that are an output of the graph, keep it from fusing",
            "attnport inspect shows whether the attention was recognised at all",
        ),
    ),
    "qkv": Explanation(
        "The projections of each attention are one matrix in the file, and one GEMM in the plan.",
        "The file decides, read again: TensorRT merges GEMMs by itself, so its plan alone says "
        "nothing about the export.",
        (
            "attnport inspect MODEL.onnx names the products and why they were not merged",
            "projections with different inputs cannot be one GEMM: cross-attention merges K and V",
        ),
    ),
    "causal": Explanation(
        "The kernel of a purely causal attention skips the keys after the query.",
        "`bounded` passes; `masked` computes them and hides them, which is right and slower.",
        (
            "write causality as Add(scores, Where(Trilu, 0, -inf)) and nothing else; "
            "`attnport export` does where no other mask is there",
            "with a past, or with another mask beside it, no form is known that is bounded",
        ),
    ),
    "kernels": Explanation(
        "The plan launches at most so many kernels.",
        "Counted in the builder's table (kgen, gemm, runtime_fusion), profile 0.",
        ("attnport build prints the layers: look for ones that joined no other",),
    ),
    "engine": Explanation(
        "The engine is the one that was asked for, and the model could be exported for it.",
        "A provider that runs no node was replaced, which fails.",
        ("attnport doctor says what this machine lacks",),
    ),
    "module": Explanation(
        "The module itself can be compared with: deterministic, and finite in float64.",
        "It is run twice on the same inputs, and in its own dtype. What is at fault is the module, "
        "not an engine.",
        (
            "dropout: F.dropout(x, p, training=self.training), and module.eval()",
            "a module that fails or overflows in half precision: mend it, or export in float32",
        ),
    ),
    "latency": Explanation(
        "The engine takes at most so many times as long as the fastest torch form.",
        "The whole 95% interval of the ratio of medians must be at most the maximum; where it "
        "holds the maximum, the measurement cannot tell, which is not run. On a GPU it is a run "
        "between two events, its inputs on the device, and compared with torch on the GPU.",
        (
            "no torch form to compare with: add -e torch-eager",
            "an idle machine, and more seconds, make the interval narrower",
            "the A/A test in the report says what the method can tell apart here",
        ),
    ),
    "baseline": Explanation(
        "Nothing became worse than in an earlier report.",
        "Findings are paired by model, dtype, engine, check and case. A worse status fails; a "
        "number fails that is worse by more than worse_by_percent, and for errors also near the "
        "bound. What is gone is not run.",
        ("make the report that is now right the new baseline: copy it over the old one",),
    ),
}


def explain(check: str) -> Explanation:
    """The explanation of a check.

    Raises:
        UsageError: If there is no such check.
    """
    for name, explanation in EXPLANATIONS.items():
        if name == check:
            return explanation
    near = difflib.get_close_matches(check, EXPLANATIONS, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"there is no check {check!r}: {meant}valid: {', '.join(EXPLANATIONS)}")
