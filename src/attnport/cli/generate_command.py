"""`attnport generate`: token ids in, token ids out, and what each step took."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from attnport.cli.options import BundlePath, Json
from attnport.cli.screen import say, warn
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.engines.decoding.greedy import Generation
    from attnport.engines.decoding.session import DecodingSession

Prompts = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt-ids",
        metavar="IDS",
        help="Token ids with commas between, such as 1,2,3; may be repeated, for a batch.",
    ),
]
Tokens = Annotated[
    int, typer.Option("--tokens", metavar="N", min=1, help="How many to generate for each prompt.")
]
Engine = Annotated[
    str,
    typer.Option("--engine", "-e", metavar="KIND", help="The kind of engine, such as ort-cpu."),
]
Capacity = Annotated[
    int | None,
    typer.Option(
        "--capacity",
        metavar="N",
        min=1,
        help="Rows of static caches, where the bundle leaves them open; the most by default.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, help="CPU threads to compute with."),
]


def generate(
    bundle: BundlePath,
    prompt_ids: Prompts = None,
    tokens: Tokens = 16,
    engine: Engine = "ort-cpu",
    capacity: Capacity = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Continue prompts with a language model, greedily, one token at a time from its caches.

    There is no tokenizer: ids go in and come out. Keys and values stay in the engine; the bytes
    that each step copied are counted.

    \b
    attnport export decoder-lm --out build/lm
    attnport generate build/lm --prompt-ids 1,2,3 --tokens 32
    attnport generate build/lm --prompt-ids 1,2,3 --prompt-ids 7 --json

    Exit codes: 0 generated, 2 bad input, 4 an error of attnport.
    """
    prompts = [_ids(text) for text in prompt_ids or ()]
    if not prompts:
        raise UsageError("no prompt was given: add --prompt-ids, such as --prompt-ids 1,2,3")
    from attnport.api import open_decoding
    from attnport.engines.decoding import greedy

    with open_decoding(bundle, engine, threads=threads) as session:
        found = greedy.generate(session, prompts, tokens, capacity=capacity)
        if as_json:
            say(json.dumps(_content(session, found), indent=2))
        else:
            _show(session, found)
        if found.full:
            warn(
                f"the caches were full after {len(found.tokens[0])} of {tokens} tokens: export with "
                "a larger range for more"
            )


def _ids(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.removeprefix("-").isdecimal() for word in words):
        raise UsageError(
            f"--prompt-ids {text!r} is no list of token ids: write --prompt-ids 1,2,3"
        )
    return [int(word) for word in words]


def _show(session: DecodingSession, found: Generation) -> None:
    for ids in found.tokens:
        say(",".join(map(str, ids)))
    say()
    say(f"engine     {session.kind}: {session.keeps}")
    say(
        f"prefill    {found.prefill_seconds * 1e3:.2f} ms, {found.prefill_copied.total} bytes copied"
    )
    rate = found.tokens_per_second
    if rate is not None:
        last = found.step_copied[-1]
        say(f"decoding   {rate:.1f} tokens/s, {len(found.step_seconds)} steps")
        say(
            f"copied     {last.total} bytes in the last step: {last.to_engine} to the engine, "
            f"{last.from_engine} from it, {last.caches} of caches"
        )


def _content(session: DecodingSession, found: Generation) -> dict[str, object]:
    return {
        "engine": session.kind,
        "caches": session.layout.kind,
        "keeps": session.keeps,
        "tokens": found.tokens,
        "full": found.full,
        "prefill_seconds": found.prefill_seconds,
        "prefill_bytes_copied": found.prefill_copied.total,
        "step_seconds": found.step_seconds,
        "tokens_per_second": found.tokens_per_second,
        "bytes_copied_per_step": [
            {"to_engine": c.to_engine, "from_engine": c.from_engine, "caches": c.caches}
            for c in found.step_copied
        ],
    }
