"""Parity: what an engine gives against the module in float64, within the bound of `bound`.

One Finding for each case and output. Beside the numbers of its judgement it holds `sizes`, `mask` and
`magnitude` of the case, for the statement of what was covered.
"""

from __future__ import annotations

from attnport.engines.engine import Engine
from attnport.errors import InternalError
from attnport.export.bundle import Bundle, Case
from attnport.export.records import CaseRecord
from attnport.validate.device_peer import DevicePeer
from attnport.validate.finding import Finding, Number, Subject
from attnport.validate.judgement import judge_outputs, judgement_of_refusal


def check_parity(
    engine: Engine,
    bundle: Bundle,
    case: Case | str,
    *,
    required: bool = True,
    peer: DevicePeer | None = None,
) -> tuple[Finding, ...]:
    """Runs one case and judges every output.

    Args:
        engine: An opened engine.
        bundle: What it was made from.
        case: One of the bundle's cases, or its name.
        required: Whether parity is required of this engine.
        peer: PyTorch on the engine's device: `pytorch_gpu_max` and `pytorch_gpu_mean` are its errors.

    Returns:
        A Finding for each output of the bundle, and one for each that it does not have.

    Raises:
        BundleError: If the case cannot be read.
        UsageError: If the bundle has no such case.
    """
    if isinstance(case, str):
        case = bundle.load_case(case)
    names = [spec.name for spec in bundle.manifest.outputs]
    try:
        outputs = engine.run(case.inputs)
    except InternalError:
        raise
    except Exception as err:
        judged = dict.fromkeys(names, judgement_of_refusal(err))
    else:
        judged = judge_outputs(outputs, bundle.manifest.outputs, case)
    beside = peer.errors(case) if peer else {}
    subject = Subject.of(bundle, engine.kind)
    return tuple(
        subject.finding(
            "parity",
            case.record.name if len(judged) == 1 else f"{case.record.name}/{name}",
            found.status,
            found.message,
            required=required and found.counts,
            numbers=found.numbers | beside.get(name, {}) | case_numbers(case.record),
        )
        for name, found in judged.items()
    )


def case_numbers(record: CaseRecord) -> dict[str, Number]:
    """What a case is, for the statement of what was covered."""
    fill = "" if record.fill == "-inf" else f", hidden by {record.fill}"
    return {
        "sizes": " ".join(f"{name}={size}" for name, size in record.sizes.items()),
        "mask": record.mask + fill,
        "magnitude": record.magnitude,
    }
