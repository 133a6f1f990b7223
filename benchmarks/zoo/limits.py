"""What no fused kernel of TensorRT for RTX takes, each with the smallest graph that shows it.

tests/zoo/test_limits.py builds these graphs: where one is fused, TensorRT has learnt it, and the
expectations that name the limit are out of date.
"""

from __future__ import annotations

from dataclasses import dataclass

SOFTCAP = "softcap: TensorRT has no fused kernel that caps scores"
SINKS = "sinks: a column of scores without a key has no place in a fused kernel"
WEIGHTS = "returned weights: what a fused kernel never writes cannot be an output"
HEAD_SIZE = "head size: the fused kernels take 9 to 256"


@dataclass(frozen=True)
class Limit:
    """One attention with nothing around it, in fp16.

    Attributes:
        limit: The reason, as entries of the zoo name it; "" for the control, which is fused.
        body: Between q, k, v and the output, in ONNX's text form.
        head_size: Dh.
        inputs: More inputs.
        outputs: More outputs.
    """

    limit: str
    body: str
    head_size: int = 16
    inputs: str = ""
    outputs: str = ""

    @property
    def text(self) -> str:
        """The whole model; q, k, v are (B,2,N,Dh)."""
        heads = f"float16[b,2,n,{self.head_size}]"
        given = ", ".join(f"{heads} {name}" for name in "qkv") + self.inputs
        return (
            '<ir_version: 8, opset_import: ["" : 18]>\n'
            f"smallest ({given}) => ({heads} y{self.outputs}) {{\n"
            "turned = Transpose <perm = [0, 1, 3, 2]> (k)\n"
            "scores = MatMul (q, turned)\n"
            f"{self.body}"
            "y = MatMul (weights, v)\n}"
        )


_PLAIN = "weights = Softmax <axis = -1> (scores)\n"
CONTROL = Limit("", _PLAIN)
LIMITS = (
    Limit(SOFTCAP, "capped = Tanh (scores)\nweights = Softmax <axis = -1> (capped)\n"),
    Limit(
        SINKS,
        "all = Concat <axis = -1> (scores, sink)\n"
        "shares = Softmax <axis = -1> (all)\n"
        "start = Constant <value_ints = [0]> ()\n"
        "end = Constant <value_ints = [-1]> ()\n"
        "axis = Constant <value_ints = [3]> ()\n"
        "weights = Slice (shares, start, end, axis)\n",
        inputs=", float16[b,2,n,1] sink",
    ),
    Limit(WEIGHTS, _PLAIN, outputs=", float16[b,2,n,n] weights"),
    Limit(HEAD_SIZE, _PLAIN, head_size=257),
    Limit(HEAD_SIZE, _PLAIN, head_size=8),
)
