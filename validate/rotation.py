"""How many sets of inputs take turns, so that none is found in the cache that an earlier run left.

A benchmark that runs one set over and over reads it from the device's level-2 cache; in use inputs
come fresh from elsewhere. Weights are not rotated: in use they are the same from run to run, too.
"""

from __future__ import annotations

from dataclasses import dataclass

# All sets together are to exceed the cache by so much, since replacement is not strictly by age.
TIMES_THE_CACHE = 2
# Sets of a few KiB would have to be thousands, and each is a CUDA graph of its own.
MOST_SETS = 64
# Of what is free on the device.
_SHARE_OF_FREE = 0.25


@dataclass(frozen=True)
class Rotation:
    """Sets of inputs and outputs that take turns.

    Attributes:
        sets: How many.
        set_bytes: Size of one, inputs and outputs together.
        cache_bytes: Size of the device's level-2 cache.
    """

    sets: int
    set_bytes: int
    cache_bytes: int

    @property
    def beyond_cache(self) -> bool:
        """Whether a set has left the cache before its turn comes again."""
        return self.sets * self.set_bytes >= TIMES_THE_CACHE * self.cache_bytes

    @property
    def words(self) -> str:
        """What a reader must know to quote the latency."""
        total, cache = self.sets * self.set_bytes / 2**20, self.cache_bytes / 2**20
        taken = (
            "taken from beyond" if self.beyond_cache else "which they may lie in: they are within"
        )
        return (
            f"{self.sets} sets of inputs in turn, {total:.1f} MiB together, {taken} the cache of "
            f"{cache:.1f} MiB"
        )


def rotation_for(set_bytes: int, cache_bytes: int, free_bytes: int) -> Rotation:
    """The fewest sets that exceed the cache, as far as memory and the number of sets allow.

    Args:
        set_bytes: Size of one set, inputs and outputs together.
        cache_bytes: Size of the device's level-2 cache.
        free_bytes: Memory that is free on the device.

    >>> rotation_for(4 << 20, 50 << 20, 80 << 30).sets
    25
    """
    wanted = -(-TIMES_THE_CACHE * cache_bytes // max(set_bytes, 1))
    room = int(free_bytes * _SHARE_OF_FREE) // max(set_bytes, 1)
    return Rotation(max(1, min(wanted, room, MOST_SETS)), set_bytes, cache_bytes)
