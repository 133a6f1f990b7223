"""`attnport models`: what can be exported by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from attnport.cli.options import Json
from attnport.cli.screen import say, show_table

if TYPE_CHECKING:
    from attnport.models.entry import Entry

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show one model in detail.")]


def models(name: Name = None, as_json: Json = False) -> None:
    """List the models that can be exported by name, with the sizes that can be set.

    Your own module needs no entry here: `attnport export` takes package.module:factory and
    path.py:factory, too.

    \b
    attnport models
    attnport models decoder-block
    """
    from attnport.models.registry import REGISTRY, resolve

    chosen = [resolve(name).name] if name is not None else list(REGISTRY)
    entries = {key: REGISTRY[key] for key in chosen}
    if as_json:
        _print_json(entries)
    elif name is not None:
        _show_one(name, entries[name])
    else:
        _show_all(entries)


def _print_json(entries: dict[str, Entry]) -> None:
    import json

    from attnport.models.entry import type_text

    content = {
        name: {
            "summary": entry.summary,
            "inputs": list(entry.input_texts(entry.defaults)),
            "defaults": dict(entry.defaults),
            "settable": {size: type_text(kind) for size, kind in entry.size_types().items()},
        }
        for name, entry in entries.items()
    }
    say(json.dumps(content, indent=2))


def _show_all(entries: dict[str, Entry]) -> None:
    rows = []
    for name, entry in entries.items():
        if name != entry.base:
            continue
        ready = [other for other, same in entries.items() if same.base == name and other != name]
        rows.append(
            (
                name,
                entry.summary,
                "\n".join(entry.input_texts(entry.defaults)),
                _sizes(entry),
                "\n".join(ready),
            )
        )
    show_table(("name", "what it is", "inputs", "sizes (--set)", "with fixed sizes"), rows)
    say("Sizes show their default. Details: attnport models NAME")


def _sizes(entry: Entry) -> str:
    from attnport.models.entry import type_text

    return "\n".join(
        f"{size}={entry.defaults[size]}"
        if size in entry.defaults
        else f"{size} ({type_text(kind)})"
        for size, kind in entry.size_types().items()
    )


def _show_one(name: str, entry: Entry) -> None:
    from attnport.models.registry import resolve

    spec = resolve(name)
    say(f"{name}: {entry.summary}")
    rows = [
        ("inputs", "\n".join(entry.input_texts(entry.defaults))),
        ("attentions", str(spec.attentions)),
        ("sizes (--set)", _sizes(entry)),
        ("fixed", "\n".join(f"{size}={entry.defaults[size]}" for size in sorted(entry.fixed))),
        (
            "axes (--axis)",
            "\n".join(a.rule or f"{a.name}={a.min}:{a.opt}:{a.max}" for a in spec.axes.values()),
        ),
        ("source", spec.source),
    ]
    show_table(("", ""), [row for row in rows if row[1]])
    say(f"attnport export {name} --out build/{name}")
