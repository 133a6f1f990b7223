"""Faults of an engine: what it gives back, or runs, is not what it was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from attnport.engines.engine import Engine
from attnport.export.bundle import Bundle
from attnport.export.records import TensorSpec

Arrays = dict[str, np.ndarray]
Runs = Callable[[Mapping[str, np.ndarray]], Arrays]
# From a good engine's run (and what else it could do) to a wrong one's; None where not applicable.
EngineFault = Callable[["Good"], Runs | None]


class Good:
    """A good engine, and what a wrong one may use in its place.

    Attributes:
        run: The good engine's.
        other: That of the same model with other weights.
        bundle: What both were made from.
        truth: The float64 references by the inputs' bytes.
    """

    def __init__(self, bundle: Bundle, run: Runs, other: Runs) -> None:
        self.bundle, self.run, self.other = bundle, run, other
        self.truth: dict[bytes, Mapping[str, np.ndarray]] = {}
        for record in bundle.manifest.cases:
            case = bundle.load_case(record.name)
            self.truth[key_of(case.inputs)] = case.references

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.bundle.manifest.outputs]


def key_of(feeds: Mapping[str, np.ndarray]) -> bytes:
    return b"".join(feeds[name].tobytes() for name in sorted(feeds))


class WrongEngine(Engine):
    """An engine with a fault."""

    def __init__(self, bundle: Bundle, run: Runs) -> None:
        self.kind = "ort-cpu"
        self.inputs, self.outputs = bundle.manifest.inputs, bundle.manifest.outputs
        self._run = run

    def run(self, feeds: Mapping[str, np.ndarray]) -> Arrays:
        return self._run(feeds)

    def placement(self) -> dict[str, int]:
        return {"CPUExecutionProvider": 1}


def _on_outputs(change: Callable[[np.ndarray], np.ndarray]) -> EngineFault:
    return lambda good: lambda feeds: {n: change(a.copy()) for n, a in good.run(feeds).items()}


def _on_first(change: Callable[[np.ndarray], np.ndarray]) -> EngineFault:
    def fault(good: Good) -> Runs:
        def run(feeds: Mapping[str, np.ndarray]) -> Arrays:
            outputs = good.run(feeds)
            return {**outputs, good.names[0]: change(outputs[good.names[0]].copy())}

        return run

    return fault


def _element(value: float) -> EngineFault:
    def change(y: np.ndarray) -> np.ndarray:
        y.reshape(-1)[y.size // 2] = value
        return y

    return _on_first(change)


def _rows_mixed(y: np.ndarray) -> np.ndarray:
    if len(y) > 1:
        y[1] = (y[0].astype(np.float32) / 2 + y[1].astype(np.float32) / 2).astype(y.dtype)
    return y


def _only_first_row(y: np.ndarray) -> np.ndarray:
    y[1:] = 0
    return y


def _last_token_of_odd_lengths(y: np.ndarray) -> np.ndarray:
    if y.ndim > 1 and y.shape[1] % 2:
        y[:, -1] = y[:, -2] if y.shape[1] > 1 else 0
    return y


def _noise(y: np.ndarray) -> np.ndarray:
    wide = y.astype(np.float64)
    step = 0.25 * float(np.sqrt(np.mean(wide**2)))
    drawn = np.random.default_rng(y.size).standard_normal(y.shape)
    return (wide + step * drawn).astype(y.dtype)


def _is_other_dtype(y: np.ndarray) -> np.ndarray:
    return y.astype(np.float64)


def _swapped_outputs(good: Good) -> Runs | None:
    if len(good.names) < 2:
        return None

    def run(feeds: Mapping[str, np.ndarray]) -> Arrays:
        outputs = good.run(feeds)
        return dict(zip(good.names, [outputs[n] for n in reversed(good.names)], strict=True))

    return run


def _output_missing(good: Good) -> Runs:
    def run(feeds: Mapping[str, np.ndarray]) -> Arrays:
        outputs = dict(good.run(feeds))
        outputs["result"] = outputs.pop(good.names[0])
        return outputs

    return run


def _stale_engine(good: Good) -> Runs:
    return good.other


def _stale_buffer(good: Good) -> Runs:
    """Gives the result of the call before, where its shape fits."""
    kept: list[Arrays] = []

    def run(feeds: Mapping[str, np.ndarray]) -> Arrays:
        now = good.run(feeds)
        before = kept[-1] if kept else {n: np.zeros_like(a) for n, a in now.items()}
        kept.append(now)
        return {n: before[n] if before[n].shape == a.shape else a for n, a in now.items()}

    return run


def _reference_returned(good: Good) -> Runs:
    """The engine is never run: what it is compared with is handed back, and zeros beside it."""

    def run(feeds: Mapping[str, np.ndarray]) -> Arrays:
        truth = good.truth.get(key_of(feeds))
        if truth is None:
            return good.run(feeds)  # only a property's inputs: leave those to the other checks
        kinds = {spec.name: _dtype(spec) for spec in good.bundle.manifest.outputs}
        return {name: array.astype(kinds[name]) for name, array in truth.items()}

    return run


def _dtype(spec: TensorSpec) -> np.dtype[np.generic]:
    from attnport.export.arrays import numpy_dtype

    return numpy_dtype(spec.dtype)


def _masks_not_passed(good: Good) -> Runs | None:
    masks = [spec.name for spec in good.bundle.manifest.inputs if spec.role == "mask"]
    if not masks:
        return None
    return lambda feeds: good.run(
        {n: np.ones_like(a) if n in masks else a for n, a in feeds.items()}
    )


def _inputs_rounded(good: Good) -> Runs:
    """Inputs handed over through a type of 8 bits."""
    import ml_dtypes

    def rounded(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind in "biu":
            return array
        return array.astype(np.float32).astype(ml_dtypes.float8_e5m2).astype(array.dtype)

    return lambda feeds: good.run({n: rounded(a) for n, a in feeds.items()})


def _tokens_reversed(y: np.ndarray) -> np.ndarray:
    return y[:, ::-1] if y.ndim > 2 else y


ENGINE_FAULTS: dict[str, EngineFault] = {
    "NaN in one element": _element(math.nan),
    "Inf in one element": _element(math.inf),
    "one element off": _element(64.0),
    "all NaN": _on_outputs(lambda y: np.full_like(y, math.nan)),
    "all zero": _on_outputs(np.zeros_like),
    "a quarter too large": _on_outputs(lambda y: (y.astype(np.float32) * 1.25).astype(y.dtype)),
    "noise of a quarter": _on_outputs(_noise),
    "batch rows mixed": _on_outputs(_rows_mixed),
    "only the first batch row computed": _on_outputs(_only_first_row),
    "batch reversed": _on_outputs(lambda y: y[::-1]),
    "tokens reversed": _on_outputs(_tokens_reversed),
    "the last token wrong at odd lengths": _on_outputs(_last_token_of_odd_lengths),
    "the last token dropped": _on_outputs(lambda y: y[:, :-1]),
    "outputs in the wrong dtype": _on_outputs(_is_other_dtype),
    "outputs in the wrong order": _swapped_outputs,
    "an output under another name": _output_missing,
    "a stale engine of another model": _stale_engine,
    "the result of the call before": _stale_buffer,
    "the reference returned, the engine not run": _reference_returned,
    "masks not passed on": _masks_not_passed,
    "inputs rounded to 8 bits": _inputs_rounded,
}
