"""Drafted ids as the target's: string-level exact match (SLEM; Timor et al., ICML 2025, arXiv 2502.05202)."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from specplug.text.translate.translator import Context
from specplug.text.translate.vocabulary import ESCAPED
from specplug.text.translate.words import WordEncoder


class TargetDraft(NamedTuple):
    """Draft tokens of the target.

    Attributes:
        ids: tokens whose bytes are exactly the drafted ones, up to the first that the target's tokens cannot spell; an
            incomplete last character is left out.
        num_stable: how many of the first ones no further text changes: those of complete words.  The others are of the
            last word, in which the target might choose longer tokens.
    """

    ids: list[int]
    num_stable: int


def target_draft(context: Context, drafted: Iterable[int]) -> TargetDraft:
    """Return the target's tokens for ids that the draft model has drafted after its context.

    They continue the target's own last word as its tokenizer would, if it would write this word's tokens so far as they
    are; otherwise the drafted text is encoded alone.  The draft ends at the first special token, which is its last
    token if the target has one that corresponds, or at padding.  It is empty if it contradicts the bytes of a character
    that the target has begun.
    """
    data, special = _drafted_bytes(context, drafted)
    held_back = context.held_back
    if not data.startswith(held_back):
        return TargetDraft([], 0)
    decoder = codecs.getincrementaldecoder("utf-8")(ESCAPED)
    text = decoder.decode(data, final=special is not None)
    ids, num_stable = _continued(context, text.encode(errors=ESCAPED)[len(held_back) :])
    if special is None:
        return TargetDraft(ids, num_stable)
    ends = context.translator.controls.to_target.get(special)
    ids += [] if ends is None else [ends]
    return TargetDraft(ids, len(ids))


def _drafted_bytes(context: Context, drafted: Iterable[int]) -> tuple[bytes, int | None]:
    """Return the bytes before the first id that has none, and that id."""
    pieces, data, special = context.translator.draft.pieces, bytearray(), None
    for token in map(int, drafted):
        piece = pieces[token] if 0 <= token < len(pieces) else b""
        if not piece:
            special = token
            break
        data += piece
    return bytes(data.removeprefix(b" ") if context.adds_space else data), special


def _continued(context: Context, data: bytes) -> tuple[list[int], int]:
    """Return the tokens of bytes after the target's own, and how many of them are of complete words."""
    if not data:
        return [], 0
    encoder, own = context.translator.target_words, _last_word(context)
    before = b" " if context.takes_space else context.translator.target.bytes_of(own)
    ids, num_stable = _written(encoder, before + data)
    if ids[: len(own)] != own:
        own = []
        ids, num_stable = _written(encoder, data)
    return ids[len(own) :], max(0, num_stable - len(own))


def _written(encoder: WordEncoder, data: bytes) -> tuple[list[int], int]:
    """Return the tokens that spell bytes, up to the first that cannot be spelled, and how many of complete words."""
    words, pieces = encoder.words(data.decode(errors=ESCAPED)), encoder.vocabulary.pieces
    ids = [token for word in words for token in encoder.word(word)]
    num_stable = len(ids) - len(encoder.word(words[-1]))
    ends = accumulate((len(pieces[token]) for token in ids), initial=0)
    for at, (token, start) in enumerate(zip(ids, ends, strict=False)):
        if not pieces[token] or not data.startswith(pieces[token], start):
            return ids[:at], min(at, num_stable)
    return ids, num_stable


def _last_word(context: Context) -> list[int]:
    """Return the target's tokens of its last word, or all of the tail if the word began before it."""
    tail = list(context.tail)
    pieces = [context.translator.target.piece(token) for token in tail]
    starts = dict(zip(accumulate(map(len, pieces), initial=0), range(len(tail)), strict=False))
    text = codecs.getincrementaldecoder("utf-8")(ESCAPED).decode(b"".join(pieces))
    at = len(text.encode(errors=ESCAPED))
    for word in reversed(context.translator.target_words.words(text)):
        at -= len(word.encode(errors=ESCAPED))
        if at in starts:
            return tail[starts[at] :]
    return tail
