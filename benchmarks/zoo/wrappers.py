"""Modules around models of `transformers`: tensors in, one tensor out, inputs by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Ids(nn.Module):
    """A model of token ids alone."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(input_ids=input_ids, **self.options)[0]
        return result  # (B,S,D)


class PaddedIds(nn.Module):
    """A model of token ids and a padding mask, 1 where there is a token."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, **self.options
        )[0]
        return result  # (B,S,D)


class Pixels(nn.Module):
    """A model of images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(pixel_values=pixel_values)[0]
        return result  # (B,N,D)


class Sound(nn.Module):
    """A model of a waveform or a spectrogram, its first argument."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(sound)[0]
        return result  # (B,N,D)


class SourceAndTarget(nn.Module):
    """An encoder and a decoder, both of token ids."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(
            input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False
        )[0]
        return result  # (B,S,D)


class TargetAndMemory(nn.Module):
    """A decoder of token ids that looks at what an encoder gave."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(
            input_ids=input_ids, encoder_hidden_states=memory, use_cache=False
        )[0]
        return result  # (B,S,D)
