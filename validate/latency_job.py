"""What travels between the process that asks for latencies and the one that measures them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attnport.export.records import Record
from attnport.validate.finding import Number

JOB = "job.json"
MODULE = "module.pt"
SAMPLES = "samples.npz"
OUTCOME = "outcome.json"
STAGE = "stage.txt"
Device = Literal["cpu", "cuda"]
# The entry of an engine that is measured twice, among the samples.
SAME = "A/A"
# Of the entry of an engine that is launched as a CUDA graph, and of a torch form on the device.
GRAPH_ENDING = "-graph"
ON_DEVICE_ENDING = "-on-cuda"


class LatencyJob(Record):
    """What the measuring process is to do.

    Attributes:
        bundle: The bundle's folder.
        kinds: The engines, in the order in which they are opened. On a device the torch forms bear
            the ending of the device, and each has a second entry as a CUDA graph.
        device: Where they run; latency is compared on one device only.
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
    device: Device = "cpu"
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

    @property
    def eager(self) -> str:
        """The entry of eager PyTorch."""
        return "torch-eager" + (ON_DEVICE_ENDING if self.device == "cuda" else "")


class LatencyOutcome(Record):
    """What became of the job; the samples lie beside it, one array for each entry.

    Attributes:
        same_as: The kind that the A/A entry is, too; None where there was no A/A entry.
        left_out: Kinds that could not be measured, with the reason.
        facts: What is said of all of them: how inputs were rotated, what copies take.
        note: The same for people.
    """

    same_as: str | None
    left_out: dict[str, str]
    facts: dict[str, Number] = Field(default_factory=dict)
    note: str = ""
