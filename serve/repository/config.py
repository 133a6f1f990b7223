"""What a model's config.pbtxt says, from its bundle; and the text of it.

The schema is `inference.ModelConfig` of triton-inference-server/common, protobuf/model_config.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

MARK = "# written by attnport"

Backend = Literal["onnxruntime", "tensorrt", "python"]
Device = Literal["cpu", "gpu", "model"]

TRITON_TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "int8": "TYPE_INT8",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
}


@dataclass(frozen=True)
class TensorConfig:
    """An input or output: dims leave out the batch where the model has a maximum batch."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class WarmupInput:
    """One input of a warm-up request: its sizes without the batch, and its file in warmup/."""

    dtype: str
    dims: tuple[int, ...]
    file: str


@dataclass(frozen=True)
class Warmup:
    """Requests that Triton computes before the model is ready: `batch_size` times one row."""

    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]


@dataclass(frozen=True)
class ModelConfig:
    """A config.pbtxt.

    Attributes:
        name: The model's, and its folder's.
        backend: Which of Triton's backends runs it.
        file: The model's file in each version's folder.
        max_batch_size: The most rows of a batch; 0 where Triton is not to batch.
        inputs: What it takes.
        outputs: What it gives.
        versions: Those that are served.
        instances: How many copies compute at a time.
        device: Where; "model" leaves it to the backend, which takes several devices.
        profiles: The optimization profiles of a plan that an instance uses.
        queue_delay_us: How long a request may wait for company; None without dynamic batching.
        preferred_batch_sizes: Sizes at which a batch need not wait any longer.
        warmups: From the bundle's cases.
        accelerator: The parameters of TensorRT inside ONNX Runtime; None without it.
        parameters: Of the backend.
        remark: What the reader of the file should know.
    """

    name: str
    backend: Backend
    file: str
    max_batch_size: int
    inputs: tuple[TensorConfig, ...]
    outputs: tuple[TensorConfig, ...]
    versions: tuple[int, ...] = (1,)
    instances: int = 1
    device: Device = "cpu"
    profiles: tuple[int, ...] = ()
    queue_delay_us: int | None = None
    preferred_batch_sizes: tuple[int, ...] = ()
    warmups: tuple[Warmup, ...] = ()
    accelerator: Mapping[str, str] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""

    def text(self) -> str:
        """As protobuf's text format."""
        remarks = [f"# {self.remark}"] if self.remark else []
        return "\n".join([MARK, *remarks, *_lines(self)]) + "\n"


def _lines(config: ModelConfig) -> Iterator[str]:
    yield f"name: {_quoted(config.name)}"
    yield f"backend: {_quoted(config.backend)}"
    yield f"default_model_filename: {_quoted(config.file)}"
    yield f"max_batch_size: {config.max_batch_size}"
    for word, tensors in (("input", config.inputs), ("output", config.outputs)):
        for tensor in tensors:
            what = f"name: {_quoted(tensor.name)} {_type_and_dims(tensor.dtype, tensor.dims)}"
            yield f"{word} {{ {what} }}"
    yield f"version_policy {{ specific {{ versions: {list(config.versions)} }} }}"
    yield f"instance_group {{ {_instances(config)} }}"
    if config.queue_delay_us is not None:
        sizes = f" preferred_batch_size: {list(config.preferred_batch_sizes)}"
        yield (
            f"dynamic_batching {{ max_queue_delay_microseconds: {config.queue_delay_us}"
            f"{sizes if config.preferred_batch_sizes else ''} }}"
        )
    if config.accelerator is not None:
        yield from _accelerator(config.accelerator)
    for key, value in config.parameters.items():
        value_text = f"string_value: {_quoted(value)}"
        yield f"parameters {{ key: {_quoted(key)} value {{ {value_text} }} }}"
    for warmup in config.warmups:
        yield from _warmup(warmup)


def _instances(config: ModelConfig) -> str:
    profiles = [str(number) for number in config.profiles]
    quoted = ", ".join(map(_quoted, profiles))
    return f"count: {config.instances} kind: KIND_{config.device.upper()}" + (
        f" profile: [{quoted}]" if profiles else ""
    )


def _accelerator(parameters: Mapping[str, str]) -> Iterator[str]:
    yield "optimization { execution_accelerators { gpu_execution_accelerator {"
    yield '  name: "tensorrt"'
    for key, value in parameters.items():
        yield f"  parameters {{ key: {_quoted(key)} value: {_quoted(value)} }}"
    yield "} } }"


def _warmup(warmup: Warmup) -> Iterator[str]:
    yield f"model_warmup {{ name: {_quoted(warmup.name)} batch_size: {warmup.batch_size}"
    for name, tensor in warmup.inputs.items():
        value = (
            f"{_type_and_dims(tensor.dtype, tensor.dims)} input_data_file: {_quoted(tensor.file)}"
        )
        yield f"  inputs {{ key: {_quoted(name)} value {{ {value} }} }}"
    yield "}"


def _type_and_dims(dtype: str, dims: tuple[int, ...]) -> str:
    return f"data_type: {TRITON_TYPES[dtype]} dims: {list(dims)}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
