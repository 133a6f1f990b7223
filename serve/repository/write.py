"""Writes a model repository: each model's folder appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attnport.engines.plan_file import plan_path
from attnport.errors import UsageError
from attnport.export.bundle import MODEL, Bundle
from attnport.serve.open_models import Source, require_name
from attnport.serve.repository.checks import problems
from attnport.serve.repository.config import MARK, ModelConfig
from attnport.serve.repository.config_from_bundle import (
    PLAN,
    RepositoryOptions,
    config_from_bundle,
)
from attnport.serve.repository.several_devices import servable

CONFIG, WARMUP = "config.pbtxt", "warmup"
_PYTHON_MODEL = Path(__file__).parent / "python_model.py"


def write_repository(
    sources: Sequence[Source], out: str | Path, options: RepositoryOptions
) -> list[Path]:
    """Writes or replaces each model's folder in a repository; others in it stay.

    Args:
        sources: The bundles; those of one name become versions of one model.
        out: The repository.
        options: How Triton is to run them.

    Returns:
        The models' folders.

    Raises:
        UsageError: If Triton could not run a model so, or a folder there is not ours.
        BundleError: If a bundle, or its plan, is not whole.
    """
    models: dict[str, dict[int, Bundle]] = {}
    for source in sources:
        bundle = servable(Path(source.path))
        name, version = source.name or bundle.name, int(source.version)
        require_name(name, str(source.path))
        versions = models.setdefault(name, {})
        if version in versions:
            raise UsageError(
                f"two bundles are to be version {version} of {name!r}: write NAME=BUNDLE or "
                "NAME:VERSION=BUNDLE"
            )
        versions[version] = bundle
    plans = {name: _config(name, versions, options) for name, versions in models.items()}
    root = Path(out)
    for name in models:
        _require_replaceable(root / name)
    return [_write(root, models[name], *plans[name]) for name in models]


def _config(
    name: str, versions: dict[int, Bundle], options: RepositoryOptions
) -> tuple[ModelConfig, dict[str, bytes]]:
    numbers = sorted(versions)
    config, files = config_from_bundle(versions[numbers[-1]], name, numbers, options)
    for number in numbers[:-1]:
        other, _ = config_from_bundle(versions[number], name, numbers, options)
        same = (other.inputs, other.outputs, other.max_batch_size)
        if same != (config.inputs, config.outputs, config.max_batch_size):
            raise UsageError(
                f"versions {number} and {numbers[-1]} of {name!r} take or give other tensors, and "
                "Triton has one config for both: give them two names"
            )
    wrong = problems(config)
    if wrong:
        raise UsageError(f"Triton cannot run {name!r} so: {'; '.join(wrong)}")
    return config, files


def _require_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    config = folder / CONFIG
    if folder.is_dir() and config.is_file() and config.read_text("utf-8").startswith(MARK):
        return
    raise UsageError(
        f"{folder} was not written by attnport, which does not overwrite it: give another --out, or "
        "NAME=BUNDLE"
    )


def _write(
    root: Path, versions: dict[int, Bundle], config: ModelConfig, warmup: dict[str, bytes]
) -> Path:
    target = root / config.name
    try:
        root.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{config.name}-", dir=root))
    except OSError as err:
        raise UsageError(f"{root} cannot be written ({err.strerror}): give another --out") from err
    try:
        (work / CONFIG).write_text(config.text(), "utf-8")
        if warmup:
            (work / WARMUP).mkdir()
        for name, content in warmup.items():
            (work / WARMUP / name).write_bytes(content)
        for number, bundle in versions.items():
            (work / str(number)).mkdir()
            _copy_model(bundle, config, work / str(number))
        work.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _copy_model(bundle: Bundle, config: ModelConfig, folder: Path) -> None:
    if config.backend == "tensorrt":
        # `triton_plan` looked at it when the config was made.
        shutil.copyfile(plan_path(bundle.path, "tensorrt"), folder / PLAN)
        return
    for name in bundle.manifest.files:
        if name.startswith(MODEL):  # the graph, and its weights beside it
            shutil.copyfile(bundle.path / name, folder / name)
    if config.backend == "python":
        shutil.copyfile(_PYTHON_MODEL, folder / config.file)
