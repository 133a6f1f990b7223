"""The attention kernels that a plan holds, and what the text of each says of it.

TensorRT for RTX compiles its generated kernels on the user's GPU, so a plan carries their CUDA
text. A kernel whose tactic is `_gemm_mha_v2_0x…` is preceded by `struct _gemm_mha_v2_params_t`,
whose `col_right_bound(row)` returns the first key that a query of that row does not visit:

    return ((int32_t) shape2);                            every key is visited, masked or not
    return row + ((int32_t) 0);                           the upper triangle is skipped
    return min(((int32_t) shape2),row + ((int32_t) 0));   likewise, for N other than T

The kernel for a single query, `_gemv_mha_v1_0x…`, has no such function. Read from plans of
TensorRT for RTX 1.7.1.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator

_MARK = b"_mha_v"
_NAME = re.compile(rb"_ge(?:mm|mv)_mha_v\d+_0x\w+")
_STRUCT = re.compile(rb"struct _ge(?:mm|mv)_mha_v\d+_params_t\b")
_SIGNATURE = re.compile(rb"\b__global__\b[^;{}]*$")
_RIGHT_BOUND = re.compile(
    rb"\bcol_right_bound\s*\([^)]*\)[^{}]*\{[^}]*?\breturn\b([^;]*);", re.DOTALL
)
_ROW = re.compile(rb"\brow\b")

# bytes.find is many times faster than searching a mapped file of gigabytes in place.
_CHUNK_BYTES = 1 << 24
# How far before a mark its name, its "struct" and the "__global__" of a signature may begin.
_BEFORE_BYTES, _AFTER_BYTES = 256, 256


def attention_kernels(plan: bytes | mmap.mmap) -> dict[str, str | None]:
    """The attention kernels of a plan by tactic, each with its right bound.

    Args:
        plan: The plan's bytes, or the mapped file.

    Returns:
        For each tactic that the plan names the expression that `col_right_bound` returns, or None
        where the plan holds no such text for it.
    """
    kernels: dict[str, str | None] = {}
    struct = 0
    for mark in _marks(plan):
        begin = max(0, mark - _BEFORE_BYTES)
        around = plan[begin : mark + _AFTER_BYTES]
        at = mark - begin
        if _covers(_STRUCT, around, at):
            struct = mark
        name = _covers(_NAME, around, at)
        if name is None:
            continue
        tactic = name[0].decode()
        kernels.setdefault(tactic, None)
        if struct and kernels[tactic] is None and _SIGNATURE.search(around, 0, name.start()):
            kernels[tactic] = _right_bound(plan[struct:mark])
            struct = 0
    return kernels


def visits_row_only(bound: str) -> bool:
    """Whether a right bound depends on the query's row, so that later keys are not visited."""
    return _ROW.search(bound.encode()) is not None


def _marks(plan: bytes | mmap.mmap) -> Iterator[int]:
    """Where the plan has a part of an attention kernel's name, in ascending order."""
    for start in range(0, len(plan), _CHUNK_BYTES):
        # Enough more to find a mark that two chunks share, and only once.
        chunk = plan[start : start + _CHUNK_BYTES + len(_MARK) - 1]
        at = chunk.find(_MARK)
        while at >= 0:
            yield start + at
            at = chunk.find(_MARK, at + 1)


def _covers(pattern: re.Pattern[bytes], text: bytes, at: int) -> re.Match[bytes] | None:
    """The match that the byte at `at` belongs to."""
    return next(
        (found for found in pattern.finditer(text) if found.start() <= at < found.end()), None
    )


def _right_bound(text: bytes) -> str | None:
    found = _RIGHT_BOUND.search(text)
    return found[1].decode("utf-8", "replace").strip() if found else None
