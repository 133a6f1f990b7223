"""What ONNX Runtime ran for each attention on a device: one node of the provider, or many.

A profile names every node that ran, with its operator and provider. It does not tell which kernel the
provider chose inside of one (flash, memory-efficient or unfused), so that a single node is no proof
of fusion, while several nodes are proof of the contrary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnport.engines.kinds import engine_kind
from attnport.errors import AttnportError, InternalError
from attnport.export.bundle import Bundle
from attnport.validate.finding import Finding, Status, Subject

if TYPE_CHECKING:
    from attnport.engines.ort_profile import RanAttention

Profile = Callable[[Bundle, str, Mapping[str, np.ndarray]], Sequence["RanAttention"]]


def profile_of(
    bundle: Bundle, kind: str, feeds: Mapping[str, np.ndarray]
) -> Sequence[RanAttention]:
    """Runs the graph once as the engine does, profiled."""
    from attnport.engines.lowering import lower_bundle
    from attnport.engines.ort_profile import attentions_that_ran

    return attentions_that_ran(bundle, engine_kind(kind), lower_bundle(bundle, kind), feeds)


def check_ran(
    bundle: Bundle,
    kind: str,
    attentions: Sequence[str],
    feeds: Mapping[str, np.ndarray],
    profile: Profile = profile_of,
) -> Iterator[Finding]:
    """One Finding for each attention; never required, since the best that is told is no proof.

    Args:
        bundle: The bundle.
        kind: An engine of ONNX Runtime that this machine runs.
        attentions: Those of the graph.
        feeds: Inputs of one run.
        profile: Gives what ran.
    """
    subject = Subject.of(bundle, kind)
    try:
        ran = {one.attention: one for one in profile(bundle, kind, feeds)}
    except InternalError:
        raise
    except (AttnportError, RuntimeError, OSError, ValueError) as err:
        ran, why = {}, f"no profile could be made ({err})"
    else:
        why = "the profile does not tell of it"
    for name in attentions:
        one = ran.get(name)
        status, message = _said(one) if one else ("not run", why)
        numbers = (
            {"ran": ", ".join(f"{n.operator} on {n.provider}" for n in one.ran)} if one else {}
        )
        yield subject.finding("fusion", name, status, message, required=False, numbers=numbers)


def _said(one: RanAttention) -> tuple[Status, str]:
    if not one.fused:
        return "failed", f"not fused: {one.reason}"
    return (
        "not run",
        "one node ran it, and ONNX Runtime does not tell with which kernel: "
        "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO=1 prints it",
    )
