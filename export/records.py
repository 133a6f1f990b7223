"""What is written beside a graph: the records in `bundle.json` and in what `inspect` prints.

Dimension letters, here and in the whole room: B batch, N query tokens, T key tokens, D model width,
H heads, Hkv key/value heads, Dh head size, E = H·Dh.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["activation", "token_ids", "mask", "bias", "lengths", "positions", "cache"]
Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"
]
Form = Literal["pattern", "attention"]


class Record(BaseModel):
    """Base of what goes to disk: immutable, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorSpec(Record):
    """One input or output of the graph; a dimension is a size or the name of an axis."""

    name: str
    dtype: Dtype
    shape: tuple[int | str, ...]
    role: Role = "activation"


class AttentionInfo(Record):
    """One attention of a graph, however it was written.

    Attributes:
        name: "attn0", "attn1", … in the order of the graph.
        source: Whether it stands as the ONNX operator or as a pattern of simpler ones.
        nodes: The names of the nodes that it consists of, from the scores to the context.
        heads: H, or None where the graph does not say.
        kv_heads: Hkv.
        head_size: Dh.
        scale: The factor on Q·Kᵀ; None where it is not a constant.
        mask: What hides or shifts scores besides causality.
        causal: Whether query i sees keys 0..i and nothing else is hidden by shape alone.
        dead_rows: Whether some input can leave a query without a single visible key.
        recognised: Whether the passes understand it well enough to rewrite it.
        reason: Why not, and what it would take; empty where recognised.
    """

    name: str
    source: Literal["operator", "pattern"]
    nodes: tuple[str, ...]
    heads: int | None
    kv_heads: int | None
    head_size: int | None
    scale: float | None
    mask: Literal["none", "bool", "additive", "bool+additive"]
    causal: bool
    dead_rows: bool
    recognised: bool
    reason: str = ""


class ProjectionGroup(Record):
    """The projections that feed one attention and share their input.

    Attributes:
        name: Such as "attn0/qkv" or "attn0/kv".
        attention: The attention that they feed.
        kind: Which of query, key and value are in the group.
        nodes: The MatMul or Gemm nodes.
        sizes: The width of each projection, in the order of `kind`.
        merged: Whether one matrix holds them.
        reason: Why they are not merged; empty where they are.
    """

    name: str
    attention: str
    kind: Literal["qkv", "kv", "qk", "qv"]
    nodes: tuple[str, ...]
    sizes: tuple[int, ...]
    merged: bool
    reason: str = ""


class Inspection(Record):
    """Every attention and projection group of one ONNX file."""

    attentions: tuple[AttentionInfo, ...]
    projection_groups: tuple[ProjectionGroup, ...]


class PassRecord(Record):
    """What one pass did to the graph: how many places it changed, and a line for each."""

    name: str
    changed: int
    notes: tuple[str, ...] = ()


class OutputErrors(Record):
    """Largest and mean absolute error of one output against the float64 reference."""

    max: float
    mean: float


class OutputReference(Record):
    """What the parity bound of one output in one case is made of.

    Attributes:
        eager: Errors of the module itself in the bundle's dtype; None where it was non-finite.
        sdpa: Errors of its SDPA form; None where there is none, or where it was non-finite.
        perturbed: Errors of the float64 module with inputs and weights perturbed by one rounding
            of the bundle's dtype.
        rms: Root mean square of the float64 reference.
        max_abs: Its largest magnitude.
        dead_rows: How many rows the float64 module left non-finite because no key was visible;
            there the reference is the specified value.
        note: Why there is nothing to compare with; empty where there is.
    """

    eager: OutputErrors | None
    sdpa: OutputErrors | None
    perturbed: OutputErrors | None
    rms: float
    max_abs: float
    dead_rows: int = 0
    note: str = ""


class CaseRecord(Record):
    """One set of inputs with its float64 result, in `cases/<name>.safetensors`.

    The file holds `input.<name>` in the bundle's dtypes and `reference.<output>` in float64.
    """

    name: str
    file: str
    seed: int
    sizes: dict[str, int]
    mask: str = "none"
    magnitude: str = "normal"
    references: dict[str, OutputReference]


class Manifest(Record):
    """The content of `bundle.json`."""

    format_version: int
    name: str
    source: str
    dtype: Dtype
    form: Form
    opset: int
    axes: dict[str, tuple[int, int, int]]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    graph_sha256: str
    weights_sha256: str
    files: dict[str, str]
    versions: dict[str, str]
    passes: tuple[PassRecord, ...]
    attentions: tuple[AttentionInfo, ...]
    projection_groups: tuple[ProjectionGroup, ...]
    cases: tuple[CaseRecord, ...]
    cases_left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
