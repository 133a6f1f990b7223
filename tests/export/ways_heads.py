"""Ways of making heads out of projections."""

from __future__ import annotations

from collections.abc import Callable

from tests.export.nets import (
    HEADS,
    SIZE,
    WIDTH,
    Heads,
    Net,
    project,
    split_heads,
)


def packed(net: Net, x: str) -> str:
    return project(net, x, 3 * WIDTH)


def chunk(net: Net, x: str) -> Heads:
    q, k, v = net.ops("Split", 3, packed(net, x), [WIDTH] * 3, axis=-1)
    return split_heads(net, q), split_heads(net, k), split_heads(net, v)


def slices(net: Net, x: str) -> Heads:
    rows = packed(net, x)
    parts = [net.op("Slice", rows, [i * WIDTH], [(i + 1) * WIDTH], [2], [1]) for i in range(3)]
    return split_heads(net, parts[0]), split_heads(net, parts[1]), split_heads(net, parts[2])


def unbind(net: Net, x: str) -> Heads:
    """reshape(B,N,3,H,Dh).permute(2,0,3,1,4).unbind(0), as vision transformers do."""
    five = net.op("Reshape", packed(net, x), [0, 0, 3, HEADS, SIZE])
    turned = net.op("Transpose", five, perm=[2, 0, 3, 1, 4])
    q, k, v = (net.op("Gather", turned, i, axis=0) for i in range(3))
    return q, k, v


def unbind_by_split(net: Net, x: str) -> Heads:
    five = net.op("Reshape", packed(net, x), [0, 0, 3, HEADS, SIZE])
    parts = net.ops("Split", 3, net.op("Transpose", five, perm=[2, 0, 3, 1, 4]), [1] * 3, axis=0)
    q, k, v = (net.op("Squeeze", part, [0]) for part in parts)
    return q, k, v


def unbind_before_transpose(net: Net, x: str) -> Heads:
    five = net.op("Reshape", packed(net, x), [0, 0, 3, HEADS, SIZE])
    parts = net.ops("Split", 3, five, axis=2, num_outputs=3)
    q, k, v = (
        net.op("Transpose", net.op("Squeeze", part, [2]), perm=[0, 2, 1, 3]) for part in parts
    )
    return q, k, v


def by_negative_index(net: Net, x: str) -> Heads:
    five = net.op("Reshape", packed(net, x), [0, 0, 3, HEADS, SIZE])
    turned = net.op("Transpose", five, perm=[2, 0, 3, 1, 4])
    q, k, v = (net.op("Gather", turned, i - 3, axis=0) for i in range(3))
    return q, k, v


def interleaved(net: Net, x: str) -> Heads:
    """Each head's q, k and v side by side, as GPT-NeoX packs them: view(B,N,H,3·Dh).chunk(3)."""
    four = net.op("Reshape", packed(net, x), [0, 0, HEADS, 3 * SIZE])
    parts = net.ops("Split", 3, net.op("Transpose", four, perm=[0, 2, 1, 3]), [SIZE] * 3, axis=3)
    return parts[0], parts[1], parts[2]


def flat(net: Net, x: str) -> Heads:
    """Gemm on (B·N,D), and back."""
    rows = net.op("Reshape", x, [-1, WIDTH])
    found = []
    for _ in range(3):
        product = net.op("Gemm", rows, net.weight(), net.vector(), transB=1)
        shape = net.op("Concat", net.op("Shape", x, start=0, end=2), [HEADS, SIZE], axis=0)
        found.append(net.op("Transpose", net.op("Reshape", product, shape), perm=[0, 2, 1, 3]))
    return found[0], found[1], found[2]


def reshaped_step_by_step(net: Net, x: str) -> Heads:
    """Unsqueeze, Reshape, Transpose twice and an Identity."""
    found = []
    for _ in range(3):
        rows = net.op("Unsqueeze", project(net, x), [2])
        four = net.op("Identity", net.op("Reshape", rows, [0, 0, HEADS, -1]))
        turned = net.op("Transpose", four, perm=[0, 2, 3, 1])
        found.append(net.op("Transpose", turned, perm=[0, 1, 3, 2]))
    return found[0], found[1], found[2]


def by_einsum(net: Net, x: str) -> Heads:
    """Weights with an axis of heads (D,H,Dh), as XLNet has them."""
    weights = [net.heads_weight() for _ in range(3)]
    q = net.op("Einsum", x, weights[0], equation="bid,dhe->bhie")
    k, v = (
        net.op("Transpose", net.op("Einsum", x, one, equation="bid,dhe->bihe"), perm=[0, 2, 1, 3])
        for one in weights[1:]
    )
    return q, k, v


MADE: dict[str, Callable[[Net, str], Heads]] = {
    "chunk": chunk,
    "slices": slices,
    "unbind": unbind,
    "unbind by Split": unbind_by_split,
    "unbind before the transposition": unbind_before_transpose,
    "negative indices": by_negative_index,
    "flat Gemm": flat,
    "step by step": reshaped_step_by_step,
}


def repeated(net: Net, x: str, repeat: Callable[[Net, str], str], groups: int = 1) -> Heads:
    """Four query heads of 8 on two or one key/value heads."""
    q = split_heads(net, project(net, x), 4, 8)
    k, v = (
        repeat(net, split_heads(net, project(net, x, groups * 8), groups, 8)) for _ in range(2)
    )
    return q, k, v


def expanded(net: Net, heads: str) -> str:
    """repeat_kv: unsqueeze, expand, reshape: heads 0 0 1 1."""
    five = net.op("Unsqueeze", heads, [2])
    sizes = net.op("Shape", heads)
    kept = [net.op("Slice", sizes, [a], [b], [0]) for a, b in ((0, 2), (2, 4))]
    wide = net.op("Expand", five, net.op("Concat", kept[0], [2], kept[1], axis=0))
    batch = net.op("Slice", sizes, [0], [1], [0])
    return net.op("Reshape", wide, net.op("Concat", batch, [4], kept[1], axis=0))


def gathered(net: Net, heads: str) -> str:
    return net.op("Gather", heads, [0, 0, 1, 1], axis=1)


def tiled(net: Net, heads: str) -> str:
    """A repeat of the whole: heads 0 1 0 1."""
    return net.op("Tile", heads, [1, 2, 1, 1])


REPEATS: dict[str, Callable[[Net, str], str]] = {
    "Expand": expanded,
    "Gather": gathered,
    "Tile": tiled,
}
