"""The forms in which one PyTorch module is run: its dtype, its SDPA form, its inputs by name.

What is exported, what the float64 reference computes and what the torch engines run all come from
here, so that they are the same module.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import torch
from torch.nn.modules import transformer
from torch.utils import _pytree as pytree

from attnport.errors import ModuleError
from attnport.export.watched import Watched

_TORCH_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TORCH_DTYPES.items()}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name used in records."""
    return _TORCH_DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """The name used in records.

    Raises:
        ModuleError: If no record can hold tensors of that dtype.
    """
    if dtype not in _NAMES:
        raise ModuleError(
            f"tensors of {dtype} cannot be exported; use one of {', '.join(_TORCH_DTYPES)}"
        )
    return _NAMES[dtype]


def module_in_dtype(module: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """A copy of the module with floating parameters and buffers in `dtype`, in eval mode.

    Raises:
        ModuleError: If the module cannot be copied.
    """
    try:
        copied = copy.deepcopy(module)
    except Exception as err:  # deepcopy runs the module's own code
        raise ModuleError(
            f"{type(module).__name__} cannot be copied ({err}): export needs a copy of its own, "
            "so detach what __deepcopy__ refuses"
        ) from err
    return copied.to(_TORCH_DTYPES[dtype]).eval()


def sdpa_form(module: torch.nn.Module) -> torch.nn.Module | None:
    """A copy whose attentions call F.scaled_dot_product_attention, where the module offers that.

    A module offers it by an attribute `attention_form` ("eager" or "sdpa") on the submodules that
    compute attention, as the reference modules have.
    """
    if not any(hasattr(part, "attention_form") for part in module.modules()):
        return None
    # The copy has the same weights, not a second set of them.
    tensors = [*module.parameters(), *module.buffers()]
    copied = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    for part in copied.modules():
        if hasattr(part, "attention_form"):
            setattr(part, "attention_form", "sdpa")  # noqa: B010 - not a declared attribute
    return copied


class _WatchSdpa(Watched):
    """Notes whether aten::scaled_dot_product_attention is called.

    At the dispatcher, and not as a function mode: torch.nn.MultiheadAttention's functional form
    disables those around the call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.called = False

    def operator(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.called = self.called or func is torch.ops.aten.scaled_dot_product_attention.default
        return super().operator(func, args, kwargs)


def calls_sdpa(module: torch.nn.Module, feeds: Mapping[str, torch.Tensor]) -> bool:
    """Whether running the module on these inputs calls F.scaled_dot_product_attention."""
    with _WatchSdpa() as watch:
        call_module(module, feeds)
    return bool(watch.called)


@contextlib.contextmanager
def slow_path() -> Iterator[None]:
    """torch.nn.MultiheadAttention without its inference fast path.

    The fast path is not what is exported: it differs at padded positions, and it cannot be traced.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with mock.patch.object(transformer, "_detect_is_causal_mask", _is_causal_as_told):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _is_causal_as_told(
    mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """In place of torch.nn's own, which compares the mask's values and so cannot be captured.

    The mask is applied all the same; the answer only chooses a faster kernel (torch 2.13).
    """
    return bool(is_causal)


def call_module(module: torch.nn.Module, feeds: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Runs the module on inputs named as its forward's parameters, and flattens the result.

    Names that are not parameters of forward (a *args module) are given by position, in order.

    Returns:
        The output tensors in the order in which the exporter numbers them; None is left out.
    """
    parameters = inspect.signature(module.forward).parameters
    with torch.inference_mode(), slow_path():
        if all(name in parameters for name in feeds):
            result = module(**feeds)
        else:
            result = module(*feeds.values())
    return flatten_outputs(result)


def flatten_outputs(result: object) -> list[torch.Tensor]:
    """The tensors of a module's result, in torch.export's order.

    Raises:
        ModuleError: If there is none.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if not leaves:
        raise ModuleError(f"forward returned {type(result).__name__}, which holds no tensor")
    return leaves


def to_torch(array: np.ndarray) -> torch.Tensor:
    """A tensor over a copy of the array; bfloat16 by its bits."""
    contiguous = np.array(array, order="C", copy=True)
    if contiguous.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(contiguous.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(contiguous)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's values as a numpy array; bfloat16 becomes ml_dtypes' by its bits."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()
