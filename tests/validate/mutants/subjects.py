"""The models that faults are planted in, exported for real, small enough to try hundreds of faults.

Letters: B batch, N queries, T keys, D width, H heads, Hkv key/value heads, Dh head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from attnport.axes import Axis, AxisSum, axes_by_name
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.models.attention import (
    CrossAttention,
    MaskedMultiHeadSelfAttention,
    MultiHeadSelfAttention,
)
from attnport.models.blocks import EncoderBlock
from attnport.models.cached_inputs import cache_inputs
from attnport.models.decoder_lm import DecoderLM

D, H, HKV = 64, 4, 2
CAPACITY = 32
DTYPES = ("float32", "float16", "bfloat16")


class GroupedPast(nn.Module):
    """Grouped-query attention whose queries are the last N of T tokens; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.W_Q, self.W_O = (nn.Linear(D, D, bias=False) for _ in range(2))
        self.W_K, self.W_V = (nn.Linear(D, D * HKV // H, bias=False) for _ in range(2))

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        b, n, _ = x.shape
        t = memory.shape[1]
        q = self.W_Q(x).view(b, n, H, D // H).transpose(1, 2)  # (B,H,N,Dh)
        k = self.W_K(memory).view(b, t, HKV, D // H).transpose(1, 2)  # (B,Hkv,T,Dh)
        v = self.W_V(memory).view(b, t, HKV, D // H).transpose(1, 2)
        k, v = (one.repeat_interleave(H // HKV, dim=1) for one in (k, v))
        scores = q @ k.transpose(-1, -2) / (D // H) ** 0.5
        late = torch.arange(t) > torch.arange(n)[:, None] + (t - n)  # (N,T)
        attention = torch.softmax(scores.masked_fill(late, -torch.inf), -1)
        context = (attention @ v).transpose(1, 2).flatten(2)
        return self.W_O(context), x + context


@dataclass(frozen=True)
class Subject:
    """One model.

    Attributes:
        name: Its name; also that of its graph.
        make: Makes the module.
        inputs: For each argument its dtype and dimensions, an axis's name or a size.
        roles: Of inputs that are not activations.
        by_place: Whether forward takes them by their order and not by name.
        gain: How large its matrices are; deep ones magnify roundings beyond what bfloat16 tells.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: dict[str, tuple[torch.dtype, tuple[str | int, ...]]]
    roles: dict[str, str]
    by_place: bool = False
    gain: float = 1.5


def _decoder(name: str, *, static: bool) -> Subject:
    """A language model with caches: rotary, grouped-query; or learned positions, static."""

    def make() -> nn.Module:
        return DecoderLM(
            D, H, num_layers=2, vocab_size=61, max_positions=CAPACITY, tied=False, static=static,
            kv_heads=HKV, d_ff=2 * D, rotary=not static,
        )  # fmt: skip

    past, total = (CAPACITY, CAPACITY) if static else ("past", "total")
    ids: tuple[torch.dtype, tuple[str | int, ...]] = (torch.int64, ("batch", "seq"))
    inputs: dict[str, tuple[torch.dtype, tuple[str | int, ...]]] = {
        "token_ids": ids,
        "positions": ids,
        "mask": (torch.bool, ("batch", "seq", total)),
    }
    if static:
        inputs["write_at"] = (torch.int64, ("batch",))
    for one in cache_inputs(2, static=static):
        if one != "write_at":
            inputs[one] = (torch.float32, ("batch", HKV, past, D // H))
    roles = {"token_ids": "token_ids", "positions": "positions", "mask": "mask"}
    return Subject(name, make, inputs, roles, by_place=True, gain=0.9)


_X = (torch.float32, ("batch", "seq", D))
_MEMORY = (torch.float32, ("batch", "memory", D))
SUBJECTS: dict[str, Subject] = {
    one.name: one
    for one in (
        Subject("plain", lambda: MultiHeadSelfAttention(D, H, bias=True), {"x": _X}, {}),
        Subject("causal", lambda: MaskedMultiHeadSelfAttention(D, H), {"x": _X}, {}),
        Subject(
            "masked",
            lambda: MultiHeadSelfAttention(D, H, bias=True),
            {"x": _X, "mask": (torch.bool, ("batch", 1, "seq", "seq"))},
            {"mask": "mask"},
        ),
        Subject("cross", lambda: CrossAttention(D, H), {"x": _X, "memory": _MEMORY}, {}),
        Subject(
            "encoder",
            lambda: EncoderBlock(D, H, d_ff=2 * D),
            {"x": _X, "mask": (torch.bool, ("batch", 1, 1, "seq"))},
            {"mask": "mask"},
        ),
        Subject("past", GroupedPast, {"x": _X, "memory": _MEMORY}, {}),
        _decoder("decoder", static=False),
        _decoder("decoder-static", static=True),
    )
}
# Queries never outnumber keys, so that no query is without one.
_AXES = {"batch": (1, 2, 4), "seq": (1, 8, 15), "memory": (15, 19, 23), "past": (0, 5, 40)}
_TOTAL = AxisSum("total", ("past", "seq"))


def module_of(subject: Subject, seed: int) -> nn.Module:
    """The module with weights and biases that matter: none is near zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = subject.make().eval()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_().mul_(subject.gain * parameter.shape[-1] ** -0.5)
                elif "norm" not in name:
                    parameter.normal_()
    return module


def exported(
    subject: Subject, dtype: str, folder: Path, seed: int = 1, max_cases: int | None = None
) -> Bundle:
    """The model as a bundle with its first cases."""
    dims = {d for _, shape in subject.inputs.values() for d in shape if isinstance(d, str)}
    given = [Axis(name, *sizes) for name, sizes in _AXES.items() if name in dims]
    axes = axes_by_name([*given, *([_TOTAL] if "total" in dims else [])])
    args = {
        name: torch.ones([axes[d].opt if isinstance(d, str) else d for d in shape], dtype=kind)
        for name, (kind, shape) in subject.inputs.items()
    }
    if "write_at" in args:
        args["write_at"] = torch.zeros_like(args["write_at"])
    shapes = {
        name: {at: d for at, d in enumerate(shape) if isinstance(d, str)}
        for name, (_, shape) in subject.inputs.items()
    }
    by_place = subject.by_place
    return export_module(
        module_of(subject, seed),
        tuple(args.values()) if by_place else (),
        folder / f"{subject.name}-{dtype}-{seed}",
        dynamic_shapes=tuple(shapes.values()) if by_place else shapes,
        axes=axes, dtype=dtype, inputs=subject.roles, kwargs=None if by_place else args,
        name=subject.name, max_cases=max_cases,
    )  # fmt: skip


@cache
def graph_of(folder: Path, name: str) -> onnx.ModelProto:
    """The bundle's graph with its weights, bearing the model's name."""
    model = onnx.load(folder / "model.onnx")
    model.graph.name = name
    return model
