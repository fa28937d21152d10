"""The text of each token of an output, such that together they are the text that an engine sends to clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_UNFINISHED = "\ufffd"  # a tokenizer's output for bytes that do not form a whole character yet

Decode = Callable[[Sequence[int]], str]


def decoder(tokenizer: Any) -> Decode:
    """Return a tokenizer's decoding without special tokens, as engines decode; without a tokenizer ids are numbers.

    It is of Hugging Face's kind, or has `decode` alone.
    """
    if tokenizer is None:
        return lambda ids: "".join(f" {token}" for token in ids)
    library = getattr(tokenizer, "backend_tokenizer", tokenizer)

    def decode(ids: Sequence[int]) -> str:
        try:
            return str(library.decode(list(ids), skip_special_tokens=True))
        except TypeError:
            return str(library.decode(list(ids)))

    return decode


def token_texts(decode: Decode, ids: Sequence[int]) -> list[str]:
    """Return the text of each token: of a character that several spell, all of it with the last of them.

    The first token is decoded after another one like it, because tokenizers treat the first one of a text differently
    and outputs follow a prompt.
    """
    whole = [*ids[:1], *ids]
    texts = [""] * len(ids)
    start = 0
    read = 1
    before = decode(whole[:1])
    for end in range(2, len(whole) + 1):
        now = decode(whole[start:end])
        if len(now) > len(before) and not (now.endswith(_UNFINISHED) and end < len(whole)):
            texts[end - 2] = now[len(before) :]
            start = read
            read = end
            before = decode(whole[start:read])
    return texts
