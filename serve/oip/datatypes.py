"""The protocol's names of element types."""

from __future__ import annotations

from attnport.errors import UsageError

_OIP = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
}
_RECORDS = {oip: name for name, oip in _OIP.items()}


def oip_datatype(dtype: str) -> str:
    """The protocol's name of a dtype as records name it.

    >>> oip_datatype("bfloat16")
    'BF16'
    """
    return _OIP[dtype]


def record_dtype(datatype: str) -> str:
    """The other way round.

    Raises:
        UsageError: If no graph of ours has tensors of that type.
    """
    if datatype not in _RECORDS:
        known = ", ".join(_RECORDS)
        raise UsageError(f"the datatype {datatype!r} is not one of those served: {known}")
    return _RECORDS[datatype]
