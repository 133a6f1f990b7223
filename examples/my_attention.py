r"""A module of your own, as the README exports it: attention that knows nothing of attnport.

attnport export examples/my_attention.py:make --out build/mine \
    --input 'x:float32[batch,seq,64]=activation' --input 'visible:bool[batch,seq]=mask' \
    --axis batch=1:2:8 --axis seq=1:64:256
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class MyAttention(nn.Module):
    """Self-attention, written by hand. Letters: B batch, N tokens, D width, H heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Attends to the tokens that are visible, and not to padding: (B, N, D), (B, N) -> (B, N, D)."""
        b, n, d = x.shape
        q, k, v = (
            part(x).view(b, n, self.heads, d // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )  # (B, H, N, D / H) each
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        scores = scores.masked_fill(~visible[:, None, None, :], float("-inf"))
        context = torch.softmax(scores, dim=-1) @ v
        return self.out(context.transpose(1, 2).reshape(b, n, d))


def make(width: int = 64, heads: int = 4) -> MyAttention:
    """Makes the module; load your weights here. Sizes are set with `--set width=128`."""
    return MyAttention(width, heads)
