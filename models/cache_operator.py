"""Writing new rows into a cache of constant length, as the ONNX operator TensorScatter does.

One operator of torch stands for it, so that it is captured whole (`export.capture_operator`), and
nothing else of the cache is copied by an engine that writes in place.

Dimension letters: B batch, H heads, N new tokens, M length of the cache, K head size.

Source: TensorScatter-24 of the ONNX specification, mode "linear".
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("attnport::tensor_scatter", mutates_args=())
def tensor_scatter(cache: Tensor, rows: Tensor, write_at: Tensor) -> Tensor:
    """The cache with rows written from a position on; the cache itself is left as it was.

    Args:
        cache: (B,H,M,K).
        rows: (B,H,N,K), N at most M.
        write_at: (B,) int64, the position of the first row, at most M less N.

    Returns:
        (B,H,M,K).
    """
    steps = torch.arange(rows.size(2), device=rows.device)
    at = (write_at[:, None] + steps)[:, None, :, None]  # (B,1,N,1)
    return cache.scatter(2, at.expand(rows.shape), rows)


@tensor_scatter.register_fake
def _(cache: Tensor, rows: Tensor, write_at: Tensor) -> Tensor:
    return torch.empty_like(cache)
