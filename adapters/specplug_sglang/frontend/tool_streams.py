"""Streamed reasoning and tool calls: SGLang's parsers get the tokens of a step one by one, as without speculation.

Several of SGLang's parsers expect one token in each piece of a stream: they return at most one part of a call for a
piece, its name or arguments.  If a piece has more, arguments, calls or content are lost; the list is in
``docs/structured-output.md``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any


def install(tokenizer: Any) -> None:
    """Wrap the parsers of streams in this process; a later call replaces the tokenizer.

    Args:
        tokenizer: the server's; its special tokens are never split, because parsers look for them at once.  None or a
            slow one: words are fed one by one.
    """
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.function_call.json_array_parser import JsonArrayParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    _wrap(FunctionCallParser, "parse_stream_chunk", tokenizer, _calls_joined)
    _wrap(JsonArrayParser, "parse_streaming_increment", tokenizer, _results_joined)
    _wrap(ReasoningParser, "parse_stream_chunk", tokenizer, _reasoning_joined)


def _wrap(owner: Any, name: str, tokenizer: Any, join: Callable[[list[Any]], Any]) -> None:
    """Make a parser's method parse the tokens of its text one by one, and join what it returns for them."""
    current = getattr(owner, name)
    original = getattr(current, "_specplug_original", current)

    @functools.wraps(original)
    def parse(self: Any, text: str, *args: Any) -> Any:
        found = [original(self, piece, *args) for piece in pieces(text, tokenizer)]
        return found[0] if len(found) == 1 else join(found)

    parse._specplug_original = original  # type: ignore[attr-defined]
    setattr(owner, name, parse)


def _calls_joined(found: list[Any]) -> tuple[str, list[Any]]:
    return "".join(text or "" for text, _ in found), [call for _, calls in found for call in calls]


def _results_joined(found: list[Any]) -> Any:
    text, calls = "".join(one.normal_text or "" for one in found), [call for one in found for call in one.calls]
    return type(found[0])(normal_text=text, calls=calls)


def _reasoning_joined(found: list[Any]) -> tuple[str, str]:
    return "".join(reasoning or "" for reasoning, _ in found), "".join(text or "" for _, text in found)


def pieces(text: str, tokenizer: Any) -> Iterator[str]:
    """Yield the tokens of a text as text; all of it at once if it has one token or none.

    Characters that a token shares with its neighbours stay together, so the pieces always join to the text.
    """
    ends = sorted({end for _, end in _offsets(text, tokenizer)[:-1] if end} | {len(text)})
    start = 0
    for end in ends:
        yield text[start:end]
        start = end


def _offsets(text: str, tokenizer: Any) -> list[tuple[int, int]]:
    """Return where each token begins and ends; those of words if the tokenizer does not report them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [found.span() for found in _WORDS.finditer(text)]
    offsets: list[tuple[int, int]] = backend.encode(text, add_special_tokens=False).offsets
    return offsets


_WORDS = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]|\w+|\W")
