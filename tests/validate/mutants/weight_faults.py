"""Faults of weights: transposed, dropped, rounded, in another order, one bit flipped."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tests.validate.mutants.graph_edit import HEAD_SIZE, Edit, Fault

# The dtype that weights were rounded to by mistake: one that keeps fewer bits than the graph's.
# bfloat16 in a float16 graph is no such fault: its rounding, 2⁻⁹, is what float16 arithmetic itself
# comes to, and no comparison of outputs can see it.
_COARSER = {
    "float32": ml_dtypes.bfloat16,
    "float16": ml_dtypes.float8_e4m3fn,
    "bfloat16": ml_dtypes.float8_e5m2,
}


def _projection(edit: Edit) -> str | None:
    """The merged weight of the first attention."""
    names = [one.name for one in edit.graph.initializer]
    return next((name for name in names if name.endswith("kv_weight")), None)


def _output_weight(edit: Edit) -> str | None:
    """W_O: what the merged context is multiplied by."""
    merged = edit.node("/context_merged")
    for node in edit.readers(merged.output[0]) if merged is not None else ():
        if node.op_type == "MatMul":
            return str(node.input[1])
    return None


def _square_transposed(edit: Edit) -> bool:
    name = _output_weight(edit)
    return name is not None and edit.change_weight(name, lambda w: w.T.copy())


def _output_zeroed_column(edit: Edit) -> bool:
    name = _output_weight(edit)

    def change(w: np.ndarray) -> np.ndarray:
        w[:, 3] = 0
        return w

    return name is not None and edit.change_weight(name, change)


def _bias_dropped(ending: str) -> Fault:
    def fault(edit: Edit) -> bool:
        names = [one.name for one in edit.graph.initializer if one.name.endswith(ending)]
        return bool(names) and edit.change_weight(names[0], np.zeros_like)

    return fault


def _interleaved(edit: Edit) -> bool:
    """Columns ordered head by head (q0 k0 v0 q1 k1 v1 …) in place of Q, K, V."""
    name = _projection(edit)
    if name is None:
        return False

    def change(w: np.ndarray) -> np.ndarray:
        parts = 3 if w.shape[1] == 3 * w.shape[0] else 2
        apart = w.reshape(w.shape[0], parts, -1, HEAD_SIZE)
        return np.ascontiguousarray(apart.swapaxes(1, 2)).reshape(w.shape)

    return edit.change_weight(name, change)


def _rows_permuted(edit: Edit) -> bool:
    name = _projection(edit)
    return name is not None and edit.change_weight(name, lambda w: np.roll(w, 1, axis=0))


def _rounded(edit: Edit) -> bool:
    name = _projection(edit)
    coarser = _COARSER[edit.float_dtype.name]
    return name is not None and edit.change_weight(
        name, lambda w: w.astype(np.float32).astype(coarser).astype(w.dtype)
    )


def _highest_exponent_bit_flipped(which: str) -> Fault:
    """One bit of one weight, in the value's columns or in W_O: the weight becomes huge."""

    def fault(edit: Edit) -> bool:
        name = _projection(edit) if which == "value" else _output_weight(edit)
        if name is None:
            return False

        def change(w: np.ndarray) -> np.ndarray:
            kind = {2: np.uint16, 4: np.uint32}[w.dtype.itemsize]
            bits = w.view(kind)
            bits[5, bits.shape[1] - 7] ^= kind(1 << (8 * w.dtype.itemsize - 2))
            return w

        return edit.change_weight(name, change)

    return fault


def _largest_negated(edit: Edit) -> bool:
    """The sign bit of the largest weight of the value's projection."""
    name = _projection(edit)
    if name is None:
        return False

    def change(w: np.ndarray) -> np.ndarray:
        width = w.shape[1] // (3 if w.shape[1] == 3 * w.shape[0] else 2)
        value = np.abs(w[:, -width:].astype(np.float32))
        row, column = np.unravel_index(int(value.argmax()), value.shape)
        w[row, column - width] = -w[row, column - width]
        return w

    return edit.change_weight(name, change)


def _one_weight_for_another(edit: Edit) -> bool:
    """The value's projection gets the key's weights."""
    name = _projection(edit)
    if name is None:
        return False

    def change(w: np.ndarray) -> np.ndarray:
        width = w.shape[1] // (3 if w.shape[1] == 3 * w.shape[0] else 2)
        w[:, -width:] = w[:, -2 * width : -width]
        return w

    return edit.change_weight(name, change)


WEIGHT_FAULTS: dict[str, Fault] = {
    "W_O transposed": _square_transposed,
    "a column of W_O zero": _output_zeroed_column,
    "bias of QKV dropped": _bias_dropped("kv_bias"),
    "bias of W_O dropped": _bias_dropped("W_O.bias"),
    "QKV columns head by head": _interleaved,
    "rows of W_QKV shifted": _rows_permuted,
    "weights rounded to fewer bits": _rounded,
    "W_V is W_K": _one_weight_for_another,
    "an exponent bit of W_V flipped": _highest_exponent_bit_flipped("value"),
    "an exponent bit of W_O flipped": _highest_exponent_bit_flipped("output"),
    "the sign bit of a weight of W_V flipped": _largest_negated,
}
