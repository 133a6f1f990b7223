"""The PyTorch module itself, in the bundle's dtype and in one of its forms, on the CPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from attnport.engines.engine import Engine
from attnport.engines.feeds import compile_check
from attnport.engines.kinds import EngineKind
from attnport.errors import EngineUnavailableError, ModuleError, UsageError
from attnport.export.arrays import numpy_dtype
from attnport.export.bundle import Bundle

if TYPE_CHECKING:
    import torch


class TorchEngine(Engine):
    """A copy of the module, run under inference mode.

    Args:
        bundle: What the module was exported to: it gives dtype, names and ranges.
        kind: "torch-eager", "torch-sdpa" or "torch-compile".
        module: The module, left as it is.
        threads: How many threads PyTorch may use while it runs; None leaves its setting.

    Raises:
        EngineUnavailableError: For "torch-sdpa", if the module has no SDPA form.
    """

    def __init__(
        self,
        bundle: Bundle,
        kind: EngineKind,
        module: torch.nn.Module,
        *,
        threads: int | None = None,
    ) -> None:
        from attnport.export.module_forms import module_in_dtype

        self.kind = kind.name
        self.inputs = bundle.manifest.inputs
        self.outputs = bundle.manifest.outputs
        self._check = compile_check(self.inputs, bundle.axes)
        self._threads = threads
        self._module: torch.nn.Module | None = self._form(
            bundle, module_in_dtype(module, bundle.dtype)
        )

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        from attnport.export.module_forms import call_module, to_numpy, to_torch

        checked = self._check(feeds)
        module = self.module
        tensors = {name: to_torch(array) for name, array in checked.items()}
        with _ONE_AT_A_TIME, settings(self.kind, self._threads), _naming_compiler(self.kind):
            results = call_module(module, tensors)
        if len(results) != len(self.outputs):
            raise ModuleError(
                f"the module returned {len(results)} tensors, and the bundle has "
                f"{len(self.outputs)} outputs: give the module that the bundle was exported from"
            )
        return {
            output.name: to_numpy(result)
            for output, result in zip(self.outputs, results, strict=True)
        }

    @property
    def module(self) -> torch.nn.Module:
        """The form of the module that it runs.

        Raises:
            UsageError: If the engine was closed.
        """
        if self._module is None:
            raise UsageError(f"this {self.kind} engine was closed: open it again")
        return self._module

    def placement(self) -> dict[str, int]:
        """How many submodules without parts of their own the CPU runs."""
        if self._module is None:
            return {}
        leaves = sum(not any(part.children()) for part in self._module.modules())
        return {"cpu": leaves}

    def close(self) -> None:
        self._module = None

    def _form(self, bundle: Bundle, module: torch.nn.Module) -> torch.nn.Module:
        """The form of the module that this kind runs; `module` is already a copy."""
        from attnport.export.module_forms import sdpa_form

        if self.kind == "torch-eager":
            return module
        faster = sdpa_form(module)
        if self.kind == "torch-compile":
            compiled = faster or module
            # In place, so that forward keeps its signature and is called by names.
            compiled.compile(dynamic=True)
            return compiled
        if faster is None and not self._calls_sdpa(bundle, module):
            raise EngineUnavailableError(
                f"{type(module).__name__} has no SDPA form (no attribute attention_form, "
                "and it does not call F.scaled_dot_product_attention): use torch-eager"
            )
        return faster or module

    def _calls_sdpa(self, bundle: Bundle, module: torch.nn.Module) -> bool:
        from attnport.export.module_forms import calls_sdpa, to_torch

        feeds = {name: to_torch(array) for name, array in _smallest_feeds(bundle).items()}
        with _ONE_AT_A_TIME, settings(self.kind, self._threads):
            return calls_sdpa(module, feeds)


def _smallest_feeds(bundle: Bundle) -> dict[str, np.ndarray]:
    """Ones of the smallest sizes that are not empty: valid as mask, length, index and activation."""
    axes = bundle.axes
    return {
        spec.name: np.ones(
            [
                dim if isinstance(dim, int) else max(1, axes[dim].min if dim in axes else 1)
                for dim in spec.shape
            ],
            numpy_dtype(spec.dtype),
        )
        for spec in bundle.manifest.inputs
    }


# The settings are the process's: of two threads one would run with, and put back, the other's.
_ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def settings(kind: str, threads: int | None) -> Iterator[None]:
    """PyTorch's process-wide settings for one run, put back afterwards.

    The fast path of nn.MultiheadAttention and nn.TransformerEncoder is off: it is not what is
    exported, and it differs at padded positions (torch 2.13).
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fast_path, before = torch.backends.mha.get_fastpath_enabled(), torch.get_num_threads()
    backend = sdpa_kernel(SDPBackend.MATH) if kind == "torch-eager" else contextlib.nullcontext()
    torch.backends.mha.set_fastpath_enabled(False)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with backend:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        if threads is not None:
            torch.set_num_threads(before)


@contextlib.contextmanager
def _naming_compiler(kind: str) -> Iterator[None]:
    """Says of torch-compile, which compiles at its first run, that the compiler failed."""
    if kind != "torch-compile":
        yield
        return
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as err:
        reason = (str(err).splitlines() or [type(err).__name__])[0]
        raise EngineUnavailableError(
            f"torch.compile cannot compile the module here ({reason}): use torch-sdpa or "
            "torch-eager"
        ) from err
