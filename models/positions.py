"""Rotary positions: queries and keys turned by an angle that grows with the token's position.

Dimension letters: B batch, H heads, N tokens, K head size.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding"; halves are
paired as in Llama (element i with i + K/2), so that its weights load.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnport.errors import ModuleError


class Rotary(nn.Module):
    """The cosines and sines of a head's angles at given positions.

    Args:
        head_size: K; must be even.
        theta: The base of the geometric series of frequencies.

    Raises:
        ModuleError: If K is odd.
    """

    def __init__(self, head_size: int, theta: float = 10000.0) -> None:
        super().__init__()
        if head_size % 2:
            raise ModuleError(
                f"rotary positions turn pairs of elements, and the head size is {head_size}: take "
                "another d_model or num_heads, so that it is even"
            )
        self.head_size, self.theta = head_size, theta

    def extra_repr(self) -> str:
        return f"head_size={self.head_size}, theta={self.theta}"

    def forward(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for each token.

        Angles are computed in float32 at least: position 4097 is no float16 number.

        Args:
            positions: (B,N) int64.
            like: Gives the dtype of the result.

        Returns:
            Two of (B,1,N,K).
        """
        wide = torch.promote_types(like.dtype, torch.float32)
        steps = torch.arange(0, self.head_size, 2, device=positions.device).to(wide)
        frequencies = self.theta ** (-steps / self.head_size)  # (K/2,)
        angles = positions[:, None, :, None].to(wide) * frequencies  # (B,1,N,K/2)
        angles = torch.cat([angles, angles], dim=-1)  # (B,1,N,K)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair of elements: (B,H,N,K) with (B,1,N,K) twice."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin
