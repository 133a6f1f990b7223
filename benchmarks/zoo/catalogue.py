"""Every architecture of the zoo, by name."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.decoders import DECODERS
from benchmarks.zoo.plain import PLAIN
from benchmarks.zoo.sequences import SEQUENCES
from benchmarks.zoo.stacks import STACKS
from benchmarks.zoo.text_encoders import ENCODERS
from benchmarks.zoo.torch_nn import TORCH_NN
from benchmarks.zoo.trained import TRAINED
from benchmarks.zoo.vision_audio import VISION_AUDIO

from attnport.errors import UsageError

_ALL = (*ENCODERS, *DECODERS, *SEQUENCES, *VISION_AUDIO, *TORCH_NN, *PLAIN, *STACKS, *TRAINED)
ARCHITECTURES: dict[str, Architecture] = {entry.name: entry for entry in _ALL}
assert len(ARCHITECTURES) == len(_ALL), "a name stands for two architectures"


def chosen(names: Sequence[str]) -> list[Architecture]:
    """Those that are named, by name or family; all where none is.

    Raises:
        UsageError: If a name is neither.
    """
    families = {entry.family for entry in _ALL}
    for name in names:
        if name not in ARCHITECTURES and name not in families:
            raise UsageError(
                f"{name!r} is no architecture of the zoo: name some of {', '.join(ARCHITECTURES)}, "
                f"or a family: {', '.join(sorted(families))}"
            )
    return [e for e in _ALL if not names or e.name in names or e.family in names]
