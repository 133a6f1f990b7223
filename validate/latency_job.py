"""What travels between the process that asks for latencies and the one that measures them."""

from __future__ import annotations

from pydantic import Field

from attnport.export.records import Record

JOB = "job.json"
MODULE = "module.pt"
SAMPLES = "samples.npz"
OUTCOME = "outcome.json"
STAGE = "stage.txt"
# The entry of an engine that is measured twice, among the samples.
SAME = "A/A"


class LatencyJob(Record):
    """What the measuring process is to do.

    Attributes:
        bundle: The bundle's folder.
        kinds: The engines, in the order in which they are opened.
        case: The case whose inputs they run.
        seconds: About how long to measure, all engines together, warm-up aside.
        rounds: How many times every engine takes its turn.
        threads: Worker threads of each engine.
        seed: Of the order in which engines alternate.
        stock: Whether the module, exported by torch.onnx alone, takes part in ONNX Runtime.
        has_module: Whether the pickled module lies beside the job.
        module_maker: "package.module:function", which makes it from the argument below; or None.
        module_argument: The bundle's source.
        stray_files: Python modules that cannot be found by name: the name and the file.
        main_file: The script that is running, for classes defined in it.
    """

    bundle: str
    kinds: tuple[str, ...]
    case: str
    seconds: float
    rounds: int
    threads: int
    seed: int
    stock: bool = False
    has_module: bool = False
    module_maker: str | None = None
    module_argument: str = ""
    stray_files: dict[str, str] = Field(default_factory=dict)
    main_file: str | None = None


class LatencyOutcome(Record):
    """What became of the job; the samples lie beside it, one array for each entry.

    Attributes:
        same_as: The kind that the A/A entry is, too; None where there was no A/A entry.
        left_out: Kinds that could not be measured, with the reason.
    """

    same_as: str | None
    left_out: dict[str, str]
