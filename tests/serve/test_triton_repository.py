"""The repositories that we write: Triton's schema, our checks, and what is refused."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient
from google.protobuf import text_format
from tests.serve.bundles import identity_bundle
from tests.validate.small_bundle import make_bundle

from attnport import cli
from attnport.engines.plan import EnginePlan
from attnport.errors import BundleError, UsageError
from attnport.export.bundle import Bundle, file_sha256
from attnport.serve.open_models import Source
from attnport.serve.repository.checks import problems
from attnport.serve.repository.config import (
    TRITON_TYPES,
    ModelConfig,
    TensorConfig,
    Warmup,
    WarmupInput,
)
from attnport.serve.repository.config_from_bundle import RepositoryOptions, config_from_bundle
from attnport.serve.repository.write import write_repository


def schema() -> Any:
    """Triton's protobuf schema; `tritonclient.grpc` itself would want gRPC to be there."""
    file = Path(tritonclient.__path__[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCHEMA = schema()


def parsed(text: str) -> Any:
    return text_format.Parse(text, SCHEMA.ModelConfig())


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "small")


def written(bundle: Bundle, tmp_path: Path, **options: Any) -> Any:
    (folder,) = write_repository(
        [Source(bundle.path)], tmp_path / "repository", RepositoryOptions(**options)
    )
    return parsed((folder / "config.pbtxt").read_text("utf-8"))


def test_onnxruntime(bundle: Bundle, tmp_path: Path) -> None:
    config = written(bundle, tmp_path, instances=2, queue_delay_us=100, preferred_batches=(2, 3))
    assert (config.name, config.backend, config.max_batch_size) == ("small", "onnxruntime", 3)
    assert config.default_model_filename == "model.onnx"
    (x,), (y,) = config.input, config.output
    assert (x.name, x.data_type, list(x.dims)) == ("x", SCHEMA.TYPE_FP32, [-1, 32])
    assert (y.name, y.data_type, list(y.dims)) == ("y", SCHEMA.TYPE_FP32, [-1, 32])
    (group,) = config.instance_group
    assert (group.count, group.kind) == (2, SCHEMA.ModelInstanceGroup.KIND_CPU)
    assert config.dynamic_batching.max_queue_delay_microseconds == 100
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 3]
    assert list(config.version_policy.specific.versions) == [1]
    assert not config.HasField("optimization")
    model = tmp_path / "repository" / "small" / "1" / "model.onnx"
    assert model.read_bytes() == bundle.model_path.read_bytes()


def test_warmups_are_the_cases(bundle: Bundle, tmp_path: Path) -> None:
    config = written(bundle, tmp_path)
    assert [(w.name, w.batch_size) for w in config.model_warmup] == [
        ("b1n1", 1),
        ("b2n7", 2),
        ("b3n16", 3),
    ]
    for warmup in config.model_warmup:
        given = warmup.inputs["x"]
        file = tmp_path / "repository" / "small" / "warmup" / given.input_data_file
        row = bundle.load_case(warmup.name).inputs["x"][0]
        assert tuple(given.dims) == row.shape
        np.testing.assert_array_equal(np.fromfile(file, np.float32).reshape(row.shape), row)


def test_tensorrt_inside_onnxruntime(bundle: Bundle, tmp_path: Path) -> None:
    config = written(bundle, tmp_path, accelerator=True)
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert accelerator.parameters["precision_mode"] == "FP32"
    assert accelerator.parameters["trt_profile_min_shapes"] == "x:1x1x32"
    assert accelerator.parameters["trt_profile_opt_shapes"] == "x:2x7x32"
    assert accelerator.parameters["trt_profile_max_shapes"] == "x:3x16x32"
    assert config.instance_group[0].kind == SCHEMA.ModelInstanceGroup.KIND_GPU


def with_plan(bundle: Bundle, bundle_hash: str | None = None, profiles: int = 1) -> bytes:
    """A plan's file and record: building a real one takes a GPU, and only its bytes are copied."""
    file = bundle.path / "model.tensorrt.plan"
    file.write_bytes(b"a plan")
    plan = EnginePlan(
        kind="tensorrt",
        model=bundle.name,
        bundle_path=bundle.path,
        bundle_hash=bundle_hash or bundle.hash,
        dtype=bundle.dtype,
        path=file,
        plan_sha256=file_sha256(file),
        versions={},
        build_seconds=1.0,
        profiles=({"batch": (1, 2, 3)},) * profiles,
    )
    file.with_name(file.name + ".json").write_text(plan.model_dump_json())
    return file.read_bytes()


@pytest.mark.parametrize(("profiles", "listed"), [(0, ["0"]), (1, ["0"]), (2, ["0", "1"])])
def test_a_plan(bundle: Bundle, tmp_path: Path, profiles: int, listed: list[str]) -> None:
    content = with_plan(bundle, profiles=profiles)
    config = written(bundle, tmp_path, backend="tensorrt")
    assert (config.backend, config.default_model_filename) == ("tensorrt", "model.plan")
    (group,) = config.instance_group
    assert (list(group.profile), group.kind) == (listed, SCHEMA.ModelInstanceGroup.KIND_GPU)
    folder = tmp_path / "repository" / "small" / "1"
    assert [file.name for file in folder.iterdir()] == ["model.plan"]
    assert (folder / "model.plan").read_bytes() == content


@pytest.mark.parametrize("dtype", sorted(TRITON_TYPES))
def test_every_dtype_is_triton_s(dtype: str) -> None:
    tensor = TensorConfig("x", dtype, (8,))
    text = ModelConfig("m", "onnxruntime", "model.onnx", 0, (tensor,), (tensor,)).text()
    assert parsed(text).input[0].data_type == getattr(SCHEMA, TRITON_TYPES[dtype])


def test_names_are_quoted() -> None:
    tensor = TensorConfig('a "b" \\ \n', "bool", (8,))
    text = ModelConfig("m", "onnxruntime", "model.onnx", 0, (tensor,), (tensor,)).text()
    assert parsed(text).input[0].name == 'a "b" \\ \n'


def test_several_bundles_and_versions(bundle: Bundle, tmp_path: Path) -> None:
    other = make_bundle(tmp_path / "other", seed=1)
    half = make_bundle(tmp_path / "half", "float16")
    words = (f"mh:2={bundle.path}", f"mh:10={other.path}", f"half={half.path}")
    repository = tmp_path / "repository"
    sources = [Source.parse(word) for word in words]
    folders = write_repository(sources, repository, RepositoryOptions())
    assert [folder.name for folder in folders] == ["mh", "half"]
    config = parsed((repository / "mh" / "config.pbtxt").read_text("utf-8"))
    assert list(config.version_policy.specific.versions) == [2, 10]
    for number, source in (("2", bundle), ("10", other)):
        model = repository / "mh" / number / "model.onnx"
        assert model.read_bytes() == source.model_path.read_bytes()
    write_repository([Source(bundle.path, "third")], repository, RepositoryOptions())
    assert sorted(folder.name for folder in repository.iterdir()) == ["half", "mh", "third"]


def test_a_model_is_replaced_as_a_whole(bundle: Bundle, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_repository([Source(bundle.path, "m", "1")], repository, RepositoryOptions())
    write_repository([Source(bundle.path, "m", "2")], repository, RepositoryOptions(max_batch=0))
    assert not (repository / "m" / "1").exists()
    config = parsed((repository / "m" / "config.pbtxt").read_text("utf-8"))
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [-1, -1, 32]
    assert not config.HasField("dynamic_batching")
    assert config.model_warmup[1].inputs["x"].dims == [2, 7, 32]


def test_what_is_not_ours_stays(bundle: Bundle, tmp_path: Path) -> None:
    theirs = tmp_path / "repository" / "small"
    theirs.mkdir(parents=True)
    (theirs / "config.pbtxt").write_text('name: "small"\n')
    with pytest.raises(UsageError, match="was not written by attnport, which does not overwrite"):
        write_repository([Source(bundle.path)], theirs.parent, RepositoryOptions())
    assert (theirs / "config.pbtxt").read_text() == 'name: "small"\n'
    assert [file.name for file in theirs.parent.iterdir()] == ["small"]


def good() -> ModelConfig:
    tensor = TensorConfig("x", "float32", (-1, 8))
    warmup = Warmup("w", 1, {"x": WarmupInput("float32", (2, 8), "w.x")})
    out = TensorConfig("y", "float32", (-1, 8))
    return ModelConfig(
        "m", "onnxruntime", "model.onnx", 4, (tensor,), (out,), queue_delay_us=0, warmups=(warmup,)
    )


def _without_dims(config: ModelConfig) -> ModelConfig:
    return dataclasses.replace(config, outputs=(TensorConfig("y", "float32", ()),))


def _sized(size: int) -> Callable[[ModelConfig], ModelConfig]:
    return lambda config: dataclasses.replace(
        config, outputs=(TensorConfig("y", "float32", (size, 8)),)
    )


def _changed(**changes: Any) -> Callable[[ModelConfig], ModelConfig]:
    return lambda config: dataclasses.replace(config, **changes)


WRONG: list[tuple[Callable[[ModelConfig], ModelConfig], str]] = [
    (_changed(max_batch_size=-3), "max_batch_size is -3"),
    (_changed(max_batch_size=0), "dynamic batching is on and max_batch_size is 0"),
    (_changed(preferred_batch_sizes=(5,)), "preferred batch size 5 is not between 1 and"),
    (_changed(preferred_batch_sizes=(0,)), "preferred batch size 0 is not between 1 and"),
    (_changed(preferred_batch_sizes=(2,), queue_delay_us=None), "without dynamic batching"),
    (_changed(queue_delay_us=-1), "the queue delay is -1"),
    (_sized(0), "'y' has the size 0"),
    (_sized(-5), "'y' has the size -5"),
    (_without_dims, "'y' has no dims"),
    (_changed(outputs=()), "needs an input and an output"),
    (_changed(outputs=(TensorConfig("", "bool", (1,)),)), "a tensor has no name"),
    (_changed(outputs=(TensorConfig("y", "bool", (1,)),) * 2), "'y' is listed twice"),
    (_changed(instances=0), "0 instances compute nothing"),
    (_changed(versions=()), "the versions are []"),
    (_changed(versions=(0, 1)), "the versions are [0, 1]"),
    (_changed(backend="tensorrt"), "a TensorRT plan runs on a GPU"),
    (_changed(backend="python", accelerator={}), "the accelerator is ONNX Runtime's"),
    (_changed(accelerator={}), "accelerator runs on a GPU"),
    (_changed(warmups=(Warmup("w", 5, {}),)), "has the batch size 5"),
    (_changed(warmups=(Warmup("w", 1, {}),)), "has other inputs than the model"),
    (
        _changed(warmups=(Warmup("w", 1, {"x": WarmupInput("float32", (2, 9), "f")}),)),
        "does not fit the input 'x'",
    ),
    (
        _changed(warmups=(Warmup("w", 1, {"x": WarmupInput("float16", (2, 8), "f")}),)),
        "does not fit the input 'x'",
    ),
]


def test_a_good_config_has_no_problems() -> None:
    assert problems(good()) == []


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[said for _, said in WRONG])
def test_our_checks(change: Callable[[ModelConfig], ModelConfig], said: str) -> None:
    found = problems(change(good()))
    assert any(said in sentence for sentence in found), found


@pytest.mark.parametrize(
    "change", [_changed(max_batch_size=-3), _sized(-5), _changed(preferred_batch_sizes=(5,))]
)
def test_the_schema_alone_lets_these_through(
    change: Callable[[ModelConfig], ModelConfig],
) -> None:
    assert parsed(change(good()).text()).name == "m"


@pytest.mark.parametrize("text", ["nonsense: 1", "max_batch_size: few", "input { dims: x }"])
def test_the_schema_refuses(text: str) -> None:
    with pytest.raises(text_format.ParseError):
        parsed(text)


def test_a_bundle_that_cannot_be_batched(tmp_path: Path) -> None:
    wide = identity_bundle(tmp_path / "wide", "float32", shape=("seq", "batch", 8), cases=())
    config, _ = config_from_bundle(wide, "m", [1], RepositoryOptions())
    assert (config.max_batch_size, config.queue_delay_us) == (0, None)
    assert config.inputs[0].dims == (-1, -1, 8)
    with pytest.raises(UsageError, match="cannot be batched by Triton"):
        config_from_bundle(wide, "m", [1], RepositoryOptions(max_batch=2))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"max_batch": 4}, UsageError, "--max-batch 4 exceeds the axis 'batch'"),
    ({"instances": 0}, UsageError, "Triton cannot run 'small' so: 0 instances"),
    ({"preferred_batches": (9,)}, UsageError, "preferred batch size 9"),
    ({"backend": "tensorrt"}, BundleError, "is no plan: build again"),
    ({"backend": "python", "accelerator": True}, UsageError, "the backend is python"),
    ({"backend": "tensorrt", "device": "cpu"}, UsageError, "runs on a GPU"),
]


@pytest.mark.parametrize(("options", "kind", "said"), BAD, ids=[said for *_, said in BAD])
def test_wrong_options_leave_nothing(
    bundle: Bundle, tmp_path: Path, options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    if "device" in options:
        with_plan(bundle)
    with pytest.raises(kind, match=said):
        written(bundle, tmp_path, **options)
    assert list(tmp_path.glob("repository/*")) == []


def test_a_plan_of_another_export(bundle: Bundle, tmp_path: Path) -> None:
    with_plan(bundle, "another")
    with pytest.raises(BundleError, match="was built from another export"):
        written(bundle, tmp_path, backend="tensorrt")


def test_versions_that_differ(bundle: Bundle, tmp_path: Path) -> None:
    half = make_bundle(tmp_path / "half", "float16")
    sources = [Source(bundle.path, "m", "1"), Source(half.path, "m", "2")]
    with pytest.raises(UsageError, match="versions 1 and 2 of 'm' take or give other tensors"):
        write_repository(sources, tmp_path / "repository", RepositoryOptions())


def test_the_python_backend_has_no_bfloat16(tmp_path: Path) -> None:
    bundle = identity_bundle(tmp_path / "b", "bfloat16", cases=())
    with pytest.raises(UsageError, match="python backend has no bfloat16"):
        written(bundle, tmp_path, backend="python")


def test_the_command(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "repository"
    words = ["triton", str(bundle.path), "--out", str(out), "--preferred-batch", "2"]
    assert cli.main([*words, "--threads", "1", "--queue-delay-us", "50"]) == 0
    assert f"tritonserver --model-repository={out}" in capsys.readouterr().out
    config = parsed((out / "small" / "config.pbtxt").read_text("utf-8"))
    assert config.parameters["intra_op_thread_count"].string_value == "1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{b}", "{b}"], "two bundles are to be version 1 of 'small'"),
        (["{b}", "--backend", "onnx"], "there is no backend 'onnx': use one of onnxruntime"),
        (["{b}", "--device", "tpu"], "there is no device 'tpu'"),
        (["{b}/nothing"], "is not a folder"),
        (["a b={b}"], "cannot stand in a URL"),
        (["{b}", "--backend", "tensorrt"], "is no plan"),
        (["{b}", "--max-batch", "99"], "exceeds the axis"),
    ],
)
def test_bad_input(
    bundle: Bundle,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    given = [word.format(b=bundle.path) for word in words]
    assert cli.main(["triton", *given, "--out", str(tmp_path / "repository")]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert len(shown.strip().splitlines()) == 1
