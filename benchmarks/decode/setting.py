"""The model, its two bundles, and everything that decodes it at a given past length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from benchmarks.decode.torch_forms import TorchCat, TorchPreallocated

from attnport.axes import Axis, AxisSum, axes_by_name
from attnport.engines.decoding.open import carried_session, open_decoding
from attnport.engines.decoding.session import DecodingSession
from attnport.engines.open import open_engine
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.models.cached_inputs import cache_inputs
from attnport.models.decoder_lm import DecoderLM

D, H, LAYERS, VOCABULARY = 512, 8, 4, 1024
MOST = 2304
# A static cache is taken as long as needed, in steps of this many rows: what a server would do.
BUCKET = 256
THREADS = 1


class Contestant(Protocol):
    """Something that decodes one token at a time from a past of one length."""

    def reset(self) -> None:
        """Goes back to that length."""

    def step(self, token: int) -> object:
        """Runs one token."""


@dataclass
class OfSession:
    """A session of ours, set back by giving it the past again."""

    session: DecodingSession
    past: dict[str, np.ndarray]
    real: np.ndarray

    def reset(self) -> None:
        self.session.resume(self.past, self.real)

    def step(self, token: int) -> np.ndarray:
        return self.session.feed(np.array([[token]]))


def make_module(*, static: bool) -> DecoderLM:
    """The model with the same weights in both forms."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DecoderLM(
            D, H, num_layers=LAYERS, vocab_size=VOCABULARY, tied=False, static=static
        ).eval()


def export(folder: Path, *, static: bool) -> Bundle:
    """The bundle of one form; the capacity of static caches is an axis."""
    total, past = ("capacity", "capacity") if static else ("total", "past")
    shapes: dict[str, dict[int, str]] = {
        "token_ids": {0: "batch", 1: "seq"},
        "positions": {0: "batch", 1: "seq"},
        "mask": {0: "batch", 1: "seq", 2: total},
    }
    own = [Axis("capacity", BUCKET, 512, MOST)] if static else [Axis("past", 0, 64, MOST)]
    given: list[Axis | AxisSum] = [Axis("batch", 1, 1, 4), Axis("seq", 1, 8, BUCKET), *own]
    axes = axes_by_name(given if static else [*given, AxisSum("total", ("past", "seq"))])
    args = {
        name: torch.ones([axes[shape[at]].opt for at in shape], dtype=torch.int64)
        for name, shape in shapes.items()
    }
    args["mask"] = args["mask"].bool()
    for name in cache_inputs(LAYERS, static=static):
        if name == "write_at":
            args[name], shapes[name] = (
                torch.zeros(axes["batch"].opt, dtype=torch.int64),
                {0: "batch"},
            )
        else:
            args[name] = torch.zeros(axes["batch"].opt, H, axes[past].opt, D // H)
            shapes[name] = {0: "batch", 2: past}
    return export_module(
        make_module(static=static),
        tuple(args.values()),
        folder,
        dynamic_shapes=tuple(shapes.values()),
        axes=axes,
        name="decoder-lm-static" if static else "decoder-lm",
        max_cases=1,
    )


def past_of(length: int) -> dict[str, np.ndarray]:
    """Keys and values of so many tokens, drawn."""
    draws = np.random.default_rng(length)
    return {
        name: draws.standard_normal((1, H, length, D // H)).astype(np.float32)
        for name in cache_inputs(LAYERS, static=False)
    }


def buckets(length: int) -> int:
    """The capacity for a past of that length and some tokens more."""
    return -(-(length + 16) // BUCKET) * BUCKET


def contestants(
    growing: Bundle, static: Bundle, length: int
) -> dict[str, Callable[[], Contestant]]:
    """Everything that decodes from a past of that length; each is made when it is called."""
    past = past_of(length)
    tensors = {name: torch.from_numpy(array) for name, array in past.items()}
    module = make_module(static=False)

    def grown() -> OfSession:
        session = open_decoding(growing, "ort-cpu", threads=THREADS)
        return OfSession(session, past, np.ones((1, length), bool))

    def carried() -> OfSession:
        engine = open_engine(growing, "ort-cpu", threads=THREADS)
        return OfSession(carried_session(growing, engine), past, np.ones((1, length), bool))

    def fixed(capacity: int, *, in_place: bool = True) -> OfSession:
        session = open_decoding(static, "ort-cpu", threads=THREADS, in_place=in_place)
        held = {
            name.replace("past", "cache"): np.pad(
                array, ((0, 0), (0, 0), (0, capacity - length), (0, 0))
            )
            for name, array in past.items()
        }
        return OfSession(session, held, np.arange(capacity)[None] < length)

    return {
        "torch cat": lambda: TorchCat(module, tensors),
        "torch preallocated": lambda: TorchPreallocated(module, tensors, buckets(length)),
        "torch preallocated again": lambda: TorchPreallocated(module, tensors, buckets(length)),
        "growing, bound": grown,
        "growing, carried": carried,
        "static": lambda: fixed(buckets(length)),
        "static, longest": lambda: fixed(MOST),
        "static, two buffers": lambda: fixed(buckets(length), in_place=False),
    }
