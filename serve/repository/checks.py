"""What Triton's schema lets through and Triton, or its clients, would fail on later."""

from __future__ import annotations

from collections.abc import Iterator

from attnport.serve.repository.config import ModelConfig, TensorConfig


def problems(config: ModelConfig) -> list[str]:
    """What is wrong with a config, a sentence each; none where nothing is.

    The schema takes a negative maximum batch, sizes of 0 and -5, and preferred sizes beyond the
    maximum; Triton itself refuses the last and not dynamic batching without a maximum.
    """
    return [*_batching(config), *_tensors(config), *_places(config), *_warmups(config)]


def _batching(config: ModelConfig) -> Iterator[str]:
    most = config.max_batch_size
    if most < 0:
        yield f"max_batch_size is {most}: give 0 for none, or the most rows of a batch"
    if most == 0 and config.queue_delay_us is not None:
        yield "dynamic batching is on and max_batch_size is 0: give a maximum, or leave it off"
    if (config.queue_delay_us or 0) < 0:
        yield f"the queue delay is {config.queue_delay_us} µs: give 0 or more"
    if config.preferred_batch_sizes and config.queue_delay_us is None:
        yield "preferred batch sizes are given without dynamic batching"
    for size in config.preferred_batch_sizes:
        if not 1 <= size <= most:
            yield f"the preferred batch size {size} is not between 1 and max_batch_size, {most}"


def _tensors(config: ModelConfig) -> Iterator[str]:
    tensors = (*config.inputs, *config.outputs)
    if not (config.inputs and config.outputs):
        yield "a model needs an input and an output"
    for tensor in tensors:
        yield from _sizes(tensor)
    for group in (config.inputs, config.outputs):
        names = [tensor.name for tensor in group]
        yield from (
            f"the tensor {name!r} is listed twice"
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        )


def _sizes(tensor: TensorConfig) -> Iterator[str]:
    if not tensor.name:
        yield "a tensor has no name"
    if not tensor.dims:
        yield f"{tensor.name!r} has no dims, and Triton takes no tensors without: give it an axis"
    for dim in tensor.dims:
        if dim == 0 or dim < -1:
            yield f"{tensor.name!r} has the size {dim}: sizes are 1 or more, or -1 where they vary"


def _places(config: ModelConfig) -> Iterator[str]:
    if config.instances < 1:
        yield f"{config.instances} instances compute nothing: give 1 or more"
    if not config.versions or min(config.versions) < 1:
        yield f"the versions are {list(config.versions)}: give whole numbers from 1"
    if config.backend == "tensorrt" and config.device == "cpu":
        yield "a TensorRT plan runs on a GPU: give --device gpu"
    if config.accelerator is not None and config.backend != "onnxruntime":
        yield f"the accelerator is ONNX Runtime's, and the backend is {config.backend}"
    if config.accelerator is not None and config.device != "gpu":
        yield "the TensorRT accelerator runs on a GPU: give --device gpu"


def _warmups(config: ModelConfig) -> Iterator[str]:
    names = {tensor.name: tensor for tensor in config.inputs}
    for warmup in config.warmups:
        if not 1 <= warmup.batch_size <= max(config.max_batch_size, 1):
            yield f"warm-up {warmup.name!r} has the batch size {warmup.batch_size}"
        if warmup.inputs.keys() != names.keys():
            yield f"warm-up {warmup.name!r} has other inputs than the model"
            continue
        for name, given in warmup.inputs.items():
            tensor = names[name]
            fits = len(given.dims) == len(tensor.dims) and all(
                wide in (-1, size) for size, wide in zip(given.dims, tensor.dims, strict=True)
            )
            if given.dtype != tensor.dtype or not fits:
                yield f"warm-up {warmup.name!r} does not fit the input {name!r}"
