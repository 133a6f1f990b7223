"""From bundles on disk to models that can be served; what was not proved is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from attnport.engines.kinds import KINDS
from attnport.engines.open import open_engine
from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.serve.catalog import Catalog
from attnport.serve.proof import UnprovedError, require_proof
from attnport.serve.served_model import Batching, ServedModel

SERVED_KINDS = tuple(name for name, kind in KINDS.items() if not kind.needs_module)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_WORD = re.compile(r"(?P<name>[^=/:]+)(:(?P<version>[^=/:]+))?=(?P<path>.+)")


@dataclass(frozen=True)
class Source:
    """A bundle that is to be served, and as what.

    Attributes:
        path: Its folder.
        name: What clients call it; None takes the bundle's name.
        version: A whole number from 1.
    """

    path: Path
    name: str | None = None
    version: str = "1"

    @classmethod
    def parse(cls, word: str) -> Source:
        """Reads `[NAME[:VERSION]=]BUNDLE`.

        >>> Source.parse("mh:2=build/mh")
        Source(path=PosixPath('build/mh'), name='mh', version='2')

        Raises:
            UsageError: If the name or the version cannot stand in a URL.
        """
        found = _WORD.fullmatch(word)
        if found is None or Path(word).is_dir():
            return cls(Path(word))
        name, version = found["name"], found["version"] or "1"
        require_name(name, word)
        if (
            not (version.isascii() and version.isdecimal())
            or int(version) < 1
            or version[0] == "0"
        ):
            raise UsageError(f"the version in {word!r} is {version!r}: give a whole number from 1")
        return cls(Path(found["path"]), name, version)


@dataclass(frozen=True)
class Proof:
    """What must be known of a bundle before it is served.

    Attributes:
        report: Where its report is; None looks for it.
        unproved: Whether it is served without one.
        warn: Called with a sentence where it is.
    """

    report: Path | None = None
    unproved: bool = False
    warn: Callable[[str], None] = lambda sentence: None


def open_models(
    sources: Sequence[Source],
    kind: str,
    *,
    proof: Proof | None = None,
    batching: Batching | None = None,
    queue: int = 128,
    workers: int = 1,
    threads: int | None = None,
) -> list[ServedModel]:
    """Opens an engine for each bundle.

    Args:
        sources: The bundles.
        kind: The kind of engine.
        proof: What must be known of them; by default a report is looked for.
        batching: How requests are joined.
        queue: How many requests may wait for one model.
        workers: How many batches of one model are computed at a time.
        threads: How many CPU threads an engine computes with; None leaves it to the library.

    Raises:
        UsageError: If the kind cannot be served, or two bundles have one name and version.
        UnprovedError: If a bundle was not proved.
        AttnportError: If a bundle is not whole, or the engine cannot be opened on this machine.
    """
    if kind not in SERVED_KINDS:
        raise UsageError(
            f"the engine {kind!r} cannot be served: use one of {', '.join(SERVED_KINDS)}"
        )
    proof = proof or Proof()
    if workers < 1:
        raise UsageError(f"workers is {workers}: give 1 or more")
    bundles = [Bundle.load(source.path) for source in sources]
    for bundle in bundles:
        _require_proof(bundle, kind, proof)
    models = []
    with ExitStack() as opened:
        for source, bundle in zip(sources, bundles, strict=True):
            engine = opened.enter_context(open_engine(bundle, kind, threads=threads))
            name = source.name or bundle.name
            require_name(name, str(source.path))
            models.append(
                ServedModel(
                    name,
                    source.version,
                    bundle,
                    engine,
                    batching=batching or Batching(),
                    queue=queue,
                    workers=workers,
                    unproved=proof.unproved,
                )
            )
        Catalog(models)  # refuses a name that is given twice, before anything listens
        opened.pop_all()
    return models


def _require_proof(bundle: Bundle, kind: str, proof: Proof) -> None:
    try:
        require_proof(bundle, kind, proof.report)
    except UnprovedError as err:
        if not proof.unproved:
            raise
        proof.warn(f"serving what is not proved: {str(err).partition(': run `attnport')[0]}")


def require_name(name: str, where: str) -> None:
    """Refuses a name that cannot stand in a URL, or as a folder's.

    Raises:
        UsageError: If it cannot.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the name {name!r} of {where} cannot stand in a URL: write NAME=BUNDLE with letters, "
            "digits, '.', '_' and '-'"
        )
