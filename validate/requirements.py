"""Requirements: what must hold for a model to be proved. Everything else is only shown.

parity: all runnable          # or a list of kinds: [ort-cpu]
parity_where_available: [tensorrt-rtx]
qkv: true
fusion: where kernels exist   # or a list of kinds: [tensorrt-rtx]
causal: true
kernels: {tensorrt-rtx: 5}
latency: {ort-cpu: 1.1}       # at most so many times the fastest torch form
worse_by_percent: 10          # than the baseline, where one is given
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from attnport.engines.kinds import KINDS
from attnport.errors import UsageError
from attnport.export.records import Record
from attnport.validate.fusion import FUSED_DTYPES, can_fuse

ALL_RUNNABLE: Final = "all runnable"
WHERE_KERNELS_EXIST: Final = "where kernels exist"


class Requirements(Record):
    """What the verdict depends on; the defaults are what is required when nothing is said.

    Attributes:
        parity: The kinds whose parity must be proved, here and now; or "all runnable": that of
            every engine asked for that this machine can run, and of one at least.
        parity_where_available: Kinds whose parity must be proved where the machine can run them.
        qkv: Whether every group of projections must be merged.
        fusion: The kinds in whose plan every attention must be fused; or "where kernels exist":
            in every plan asked for, in the dtypes that the engine has a fused kernel for.
        causal: Whether, where fusion is required, purely causal attentions must be bounded.
        kernels: For a kind the most kernels that its plan may run.
        latency: For a kind the most that its latency may be, as a multiple of the fastest torch
            form's; it holds where the whole confidence interval of the ratio is at most that.
        worse_by_percent: By how much an error, a kernel count or a latency may be worse than in
            the baseline; None to compare statuses only.
    """

    parity: tuple[str, ...] | Literal["all runnable"] = ALL_RUNNABLE
    parity_where_available: tuple[str, ...] = ()
    qkv: bool = True
    fusion: tuple[str, ...] | Literal["where kernels exist"] = WHERE_KERNELS_EXIST
    causal: bool = True
    kernels: dict[str, Annotated[int, Field(ge=0)]] = {}  # noqa: RUF012 - pydantic copies it
    latency: dict[str, Annotated[float, Field(gt=0)]] = {}  # noqa: RUF012
    worse_by_percent: Annotated[float, Field(ge=0)] | None = None

    @field_validator("parity", "parity_where_available", "fusion", mode="before")
    @classmethod
    def _is_list_or_word(cls, value: object) -> object:
        if isinstance(value, str) and value not in (ALL_RUNNABLE, WHERE_KERNELS_EXIST):
            raise ValueError(f"{value!r} is one word: give a list of kinds, [{value}]")
        return value

    @field_validator("parity", "parity_where_available")
    @classmethod
    def _kinds_exist(cls, value: tuple[str, ...] | str) -> tuple[str, ...] | str:
        for kind in () if isinstance(value, str) else value:
            _require_known(kind, tuple(KINDS), "is no kind of engine")
        return value

    @field_validator("fusion", "kernels")
    @classmethod
    def _plans_tell(
        cls, value: tuple[str, ...] | dict[str, int] | str
    ) -> tuple[str, ...] | dict[str, int] | str:
        for kind in () if isinstance(value, str) else value:
            _require_known(kind, tuple(FUSED_DTYPES), "has no plan that tells of its kernels")
        return value

    @field_validator("latency")
    @classmethod
    def _is_measured(cls, value: dict[str, float]) -> dict[str, float]:
        for kind in value:
            _require_known(kind, tuple(KINDS), "is no kind of engine")
        return value

    @classmethod
    def from_mapping(
        cls, content: Mapping[str, object], where: str = "requirements"
    ) -> Requirements:
        """Checks what was read from a file.

        Args:
            content: Field names and values.
            where: What the content is called in an error.

        Raises:
            UsageError: If a field is unknown, a value makes no sense or a kind does not exist.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as err:
            raise UsageError(f"{where}: {_sentences(err)}") from err

    @classmethod
    def load(cls, path: str | Path) -> Requirements:
        """Reads a YAML file.

        Raises:
            UsageError: If it cannot be read, or does not hold requirements.
        """
        try:
            content = yaml.safe_load(Path(path).read_text("utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as err:
            raise UsageError(f"{path} cannot be read as YAML: {err}") from err
        if not isinstance(content, dict):
            raise UsageError(f"{path} holds no requirements: give some of {_fields()}")
        return cls.from_mapping(content, str(path))

    def kinds(self) -> tuple[str, ...]:
        """Every kind that is named: it is looked at even where nobody else asked for it."""
        lists = (
            self.parity,
            self.parity_where_available,
            self.fusion,
            tuple(self.kernels),
            tuple(self.latency),
        )
        named = [kind for kinds in lists if not isinstance(kinds, str) for kind in kinds]
        return tuple(dict.fromkeys(named))

    def parity_of(self, kind: str, *, runnable: bool) -> bool:
        """Whether parity of a kind is required.

        Args:
            kind: The kind.
            runnable: Whether this machine can run it.
        """
        if self.parity != ALL_RUNNABLE and kind in self.parity:
            return True
        return runnable and (self.parity == ALL_RUNNABLE or kind in self.parity_where_available)

    def fusion_of(self, kind: str, dtype: str) -> bool:
        """Whether every attention must be fused in the plan of a kind."""
        if self.fusion == WHERE_KERNELS_EXIST:
            return can_fuse(kind, dtype)
        return kind in self.fusion

    def causal_of(self, kind: str, dtype: str) -> bool:
        """Whether purely causal attentions must be bounded in the plan of a kind."""
        return self.causal and self.fusion_of(kind, dtype)


def _require_known(kind: str, known: tuple[str, ...], what: str) -> None:
    if kind not in known:
        raise ValueError(f"{kind!r} {what}{meant(kind, known)}; valid: {', '.join(known)}")


def _sentences(error: ValidationError) -> str:
    """Each fault once; the valid names once, after all that are unknown."""
    known = tuple(Requirements.model_fields)
    unknown, others = [], []
    for one in error.errors():
        field = str(one["loc"][0]) if one["loc"] else ""
        if one["type"] == "extra_forbidden":
            unknown.append(f"{field!r}{meant(field, known)}")
        else:
            others.append(f"{field}: {one['msg'].removeprefix('Value error, ')}")
    if unknown:
        what = "is not a requirement" if len(unknown) == 1 else "are not requirements"
        others.insert(0, f"{', '.join(unknown)} {what}; valid: {_fields()}")
    return "; ".join(dict.fromkeys(others))


def meant(word: str, known: tuple[str, ...]) -> str:
    """The valid word that is nearest to one that is not, as a question; "" if none is near."""
    near = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _fields() -> str:
    return ", ".join(Requirements.model_fields)
