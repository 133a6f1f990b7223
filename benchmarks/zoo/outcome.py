"""What was found of one architecture, as it is written to results.json."""

from __future__ import annotations

from attnport.export.records import Record


class StockOutcome(Record):
    """A stock export, in fp16, in the same TensorRT.

    Attributes:
        kernels: Of its engine; None where there is none.
        region_kernels: Those from the projections to the output projections.
        refusal: Why there is no engine.
    """

    kernels: int | None = None
    region_kernels: int | None = None
    refusal: str = ""


class DtypeOutcome(Record):
    """Our export in one dtype.

    Attributes:
        export_seconds: Wall time of `export_module`, cases and reference included.
        found: Attentions that were recognised and rewritten.
        unrecognised: Reasons of the others.
        groups: Projection groups that were found.
        merged: Those that are one matrix.
        unmerged: Reasons of the others.
        parity: "passed", "failed" or "not run", by the bound, in ONNX Runtime.
        parity_cases: How many cases passed.
        parity_note: The first that did not, or why none ran.
        built: Whether TensorRT built it.
        fused: Attentions in one kernel.
        unfused: Reasons of the others.
        bounded: Attentions whose kernel skips the keys after the query.
        one_gemm: Groups that the plan runs as one product.
        kernels: Of the engine.
        region_kernels: Those from the projections to the output projections.
        form: The form of the graph that TensorRT was given.
        build_seconds: Wall time of TensorRT's build.
        refusal: The sentence in which export or build was refused.
        refused_in_words: Whether that was an error of ours for people, not an exception that was
            never meant for them.
    """

    export_seconds: float | None = None
    found: int = 0
    unrecognised: tuple[str, ...] = ()
    groups: int = 0
    merged: int = 0
    unmerged: tuple[str, ...] = ()
    parity: str = "not run"
    parity_cases: int = 0
    parity_note: str = ""
    built: bool = False
    fused: int = 0
    unfused: tuple[str, ...] = ()
    bounded: int = 0
    one_gemm: int = 0
    kernels: int | None = None
    region_kernels: int | None = None
    form: str = ""
    build_seconds: float | None = None
    refusal: str = ""
    refused_in_words: bool = True


class Outcome(Record):
    """Everything about one architecture.

    Attributes:
        name: Its name.
        dtypes: Our exports, by dtype.
        stock: Stock exports in fp16, by opset.
        seconds: Wall time of the whole.
        peak_bytes: Peak resident memory of the process.
        code: The code that it was measured with, see `code_version`.
        died: How the process died, and in which step; "" where it did not.
    """

    name: str
    dtypes: dict[str, DtypeOutcome] = {}  # noqa: RUF012 - pydantic copies it
    stock: dict[str, StockOutcome] = {}  # noqa: RUF012
    seconds: float = 0.0
    peak_bytes: int = 0
    code: str = ""
    died: str = ""
