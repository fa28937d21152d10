"""Streams in pieces of several tokens, as servers with speculation parse them; the outputs are in `forms`."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers.decoders import DecodeStream

from tests.engines.forms import CALLS, ONE_CALL, TYPES
from tests.engines.launch import ROOT, TINY

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in types.items()},
                "required": [*types],
            },
        },
    }
    for name, types in TYPES.items()
]
WHOLE = 10**6
SIZES = {"2": 2, "5": 5, "16": 16, "all": WHOLE}
"""Tokens in each piece of a stream."""


def expected(form: str) -> list[tuple[str, Any]]:
    """Return the calls of an output."""
    return list(CALLS[:1] if form in ONE_CALL else CALLS)


_MARKS = re.compile(
    r"</?[^<>\s=]+>|<\|[^<>\s]*\|>|\[/?[A-Z_]+\]|\]<\]minimax\[>\[|<\|\"\|>|<\|[a-z_]+>|<[a-z_]+\|>"
    r"|<(?:function|parameter)=|◁/?think▷"
)


@functools.cache
def tokenizer(text: str, more: tuple[str, ...] = ()) -> Any:
    """Return the tiny tokenizer with a token of its own for every mark of a text, and for some more words."""
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(TINY)
    made.add_tokens(sorted({*_MARKS.findall(text), *more}))
    return made


def tokens(tokenizer: Any, text: str) -> tuple[list[int], list[str]]:
    """Return a text's token ids, and the text of each token as a server's detokenizer yields it."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    stream = DecodeStream(skip_special_tokens=False)
    texts = [stream.step(tokenizer.backend_tokenizer, token) or "" for token in ids]
    assert "".join(texts) == text
    return ids, texts


def grouped(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Return the items in groups of one size, the last one smaller."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def values(calls: Iterable[tuple[str, str]]) -> list[tuple[str, Any]]:
    """Return calls with their arguments as values; malformed ones as they are."""
    found: list[tuple[str, Any]] = []
    for name, arguments in calls:
        try:
            found.append((name, json.loads(arguments)))
        except ValueError:
            found.append((name, arguments))
    return found


def differing(parse: Callable[[int], Sequence[Any]]) -> list[str]:
    """Return, for each part of what a stream is parsed to, the sizes of pieces that change it, compared with 1 token.

    A size is stated for the first part that it changes.
    """
    single = parse(1)
    found: list[list[str]] = [[] for _ in single]
    for name, size in SIZES.items():
        parsed = parse(size)
        changed = [place for place, part in enumerate(single) if len(parsed) <= place or parsed[place] != part]
        if changed:
            found[changed[0]].append(name)
    return [" ".join(names) for names in found]


def documented(title: str, parser: str, columns: int) -> list[str]:
    """Return a parser's row in a table of ``tests/engines/streamed_parsers.md``; empty cells if it has none."""
    text = (Path(ROOT) / "tests" / "engines" / "streamed_parsers.md").read_text()
    section = text.partition(f"\n### {title}\n")[2].partition("\n#")[0]
    assert "| --" in section or "|---" in section, title
    row = re.search(rf"^\| `{re.escape(parser)}` \|(.*)\|$", section, re.MULTILINE)
    return [cell.strip() for cell in row[1].split("|")][:columns] if row else [""] * columns
