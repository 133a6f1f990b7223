"""A split bundle in Triton: one instance that drives a device for each rank.

Triton's TensorRT backend loads one and the same plan on every device, gives each the inputs of the
first, and returns the first one's outputs (its page "TensorRT Multi-Device", Triton 2.70). Plans of
single ranks would therefore give wrong numbers; what is served is the plan of `together/`, in which
each rank takes its own part. Unrun here: it needs as many GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from attnport.errors import BundleError, UsageError
from attnport.export.bundle import Bundle
from attnport.export.shard.files import RANK, SHARD, TOGETHER, ranks_of
from attnport.serve.repository.config import ModelConfig

NOT_RUN = (
    "not run by attnport: Triton's multi-device mode needs as many GPUs as there are ranks; prove "
    "what it serves with `attnport validate http://HOST:8000 --bundle BUNDLE`"
)


def servable(path: Path) -> Bundle:
    """The bundle that Triton serves from a folder: the one for all ranks where it is split.

    Raises:
        BundleError: If a split one has none, or it is no bundle.
        UsageError: If it is a single rank.
    """
    if (path / SHARD).is_file():
        if not (path / TOGETHER / RANK).is_file():
            raise BundleError(
                f"{path} is split over ranks, and Triton loads one plan on all devices: make it "
                f"with `attnport shard … --out {path} --one-plan`, and `attnport build "
                f"{path / TOGETHER} --engine tensorrt`"
            )
        return Bundle.load(path / TOGETHER)
    if (path / RANK).is_file() and path.name != TOGETHER:
        raise UsageError(
            f"{path} is one rank of a split bundle, which Triton cannot serve: give {path.parent}"
        )
    return Bundle.load(path)


def over_devices(config: ModelConfig, bundle: Bundle) -> ModelConfig:
    """The config of a bundle for several ranks; that of any other stays as it is.

    Raises:
        UsageError: If another backend than TensorRT was asked for, or several instances.
    """
    ranks = ranks_of(bundle.model_path)
    if ranks is None:
        return config
    if config.backend != "tensorrt":
        raise UsageError(
            f"{bundle.path} is split over {ranks} devices, which Triton's {config.backend} backend "
            "does not drive: give --backend tensorrt"
        )
    if config.instances != 1:
        raise UsageError("an instance of a split bundle takes all devices: give --instances 1")
    gpus = ",".join(map(str, range(ranks)))
    return replace(
        config,
        device="model" if config.device == "gpu" else config.device,
        profiles=(),
        remark=NOT_RUN,
        parameters={
            **config.parameters, "enable_multi_device": "true", "multi_device_gpus": gpus
        },
    )  # fmt: skip
