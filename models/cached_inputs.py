"""What a module with caches takes and gives, by name: one rule for modules and the registry.

concat   past_key_0, past_value_0, past_key_1, …     -> present_key_0, present_value_0, …
static   write_at, cache_key_0, cache_value_0, …     -> updated_key_0, updated_value_0, …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from attnport.errors import ModuleError


class WithCaches(nn.Module):
    """A module whose forward takes tensors by position and knows their names.

    Attributes:
        input_names: What forward takes, in order.
        output_names: What it returns, in order.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]

    def by_name(self, inputs: Sequence[Tensor]) -> Mapping[str, Tensor]:
        """The inputs of one call.

        Raises:
            ModuleError: If their number is another.
        """
        if len(inputs) != len(self.input_names):
            raise ModuleError(
                f"{type(self).__name__} takes {len(self.input_names)} inputs "
                f"({', '.join(self.input_names)}), and {len(inputs)} were given"
            )
        return dict(zip(self.input_names, inputs, strict=True))


def cache_inputs(layers: int, *, static: bool) -> tuple[str, ...]:
    """The names of the caches that go in, write_at first where they are static."""
    pairs = _pairs("cache" if static else "past", layers)
    return ("write_at", *pairs) if static else pairs


def cache_outputs(layers: int, *, static: bool) -> tuple[str, ...]:
    """The names of the caches that come out."""
    return _pairs("updated" if static else "present", layers)


def caches_of(given: Mapping[str, Tensor], layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer."""
    word = "cache" if "write_at" in given else "past"
    return given[f"{word}_key_{layer}"], given[f"{word}_value_{layer}"]


def _pairs(word: str, layers: int) -> tuple[str, ...]:
    return tuple(f"{word}_{what}_{i}" for i in range(layers) for what in ("key", "value"))
