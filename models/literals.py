"""Sizes as text: `d_model=512,activation=relu` on the command line and within a source's braces.

A value is a Python literal; `true`, `false` and `none` are taken too, and a bare word is a string.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from attnport.errors import UsageError

_WORDS: dict[str, object] = {"true": True, "false": False, "none": None}


def parse_value(text: str) -> object:
    """Reads one value; text that is not a literal is a string.

    >>> parse_value("64"), parse_value("true"), parse_value("gelu")
    (64, True, 'gelu')
    """
    text = text.strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value


def split_braces(source: str) -> tuple[str, dict[str, object]]:
    """Splits `NAME{a=1,b=relu}` into the name and the values.

    Raises:
        UsageError: If what is in the braces is not of the form key=value,key=value.

    >>> split_braces("registry:multi-head{d_model=512,bias=true}")
    ('registry:multi-head', {'d_model': 512, 'bias': True})
    """
    source = source.strip()
    if not source.endswith("}") or "{" not in source:
        return source, {}
    name, _, body = source[:-1].partition("{")
    try:
        call = ast.parse(f"f({body})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("a value without a key")
        values = {str(keyword.arg): _value_of(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"{source!r} cannot be read: write {name}{{key=value,key=value}}, such as "
            f"{name}{{d_model=512}}, with quotes around text that is not one word"
        ) from error
    return name, values


def with_braces(name: str, values: Mapping[str, object]) -> str:
    """Writes what `split_braces` reads.

    >>> with_braces("user.py:model", {"d_model": 64, "kind": "relu"})
    "user.py:model{d_model=64,kind='relu'}"
    """
    if not values:
        return name
    return f"{name}{{{','.join(f'{key}={value!r}' for key, value in values.items())}}}"


def _value_of(node: ast.expr) -> object:
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id.lower(), node.id)
    value: object = ast.literal_eval(node)
    return value
