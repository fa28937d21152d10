"""Streamed reasoning and tool calls: vLLM's parsers get the tokens of a step one by one, as they would without drafts.

Several of vLLM's parsers expect one token in each piece of a stream.  If a piece has more, they lose arguments or names
of calls, or leave markers in the reasoning; the list is in ``tests/engines/streamed_parsers.md``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from specplug.seams.seam import hook
from specplug_vllm import seams

_TEXTS = "_specplug_texts"  # attribute of a parser, which vLLM makes for one stream
_PROMPT_TOKENS = 8
"""The prompt's last tokens that the decoder is given: some decoders drop the space before a text's first word."""
_PARTS = "_specplug_parts"  # private attribute of a merged message, which is not sent


def install() -> None:
    """Wrap the parsers that vLLM's servers create from now on in this process."""
    if not seams.available("streams"):
        return
    from vllm.entrypoints.openai.responses import serving, streaming_events
    from vllm.parser.parser_manager import ParserManager

    hook(ParserManager, "get_parser", _get_parser)
    hook(streaming_events, "split_delta", split_in_order)
    serving.split_delta = streaming_events.split_delta  # its name for it


def _get_parser(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    parser = original(*args, **kwargs)
    return None if parser is None else by_token(parser)


def by_token(parser: type[Any]) -> type[Any]:
    """Return a subclass of a parser that parses a piece of several tokens as pieces of one token each."""
    original = parser.parse_delta

    @functools.wraps(original)
    def parse_delta(
        self: Any,
        delta_text: str,
        delta_token_ids: list[int],
        request: Any,
        prompt_token_ids: list[int] | None = None,
        *,
        finished: bool,
    ) -> Any:
        texts = getattr(self, _TEXTS, None)
        if texts is None:
            skip = getattr(request, "skip_special_tokens", True)
            texts = TokenTexts(self.model_tokenizer, prompt_token_ids or (), skip_special_tokens=skip)
            setattr(self, _TEXTS, texts)
        cut = texts.cut(delta_text, delta_token_ids)
        if cut is None or len(cut) < 2:
            return original(self, delta_text, delta_token_ids, request, prompt_token_ids, finished=finished)
        last = len(cut) - 1
        return merge(
            original(self, text, [token], request, prompt_token_ids, finished=finished and at == last)
            for at, (text, token) in enumerate(zip(cut, delta_token_ids, strict=True))
        )

    return type(parser.__name__, (parser,), {"parse_delta": parse_delta})


class TokenTexts:
    """Cuts the pieces of one stream's text into the texts of their tokens.

    The text may lag behind the tokens: vLLM holds back what may be the beginning of a stop string.

    Args:
        tokenizer: the server's.  Pieces are not cut if it is not one of the ``tokenizers`` library.
        prompt_token_ids: of the stream's request.
        skip_special_tokens: whether the text lacks special tokens.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._backend = backend if isinstance(backend, Tokenizer) else None
        self._stream = DecodeStream(
            ids=list(prompt_token_ids[-_PROMPT_TOKENS:]), skip_special_tokens=skip_special_tokens
        )
        self._held_back = ""

    def cut(self, text: str, token_ids: Sequence[int]) -> list[str] | None:
        """Return the text of each token of the next piece, which join to its text; None if tokens and text differ."""
        if self._backend is None:
            return None
        lag = len(self._held_back)
        decoded = self._held_back
        ends = [0]
        try:
            for token in token_ids:
                decoded += self._stream.step(self._backend, token) or ""
                ends.append(min(max(len(decoded) - lag, 0), len(text)))
        except Exception:  # of bytes that are no UTF-8, which the library has no class of its own for
            self._backend = None
            return None
        ends[-1] = len(text)
        if not decoded.startswith(text):
            self._held_back = ""
            return None
        self._held_back = decoded[len(text) :]
        return [text[start:end] for start, end in itertools.pairwise(ends)]


def merge(messages: Iterable[Any]) -> Any:
    """Return what was parsed of a piece's tokens as one message of the stream; None if that is nothing."""
    parts: list[Any] = []
    for message in messages:
        if message is not None:
            first = min(_kinds(message), default=_NOTHING)
            if parts and first >= max(_kinds(parts[-1]), default=_REASONING):
                _append(parts[-1], message)
            else:
                parts.append(message)
    if len(parts) < 2:
        return parts[0] if parts else None
    whole = parts[0].model_copy(deep=True)
    for part in parts[1:]:
        _append(whole, part.model_copy(deep=True))
    object.__setattr__(whole, "__pydantic_private__", {_PARTS: parts})
    return whole


def split_in_order(original: Callable[[Any], list[Any]], message: Any) -> list[Any]:
    """Split a merged message in the order in which its parts were parsed.

    The Responses API sends each kind as an item of its own.  vLLM puts the content before the calls, and the stream
    ends with an error if the content follows the end of a call.
    """
    parts = (message.__pydantic_private__ or {}).get(_PARTS)
    if parts is None:
        return original(message)
    kept = {call.index for call in message.tool_calls}  # the first call alone if the request asks for no other
    for part in parts:
        part.tool_calls = [call for call in part.tool_calls if call.index in kept]
    return [each for part in parts for each in original(part)]


_REASONING, _CONTENT, _CALLS, _NOTHING = range(4)  # in the order in which vLLM splits a message


def _kinds(message: Any) -> list[int]:
    present = message.reasoning is not None, message.content is not None, bool(message.tool_calls)
    return [kind for kind in (_REASONING, _CONTENT, _CALLS) if present[kind]]


def _append(message: Any, following: Any) -> None:
    """Add the fields of the message that follows to a message."""
    for name in ("reasoning", "content"):
        addition = getattr(following, name)
        if addition is not None:  # assigned fields are sent, even if they are None
            setattr(message, name, (getattr(message, name) or "") + addition)
    for call in following.tool_calls:
        _add(message, call)


def _add(message: Any, call: Any) -> None:
    """Add a part of a call to a message; arguments alone join the part before them if it is of the same call."""
    last = message.tool_calls[-1] if message.tool_calls else None
    starts = call.id or call.function is None or call.function.name
    if last is None or last.function is None or last.index != call.index or starts:
        message.tool_calls = [*message.tool_calls, call]
    else:
        last.function.arguments = (last.function.arguments or "") + (call.function.arguments or "")
