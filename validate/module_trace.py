"""Every tensor that a float64 module computes, by its fingerprint, with the line that made it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from attnport.export.module_forms import call_module, module_in_dtype, to_numpy, to_torch
from attnport.export.watched import Watched
from attnport.validate.fingerprint import Fingerprint, fingerprint

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")


@dataclass(frozen=True)
class Made:
    """A tensor that the module computed.

    Attributes:
        found: Its fingerprint.
        operator: The operator that made it.
        path: The submodule, such as "self_attention.W_O"; "" for the module itself.
        line: The line of the module's own code, FILE:LINE.
    """

    found: Fingerprint
    operator: str
    path: str
    line: str


def trace_module(module: torch.nn.Module, inputs: Mapping[str, np.ndarray]) -> list[Made]:
    """Runs a float64 copy of a module and keeps a few numbers of every tensor.

    Args:
        module: The module.
        inputs: In the bundle's dtypes; widened here.
    """
    double = module_in_dtype(module, "float64")
    watch = _Watch()
    handles = []
    for path, part in double.named_modules():
        handles.append(part.register_forward_pre_hook(watch.entering(path)))
        handles.append(part.register_forward_hook(watch.leaving()))
    feeds = {name: _wide(to_torch(array)) for name, array in inputs.items()}
    try:
        with watch:
            call_module(double, feeds)
    finally:
        for handle in handles:
            handle.remove()
    given = [
        Made(fingerprint(to_numpy(tensor)), "input", name, "")
        for name, tensor in feeds.items()
        if tensor.is_floating_point()
    ]
    return [*given, *watch.made]


class _Watch(Watched):
    def __init__(self) -> None:
        super().__init__()
        self.made: list[Made] = []
        self._paths: list[str] = []

    def entering(self, path: str) -> Callable[..., None]:
        return lambda *_: self._paths.append(path)

    def leaving(self) -> Callable[..., None]:
        def leave(*_: object) -> None:
            self._paths.pop()

        return leave

    def operator(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = super().operator(func, args, kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                path = self._paths[-1] if self._paths else ""
                found = fingerprint(leaf.detach().cpu().double().numpy())
                self.made.append(Made(found, str(func), path, _line()))
        return result


def _line() -> str:
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_OWN):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
