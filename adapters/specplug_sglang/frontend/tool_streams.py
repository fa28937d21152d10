"""Streamed tool calls: SGLang's parsers get the tokens of a step one by one, as they would without speculation.

The parsers of streams return at most one part of a call for each piece of text: its name, or arguments.  If the pieces
are as long as a step with accepted drafts, the arguments of a short call are lost, because no further piece comes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any


def install(tokenizer: Any) -> None:
    """Wrap the parsers of streams in this process; a later call replaces the tokenizer.

    Args:
        tokenizer: the server's; its special tokens are never split, because parsers look for them at once.  None or a
            slow one: words are fed one by one.
    """
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.function_call.json_array_parser import JsonArrayParser

    whole_call, array = FunctionCallParser.parse_stream_chunk, JsonArrayParser.parse_streaming_increment
    original_call = getattr(whole_call, "_specplug_original", whole_call)
    original_array = getattr(array, "_specplug_original", array)

    @functools.wraps(original_call)
    def parse_stream_chunk(self: Any, chunk_text: str) -> tuple[str, list[Any]]:
        found = [original_call(self, piece) for piece in pieces(chunk_text, tokenizer)]
        return "".join(text or "" for text, _ in found), [call for _, calls in found for call in calls]

    @functools.wraps(original_array)
    def parse_streaming_increment(self: Any, new_text: str, tools: Any) -> Any:
        found = [original_array(self, piece, tools) for piece in pieces(new_text, tokenizer)]
        text, calls = "".join(one.normal_text or "" for one in found), [call for one in found for call in one.calls]
        return type(found[0])(normal_text=text, calls=calls)

    for owner, wrapped, original in (
        (FunctionCallParser, parse_stream_chunk, original_call),
        (JsonArrayParser, parse_streaming_increment, original_array),
    ):
        wrapped._specplug_original = original  # type: ignore[attr-defined]
        setattr(owner, wrapped.__name__, wrapped)


def pieces(text: str, tokenizer: Any) -> Iterator[str]:
    """Yield the tokens of a text as text; all of it at once if it has one token or none.

    Characters that a token shares with its neighbours stay together, so the pieces always join to the text.
    """
    offsets = _offsets(text, tokenizer)
    ends = sorted({end for _, end in offsets[:-1] if end} | {len(text)})
    start = 0
    for end in ends:
        yield text[start:end]
        start = end


def _offsets(text: str, tokenizer: Any) -> list[tuple[int, int]]:
    """Return where each token begins and ends; those of words if the tokenizer does not report them."""
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [(int(start), int(end)) for start, end in encoded["offset_mapping"]]
    return [found.span() for found in _WORDS.finditer(text)]


_WORDS = re.compile(r"<[^<>\s]+>|\w+|\W")
