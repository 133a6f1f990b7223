"""How many kernels TensorRT for RTX makes of what is written: real builds, no GPU needed.

fp16, D=512, H=8, dynamic batch and sequence. The counts are what was shown to be reachable with
TensorRT for RTX 1.7.1; fewer is better. Pure causality is bounded: its kernel skips the upper
triangle.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from tests.export.modules import Separate, Stack, Torch, eager, sdpa_causal
from tests.export.nets import Heads, Net, causal_visible, merge_heads, split_heads, to_ir
from tests.export.ways_masks import CAUSAL, HIDES, PADDING, pad
from tests.export.ways_scores import SCORES
from torch import nn

from attnport.axes import Axis
from attnport.engines.build import build_engine
from attnport.engines.plan import FusionReport
from attnport.export.bundle import FORMAT_VERSION, MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.capture import onnx_from_module
from attnport.export.dynamic_shapes import bind_example
from attnport.export.module_forms import module_in_dtype
from attnport.export.onnx_file import save_onnx
from attnport.export.passes import inspect_graph, run_passes
from attnport.export.records import Manifest
from attnport.export.roles import input_specs, tensor_spec
from attnport.models import AttentionStack

pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")

WIDTH, HEADS, LAYERS = 512, 8, 4
AXES = {"batch": Axis("batch", 1, 2, 4), "seq": Axis("seq", 1, 32, 64)}
# Kernels at most: of one attention, of four blocks, and of four with a mask and its guard.
ONE, BLOCKS, MASKED_BLOCKS = 5, 19, 22
Hide = Callable[[Net, str], str]


def plain(net: Net, scores: str) -> str:
    return scores


def separate(net: Net, x: str) -> Heads:
    q, k, v = (
        split_heads(net, net.op("MatMul", x, net.weight(WIDTH, WIDTH)), HEADS, WIDTH // HEADS)
        for _ in range(3)
    )
    return q, k, v


def chunk(net: Net, x: str) -> Heads:
    packed = net.op("MatMul", x, net.weight(WIDTH, 3 * WIDTH))
    q, k, v = (
        split_heads(net, part, HEADS, WIDTH // HEADS)
        for part in net.ops("Split", 3, packed, [WIDTH] * 3, axis=-1)
    )
    return q, k, v


def unbind(net: Net, x: str) -> Heads:
    packed = net.op("MatMul", x, net.weight(WIDTH, 3 * WIDTH))
    five = net.op("Reshape", packed, [0, 0, 3, HEADS, WIDTH // HEADS])
    turned = net.op("Transpose", five, perm=[2, 0, 3, 1, 4])
    q, k, v = (net.op("Gather", turned, i, axis=0) for i in range(3))
    return q, k, v


MADE = {"separate": separate, "chunk": chunk, "unbind": unbind}


def attention(net: Net, x: str, made: str, scores: str, hide: Hide) -> str:
    q, k, v = MADE[made](net, x)
    weights = net.op("Softmax", hide(net, SCORES[scores](net, q, k)), axis=-1)
    rows = merge_heads(net, net.op("MatMul", weights, v), WIDTH)
    return net.op("MatMul", rows, net.weight(WIDTH, WIDTH))


def blocks(made: str, scores: str, hide: Hide, layers: int = LAYERS) -> ir.Model:
    """Pre-LN blocks x + attention(LayerNorm(x)); a single one is the attention alone."""
    net = Net(dtype="float16")
    x = net.input("x", ["batch", "seq", WIDTH])
    if layers == 1:
        return to_ir(net.model(attention(net, x, made, scores, hide)))
    for _ in range(layers):
        normed = net.op("LayerNormalization", x, net.vector(WIDTH), net.vector(WIDTH), axis=-1)
        x = net.op("Add", x, attention(net, normed, made, scores, hide))
    return to_ir(net.model(x))


def captured(module: nn.Module, mask: bool) -> ir.Model:
    """The module in half precision, before the passes."""
    visible = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    args = (torch.zeros(2, 5, WIDTH, dtype=torch.float16), visible)[: 2 if mask else 1]
    shapes = ({0: "batch", 1: "seq"}, {0: "batch", 2: "seq", 3: "seq"})[: len(args)]
    low = module_in_dtype(module, "float16")
    return onnx_from_module(low, bind_example(low, args, {}, shapes, AXES), AXES, 18)


def built(model: ir.Model, folder: Path) -> FusionReport:
    """The model after the passes, built: every attention fused, and every group one product."""
    passes = run_passes(model, AXES)
    save_onnx(model, folder / MODEL)
    found = inspect_graph(model.graph, AXES)
    manifest = Manifest(
        format_version=FORMAT_VERSION, name="net", source="", dtype="float16", form="pattern",
        opset=18, axes={name: (axis.min, axis.opt, axis.max) for name, axis in AXES.items()},
        inputs=input_specs(model.graph, AXES),
        outputs=tuple(tensor_spec(value) for value in model.graph.outputs),
        graph_sha256=file_sha256(folder / MODEL), weights_sha256="", files={}, versions={},
        passes=passes, attentions=found.attentions, projection_groups=found.projection_groups,
        cases=(),
    )  # fmt: skip
    (folder / MANIFEST).write_text(manifest.model_dump_json(), "utf-8")
    fusion = build_engine(Bundle(folder, manifest), "tensorrt-rtx").fusion
    assert fusion is not None
    assert fusion.attentions
    assert all(attention.fused for attention in fusion.attentions)
    assert all(group.merged_in_graph for group in fusion.projection_groups)
    return fusion


def causality(fusion: FusionReport) -> set[str]:
    return {attention.causal for attention in fusion.attentions}


@pytest.mark.parametrize(
    ("made", "hide", "causal"),
    [
        ("separate", plain, "none"),
        ("unbind", CAUSAL["positions compared"], "bounded"),
        ("chunk", PADDING["-inf"][0], "none"),
    ],
)
def test_one_attention(made: str, hide: Hide, causal: str, tmp_path: Path) -> None:
    fusion = built(blocks(made, "Mul after", hide, layers=1), tmp_path)
    assert causality(fusion) == {causal}
    # The guard of dead rows is one more.
    assert fusion.kernel_count <= ONE + (hide is PADDING["-inf"][0])


@pytest.mark.parametrize(
    ("made", "scores"),
    [
        ("separate", "Div after"), ("chunk", "Mul on K"), ("unbind", "the root on both"),
        ("separate", "Div by a Sqrt of a constant"),
    ],
)  # fmt: skip
def test_four_blocks(made: str, scores: str, tmp_path: Path) -> None:
    fusion = built(blocks(made, scores, plain), tmp_path)
    assert fusion.kernel_count <= BLOCKS
    assert causality(fusion) == {"none"}


@pytest.mark.parametrize(
    "causal", ["Trilu, the upper part filled", "Trilu of -inf, added", "a bool buffer", "twice"]
)
def test_four_causal_blocks_are_bounded(causal: str, tmp_path: Path) -> None:
    fusion = built(blocks("separate", "Mul after", CAUSAL[causal]), tmp_path)
    assert fusion.kernel_count <= BLOCKS
    assert causality(fusion) == {"bounded"}


MASKED = {
    "hidden filled": HIDES["Where(hidden, -inf, scores)"][0],
    "a float mask == 0": HIDES["Where(mask == 0, -inf, scores)"][0],
    "causality and padding": PADDING["causal, then -inf"][0],
}


@pytest.mark.parametrize("written", MASKED)
def test_four_blocks_with_a_mask_and_the_guard(written: str, tmp_path: Path) -> None:
    fusion = built(blocks("chunk", "Mul on Q", MASKED[written]), tmp_path)
    assert fusion.kernel_count <= MASKED_BLOCKS
    assert causality(fusion) == {"masked" if "causal" in written else "none"}


MODULES: dict[str, tuple[Callable[[], nn.Module], bool, int, str]] = {
    "ours, causal": (
        lambda: AttentionStack(WIDTH, HEADS, LAYERS, causal=True), False, BLOCKS, "bounded",
    ),
    "ours, with a mask": (
        lambda: AttentionStack(WIDTH, HEADS, LAYERS), True, MASKED_BLOCKS, "none",
    ),
    "by hand, with a mask": (
        lambda: Stack(lambda: Separate(WIDTH, HEADS, eager), WIDTH, LAYERS),
        True, MASKED_BLOCKS, "none",
    ),
    "torch.nn": (
        lambda: Stack(lambda: Torch(WIDTH, HEADS, eager), WIDTH, LAYERS),
        False,
        BLOCKS,
        "none",
    ),
    "SDPA, causal": (
        lambda: Stack(lambda: Separate(WIDTH, HEADS, sdpa_causal), WIDTH, LAYERS),
        False, BLOCKS, "bounded",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_four_blocks_from_pytorch(name: str, tmp_path: Path) -> None:
    make, mask, most, causal = MODULES[name]
    fusion = built(captured(make(), mask), tmp_path)
    assert fusion.kernel_count <= most
    assert causality(fusion) == {causal}


class PaddedTorchBlocks(nn.Module):
    """Pre-LN blocks of nn.MultiheadAttention with a key_padding_mask, True where hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.attentions = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)
            for _ in range(LAYERS)
        )

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        for norm, attention in zip(self.norms, self.attentions, strict=True):
            h = norm(x)
            x = x + attention(h, h, h, key_padding_mask=padding, need_weights=False)[0]
        return x


def test_a_key_padding_mask_costs_a_guard_and_nothing_else(tmp_path: Path) -> None:
    low = module_in_dtype(PaddedTorchBlocks().eval(), "float16")
    args = (torch.zeros(2, 5, WIDTH, dtype=torch.float16), torch.zeros(2, 5, dtype=torch.bool))
    shapes = ({0: "batch", 1: "seq"}, {0: "batch", 1: "seq"})
    model = onnx_from_module(low, bind_example(low, args, {}, shapes, AXES), AXES, 18)
    fusion = built(model, tmp_path)
    assert fusion.kernel_count <= MASKED_BLOCKS


def test_two_numbers_that_hide_are_one_where_that_builds(tmp_path: Path) -> None:
    """Two Where in a row would end the builder with a segmentation fault."""

    def hide(net: Net, scores: str) -> str:
        causal = net.op("Where", causal_visible(net), scores, -3e4)
        return net.op("Where", pad(net), causal, -1e4)

    fusion = built(blocks("separate", "Mul after", hide, layers=1), tmp_path)
    assert fusion.kernel_count <= ONE + 1  # the numbers are written out once
