"""Plants a fault, judges the engine as `prove` does, and says whether it was caught."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tests.validate.mutants.decoding_faults import DECODING_FAULTS
from tests.validate.mutants.engine_faults import ENGINE_FAULTS, Good, Runs, WrongEngine
from tests.validate.mutants.graph_edit import Edit
from tests.validate.mutants.graph_faults import GRAPH_FAULTS
from tests.validate.mutants.subjects import SUBJECTS, exported, graph_of, module_of
from tests.validate.mutants.weight_faults import WEIGHT_FAULTS

from attnport.engines.decoding.open import carried_session
from attnport.export.bundle import Bundle
from attnport.validate.finding import Finding
from attnport.validate.prove_decoding import judge_decoding
from attnport.validate.prove_engine import Bench, judge_engine
from attnport.validate.reproducer import Reproducers
from attnport.validate.rounded import RoundedEngine
from attnport.validate.stored_case import shipped_cases

_OF_ENGINES = {**ENGINE_FAULTS, **DECODING_FAULTS}
FAULTS = (*GRAPH_FAULTS, *WEIGHT_FAULTS, *_OF_ENGINES)


@dataclass(frozen=True)
class Trial:
    """What became of one fault in one model and dtype.

    Attributes:
        fault: Its name; "" for the good engine.
        model: The model's name.
        dtype: Its dtype.
        caught: Whether some required Finding failed.
        informative: How many cases could prove something.
        by: The first Finding that failed, as check and case; "" where none did.
    """

    fault: str
    model: str
    dtype: str
    caught: bool
    informative: int
    by: str


class Bed:
    """One model in one dtype, exported twice: as it is, and with other weights.

    Args:
        model: The model's name.
        dtype: Its dtype.
        folder: Where the bundles go.
    """

    def __init__(self, model: str, dtype: str, folder: Path) -> None:
        self.model, self.dtype = model, dtype
        self.bundle = exported(SUBJECTS[model], dtype, folder)
        other = exported(SUBJECTS[model], dtype, folder, seed=2, max_cases=1)
        self._graph = graph_of(self.bundle.path, model)
        run = runs_of(self.bundle, self._graph)
        self.good = Good(self.bundle, run, runs_of(other, graph_of(other.path, model)))
        nowhere = Reproducers(None, self.bundle)
        self._bench = Bench(
            self.bundle, shipped_cases(self.bundle), {}, nowhere, lambda what: None
        )

    def faults(self) -> tuple[str, ...]:
        """Those to try: of decoding in models with caches, the others in those without."""
        decoding = bool(self.bundle.manifest.caches)
        return tuple(fault for fault in FAULTS if (fault in DECODING_FAULTS) == decoding)

    def good_trial(self) -> Trial:
        """The engine without a fault, which must not be caught."""
        return self._judged("", self.good.run)

    def trial(self, fault: str) -> Trial | None:
        """The engine with a fault; None where the model has nothing for it to be wrong in."""
        if fault in _OF_ENGINES:
            wrong = _OF_ENGINES[fault](self.good)
            return None if wrong is None else self._judged(fault, wrong)
        edit = Edit(self._graph)
        plant = {**GRAPH_FAULTS, **WEIGHT_FAULTS}[fault]
        return self._judged(fault, runs_of(self.bundle, edit.model)) if plant(edit) else None

    def decoding(self, engine: WrongEngine) -> list[Finding]:
        """The Findings of decoding; none where the model has no caches."""
        if not self.bundle.manifest.caches:
            return []
        return list(
            judge_decoding(
                self.bundle,
                engine.kind,
                lambda: carried_session(self.bundle, engine),
                module_of(SUBJECTS[self.model], 1),
                required=True,
            )
        )

    def _judged(self, fault: str, run: Runs) -> Trial:
        engine = WrongEngine(self.bundle, run)
        findings = judge_engine(engine, None, self._bench, required=True)
        findings += self.decoding(engine)
        failed = [f for f in findings if f.status == "failed" and f.required]
        return Trial(
            fault,
            self.model,
            self.dtype,
            bool(failed),
            sum(_is_informative(f) for f in findings),
            f"{failed[0].check} {failed[0].case}" if failed else "",
        )


def _is_informative(finding: Finding) -> bool:
    return finding.check == "parity" and finding.status != "not run" and finding.case != "coverage"


def runs_of(bundle: Bundle, graph: onnx.ModelProto) -> Runs:
    """What running a graph is: ONNX Runtime, each node rounded where the dtype is bfloat16.

    A graph that cannot even be loaded gives its error when it is run, as an engine would.
    """
    try:
        if bundle.dtype == "bfloat16":
            return RoundedEngine(bundle, graph).run
        session = _session(graph)
    except Exception as err:  # onnxruntime's errors derive from Exception alone
        return _refusing(err)
    names = [spec.name for spec in bundle.manifest.outputs]

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    return run


def _refusing(error: Exception) -> Runs:
    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise RuntimeError(f"onnxruntime refuses the graph: {error}") from error

    return run


def _session(graph: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    onnxruntime.set_default_logger_severity(4)  # a fault may make it complain at every run
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"],
        disabled_optimizers=["NchwcTransformer"],
    )  # fmt: skip
