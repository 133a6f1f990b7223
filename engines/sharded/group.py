"""The ranks as a process group of torch.distributed: who takes part, and sums over them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.errors import EngineUnavailableError, UsageError

if TYPE_CHECKING:
    import torch

# torch.distributed's own words for bfloat16, which numpy has none for.
_AS_INTEGERS = "bfloat16"


class RankGroup:
    """This process as one of the ranks.

    Args:
        rank: Which.
        ranks: How many there should be.
        timeout_seconds: How long a sum waits for the slowest rank.
        start_seconds: How long the start waits for the last rank to come.
        store: A file that all ranks see, to find each other by; None takes MASTER_ADDR and
            MASTER_PORT, as torchrun sets them.
        device: "cpu" for gloo, "cuda" for NCCL.

    Raises:
        UsageError: If there are more or fewer processes than ranks.
        EngineUnavailableError: If not all ranks came in time, or torch lacks the backend.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        *,
        timeout_seconds: float,
        start_seconds: float,
        store: Path | None = None,
        device: str = "cpu",
    ) -> None:
        import torch.distributed as dist

        backend = "gloo" if device == "cpu" else "nccl"
        if not dist.is_available() or (backend == "nccl" and not dist.is_nccl_available()):
            raise EngineUnavailableError(f"this torch has no {backend}: install one that has")
        self._dist: Any = dist
        self.rank, self.ranks, self._device = rank, ranks, device
        if device == "cuda":
            import torch

            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        where = f"file://{store.resolve()}" if store is not None else "env://"
        try:
            dist.init_process_group(
                "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
                init_method=where,
                rank=rank,
                world_size=ranks,
                timeout=timedelta(seconds=start_seconds),
            )
            self._sums = dist.new_group(
                timeout=timedelta(seconds=timeout_seconds), backend=backend
            )
        except (RuntimeError, ValueError) as err:
            raise EngineUnavailableError(
                f"rank {rank} of {ranks} waited {start_seconds:g} s for the others to start, and "
                f"not all of them did ({_first_line(err)}): start every rank"
            ) from err
        self._timeout_seconds = timeout_seconds

    def require_same(self, what: str, value: object) -> None:
        """Checks that all ranks say the same of something.

        Raises:
            UsageError: If not; says who says what.
        """
        said: list[object] = [None] * self.ranks
        self._dist.all_gather_object(said, value)
        if any(other != said[0] for other in said):
            each = ", ".join(f"rank {rank}: {other}" for rank, other in enumerate(said))
            raise UsageError(f"the ranks do not belong together, their {what} differs ({each})")

    def sum(self, partial: np.ndarray) -> np.ndarray:
        """The sum of what all ranks give; every rank gets the same bits.

        Raises:
            EngineUnavailableError: If a rank does not take part within the time-out.
        """
        tensor = _tensor(partial).to(self._device)
        try:
            self._dist.all_reduce(tensor, group=self._sums)
        except RuntimeError as err:
            raise EngineUnavailableError(
                f"rank {self.rank} waited for a sum over {self.ranks} ranks, and another rank died "
                f"or did not answer within {self._timeout_seconds:g} s ({_first_line(err)})"
            ) from err
        return _array(tensor.cpu(), partial.dtype)

    def close(self) -> None:
        """Leaves the group."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group()


def world_from_environment(names: Sequence[str] = ("RANK", "WORLD_SIZE")) -> tuple[int, int]:
    """The rank and the number of ranks, as torchrun sets them.

    Raises:
        UsageError: If they are not set.
    """
    try:
        rank, ranks = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError) as err:
        raise UsageError(
            "RANK and WORLD_SIZE are not set: start the ranks with `torchrun --nproc-per-node N`"
        ) from err
    return rank, ranks


def _tensor(array: np.ndarray) -> torch.Tensor:
    """A copy, since the sum is written over it."""
    import torch

    if array.dtype.name == _AS_INTEGERS:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, order="C"))


def _array(tensor: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray:
    import torch

    if dtype.name == _AS_INTEGERS:
        return tensor.view(torch.int16).numpy().view(dtype)
    array: np.ndarray = tensor.numpy()
    return array


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
