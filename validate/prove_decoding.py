"""The Findings of one engine on a bundle with caches: every way of decoding, and greedy choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from attnport.engines.decoding.open import open_decoding
from attnport.engines.decoding.session import DecodingSession
from attnport.engines.libraries import why_missing
from attnport.engines.plan import EnginePlan
from attnport.errors import AttnportError, InternalError, ModuleError, UsageError
from attnport.export.bundle import Bundle
from attnport.validate.coverage import COVERAGE
from attnport.validate.decoding import check_decoding, truth_of
from attnport.validate.finding import Finding, Subject
from attnport.validate.judgement import judgement_of_refusal

if TYPE_CHECKING:
    import torch

Opens = Callable[[], DecodingSession]


def prove_decoding(
    bundle: Bundle,
    kind: str,
    plan: EnginePlan | None,
    module: torch.nn.Module | None,
    *,
    required: bool,
) -> Iterator[Finding]:
    """Opens a session of a kind that can run here and judges it; nothing without caches.

    Args:
        bundle: What the engine is made from.
        kind: The kind.
        plan: What it runs, for the kinds that build one.
        module: What the bundle was exported from; None where it is not at hand.
        required: Whether parity is required of the engine.
    """
    if bundle.manifest.caches:
        yield from judge_decoding(
            bundle,
            kind,
            lambda: open_decoding(bundle, kind, module=module, plan=plan),
            module,
            required=required,
        )


def judge_decoding(
    bundle: Bundle,
    kind: str,
    opens: Opens,
    module: torch.nn.Module | None,
    *,
    required: bool,
) -> Iterator[Finding]:
    """Every Finding that needs a session.

    Args:
        bundle: A bundle with caches.
        kind: The kind of engine.
        opens: Opens the session.
        module: What the bundle was exported from; None where it is not at hand.
        required: Whether parity is required of the engine.
    """
    subject = Subject.of(bundle, kind)
    try:
        session = opens()
    except InternalError:
        raise
    except UsageError as err:
        # Its inputs are not those of a model that decodes: parity of its cases is what there is.
        yield subject.finding("decoding", "session", "not run", str(err), required=False)
        return
    except (AttnportError, MemoryError) as err:
        found = judgement_of_refusal(err)
        yield subject.finding(
            "decoding", "session", found.status, found.message, required=required
        )
        return
    with session:
        yield from _of_session(session, bundle, module, required)


def _of_session(
    session: DecodingSession, bundle: Bundle, module: torch.nn.Module | None, required: bool
) -> Iterator[Finding]:
    subject = Subject.of(bundle, session.kind)
    try:
        truth = truth_of(bundle, session.layout, module)
    except UsageError as err:
        yield subject.finding("decoding", "sequences", "not run", str(err), required=False)
        return
    except ModuleError as err:
        yield subject.finding("decoding", "sequences", "failed", str(err), required=required)
        return
    if isinstance(truth, str):
        yield subject.finding("decoding", "sequences", "not run", truth, required=required)
        return
    ways = list(check_decoding(session, bundle, truth, required=required))
    yield from ways
    if all(finding.status == "not run" for finding in ways):
        message = "no way of decoding could be judged: export it in float32 or float16, too"
        yield subject.finding("decoding", COVERAGE, "not run", message, required=required)
    if not session.layout.has_vocabulary:
        return
    if module is None:
        yield subject.finding("decoding", "greedy", "not run", _no_module(), required=False)
        return
    from attnport.validate.decoding_greedy import check_greedy

    yield check_greedy(session, bundle, module, truth, required=required)


def _no_module() -> str:
    lack = why_missing("torch")
    return (
        "its tokens are compared with PyTorch's choices, and the module is not at hand"
        f"{f' ({lack})' if lack else ''}: prove it once where it was exported"
    )
