"""What an entry of the zoo is, and the inputs that entries share.

Sizes: two layers, D = 64, H = 4, so Dh = 16, unless an entry says otherwise. B is batch and S
sequence; every entry is captured at B = 2, S = 16 and looked at at others, up to B = 3, S = 23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

B, S, D, H = 2, 16, 64, 4
VOCABULARY = 99
BATCH, SEQ = (1, 2, 3), (1, 16, 23)
Axes = dict[str, tuple[int, int, int]]


@dataclass(frozen=True)
class Architecture:
    """One module, and what is to be expected of it, counted by hand from how it is defined.

    Attributes:
        name: What `make zoo NAMES=…` takes.
        family: Where it stands in the scoreboard.
        make: Makes the module, in eval mode, its weights from seed 0.
        example: Makes the arguments at B = 2, S = 16.
        dynamic_shapes: Which axis stands where, as torch.export takes it.
        axes: The range of each axis.
        attentions: How many attentions it runs.
        groups: How many projection groups they have: of one attention, two or three projections
            of one tensor, packed ones counted too.
        why: How the two numbers come about.
        causal: How many of the attentions are purely causal, without a past.
        dead_rows: How many can meet a query with every key hidden.
        unfusable: How many no kernel of TensorRT takes, by the limit that is to blame.
        unmergeable: How many groups mathematics does not let merge, by the reason.
        roles: What an input means, where the graph does not show it.
        half: The half precision that it is looked at in: bfloat16 where float16 cannot be captured.
        uncapturable: Why torch.export itself cannot capture it, for us or anyone; it must be refused
            in a sentence, and stands in no total.
        most_kernels: The most kernels that its plan in fp16 should run, where a form was measured.
    """

    name: str
    family: str
    make: Callable[[], nn.Module]
    example: Callable[[], tuple[torch.Tensor, ...]]
    dynamic_shapes: tuple[Mapping[int, str] | None, ...]
    attentions: int
    groups: int
    why: str
    axes: Axes = field(default_factory=lambda: {"batch": BATCH, "seq": SEQ})
    causal: int = 0
    dead_rows: int = 0
    unfusable: Mapping[str, int] = field(default_factory=dict)
    unmergeable: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    half: str = "float16"
    uncapturable: str = ""
    most_kernels: int | None = None

    @property
    def fusable(self) -> int:
        return self.attentions - sum(self.unfusable.values())

    @property
    def mergeable(self) -> int:
        return self.groups - sum(self.unmergeable.values())


def token_ids(batch: int = B, seq: int = S) -> torch.Tensor:
    """(B,S), none of them the ids 0 to 2, which models keep for padding."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (batch, seq), generator=generator)


def visible(batch: int = B, seq: int = S) -> torch.Tensor:
    """(B,S) ones: a padding mask that hides nothing."""
    return torch.ones(batch, seq, dtype=torch.int64)


def activation(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Makes a module from seed 0, with weights that leave attention something to do.

    Initial weights of 0.02 and biases of 0 make every score about 0 and every softmax uniform, so
    that a wrong scale or a lost bias would not show. Matrices get variance 1/fan_in instead, which
    keeps the variance of what they multiply; biases become small, and not zero.
    """

    def made() -> nn.Module:
        torch.manual_seed(0)
        module = make().eval()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.endswith("bias") and parameter.dim() == 1:
                    parameter.normal_(std=0.1)
                elif parameter.dim() == 2 and "embed" not in name.lower():
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
        return module

    return made
