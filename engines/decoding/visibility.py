"""Which of the tokens held each new token sees: masks, positions and rows to write, for a batch.

Columns of a growing cache are shared by the batch, padding included; each row of a static cache is
filled by itself, so that padding behind a prompt is overwritten by the next token. Padding is seen
by itself alone: a token without any key would be a dead row, and its NaN in a user's own graph
would spoil the values of later layers.
"""

from __future__ import annotations

import numpy as np


class Held:
    """What the caches hold.

    Args:
        batch: B.
        capacity: M of static caches; None for growing ones.

    Attributes:
        real: Which columns hold tokens and not padding, (B,P) or (B,M).
        position: That of each row's next token, (B,).
        ends: The column behind each row's last one that counts, (B,).
    """

    def __init__(self, batch: int, capacity: int | None) -> None:
        self.capacity = capacity
        self.real = np.zeros((batch, capacity or 0), bool)
        self.position = np.zeros(batch, np.int64)
        self.ends = np.zeros(batch, np.int64)

    @property
    def tokens(self) -> int:
        """The longest row, in columns."""
        return self.real.shape[1] if self.capacity is None else int(self.ends.max(initial=0))


class Step:
    """One step of N tokens on top of what is held.

    Args:
        held: What is held.
        valid: Which of the new tokens are none of padding, (B,N).

    Attributes:
        positions: (B,N); those of padding are 0.
        mask: What each new token sees, (B,N,T) or (B,N,M), True for visible.
        write_at: The first new row of each entry, (B,).
        real: Which columns hold tokens and no padding after the step, (B,T) or (B,M).
    """

    def __init__(self, held: Held, valid: np.ndarray) -> None:
        self._held, self._valid = held, valid
        new = valid.shape[1]
        counted = held.position[:, None] + np.cumsum(valid, axis=1) - 1  # (B,N)
        self.positions = np.where(valid, counted, 0).astype(np.int64)
        self.write_at = held.ends.copy()
        columns = self._columns(new)  # (B,N)
        self.real = self._after(columns)  # (B,T)
        keys = np.arange(self.real.shape[1])
        # (B,N,T): not after the token's own column, and no padding
        seen = (keys <= columns[:, :, None]) & self.real[:, None, :] & valid[:, :, None]
        self.mask = seen | (keys == columns[:, :, None])

    def commit(self) -> None:
        """The step was run: its tokens are held from now on."""
        held, valid = self._held, self._valid
        held.real = self.real
        held.position = held.position + valid.sum(axis=1)
        new = valid.shape[1]
        if held.capacity is None:
            held.ends = held.ends + new
            return
        # Padding behind the last token is not kept.
        behind = np.argmax(valid[:, ::-1], axis=1)
        held.ends = np.where(valid.any(axis=1), held.ends + new - behind, held.ends)

    def _columns(self, new: int) -> np.ndarray:
        return self._held.ends[:, None] + np.arange(new)

    def _after(self, columns: np.ndarray) -> np.ndarray:
        held = self._held
        if held.capacity is None:
            return np.concatenate([held.real, self._valid], axis=1)
        real = held.real.copy()
        np.put_along_axis(real, columns, self._valid, axis=1)
        return real
