"""What the text of an attention kernel, as it stands in a plan, says of the kernel.

TensorRT for RTX compiles its generated kernels on the user's GPU, so a plan carries their CUDA
text. A kernel whose tactic is `_gemm_mha_v2_0x…` is preceded by `struct _gemm_mha_v2_params_t`,
whose `col_right_bound(row)` returns the first key that a query of that row does not visit:

    return ((int32_t) shape2);                            every key is visited, masked or not
    return row + ((int32_t) 0);                           the upper triangle is skipped
    return min(((int32_t) shape2),row + ((int32_t) 0));   likewise, for N other than T

Read from plans of TensorRT for RTX 1.7.1.
"""

from __future__ import annotations

import mmap
import re

_RIGHT_BOUND = re.compile(
    rb"\bcol_right_bound\s*\([^)]*\)[^{}]*\{.*?\breturn\b([^;]*);", re.DOTALL
)
_ROW = re.compile(rb"\brow\b")

# The text between the parameters' struct and the kernel's signature was 11 KiB in every plan
# looked at; a struct farther away than this belongs to another kernel.
_MAX_DISTANCE_BYTES = 1 << 18


def has_kernel(plan: bytes | mmap.mmap, tactic: str) -> bool:
    """Whether the plan names the kernel of that tactic."""
    return plan.find(tactic.encode()) >= 0


def right_bound(plan: bytes | mmap.mmap, tactic: str) -> str | None:
    """The expression that a kernel's `col_right_bound` returns; None where its text has none.

    Args:
        plan: The plan's bytes, or the mapped file.
        tactic: The kernel's name as the table of layers gives it ("_gemm_mha_v2_0x…").
    """
    start, end = _text_span(plan, tactic)
    found = _RIGHT_BOUND.search(plan, start, end) if start >= 0 else None
    return found[1].decode("utf-8", "replace").strip() if found else None


def visits_row_only(bound: str) -> bool:
    """Whether a right bound depends on the query's row, so that later keys are not visited."""
    return _ROW.search(bound.encode()) is not None


def _text_span(plan: bytes | mmap.mmap, tactic: str) -> tuple[int, int]:
    """Where the kernel's parameters and functions stand: (-1, -1) where the plan has no text."""
    signature = re.compile(rb"\b__global__\b[^;{}]*?\b" + re.escape(tactic.encode()) + rb"\s*\(")
    struct = b"struct " + tactic.rpartition("_0x")[0].encode() + b"_params_t"
    position = plan.find(tactic.encode())
    while position >= 0:
        begin = plan.rfind(struct, max(0, position - _MAX_DISTANCE_BYTES), position)
        if begin >= 0 and signature.search(plan, begin, position + len(tactic) + 2):
            return begin, position
        position = plan.find(tactic.encode(), position + 1)
    return -1, -1
