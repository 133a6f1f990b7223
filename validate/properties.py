"""Properties: what must stay the same when inputs change, judged by the bound of parity.

The changed inputs are run, and what they give is compared with the part of the reference that they
must give (`attnport.export.case_properties`). Only properties that the float64 module was found to
have are looked at, so an engine that lacks one is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from attnport.engines.engine import Engine
from attnport.errors import InternalError
from attnport.export.bundle import Bundle, Case
from attnport.export.case_properties import Property
from attnport.export.records import TensorSpec
from attnport.validate.finding import Finding, Subject
from attnport.validate.judgement import Judgement, judge, judgement_of_refusal
from attnport.validate.parity import case_numbers

_MEANINGS = {
    "alone": "an entry along {} depends on the others: it was run alone",
    "permuted": "the order along {} changes the result",
    "beside-nan": "a NaN in one entry along {} spoils another",
    "future": "what comes before along {} depends on what follows",
}


def check_properties(
    engine: Engine, bundle: Bundle, case: Case, *, required: bool
) -> Iterator[Finding]:
    """Runs a case changed in each way that must not matter, one Finding each.

    Args:
        engine: An opened engine.
        bundle: What it was made from.
        case: The case, with the properties that the float64 module has on it.
        required: Whether parity is required of the engine.
    """
    subject = Subject.of(bundle, engine.kind)
    for text in case.record.properties:
        found = _judged(engine, bundle, case, Property.parse(text))
        message = found.message
        if found.status == "failed":
            name, _, axis = text.partition(":")
            message = f"{_MEANINGS[name].format(axis)}, and the module is not so: {message}"
        yield subject.finding(
            "property",
            f"{case.record.name}/{text}",
            found.status,
            message,
            required=required and found.counts,
            numbers=found.numbers | case_numbers(case.record),
        )


def _judged(engine: Engine, bundle: Bundle, case: Case, one: Property) -> Judgement:
    specs = bundle.manifest.outputs
    feeds = one.changed(case.inputs, bundle.manifest.inputs, case.record.seed)
    try:
        outputs = engine.run(feeds)
    except InternalError:
        raise
    except Exception as err:  # whatever the engine's own library raises
        return judgement_of_refusal(err)
    found = one.compared(outputs, specs)
    wanted = one.expected(case.references, specs, case.record.seed)
    return worst([_of_output(spec, found, wanted, case) for spec in specs if spec.name in wanted])


def _of_output(
    spec: TensorSpec,
    found: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    case: Case,
) -> Judgement:
    if spec.name not in found:
        return Judgement("failed", f"the engine gives no {spec.name!r}", {})
    # Nothing but the engine knows these inputs, so nothing can be returned in its result's place.
    record = case.record.references[spec.name]
    return judge(found[spec.name], spec, wanted[spec.name], record, computed=True)


def worst(judged: list[Judgement]) -> Judgement:
    """The one that says most against the engine: failed, then passed by least, then not run."""
    ranks = {"failed": 0, "passed": 1, "not run": 2}

    def ratio(found: Judgement) -> float:
        value = found.numbers.get("ratio")
        return value if isinstance(value, float) else 0.0

    return min(judged, key=lambda found: (ranks[found.status], -ratio(found)))
