"""A plain translation of whole contexts, which the incremental one is compared with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from specplug.text.translate.intersection import match_controls
from specplug.text.translate.vocabulary import ESCAPED, Vocabulary

_VALID = re.compile("[^\udc80-\udcff]+|[\udc80-\udcff]+")

Part = bytes | int
"""Text, or the id of a special token of the draft."""


def decoded(vocabulary: Vocabulary, ids: Iterable[int]) -> list[Part]:
    """Return the text and the special tokens of a context, without the space that the tokenizer puts before text."""
    parts: list[Part] = [b""]
    takes_space = vocabulary.space_prefix != "never"
    for token in ids:
        if token in vocabulary.controls:
            parts += [token, b""]
            takes_space = takes_space or vocabulary.space_prefix == "every"
        else:
            piece = vocabulary.piece(token)
            last = parts.pop()
            assert isinstance(last, bytes)
            parts.append(last + (piece.removeprefix(b" ") if takes_space else piece))
            takes_space = False
    return [part for part in parts if part != b""]


def draft_parts(target: Vocabulary, draft: Vocabulary, ids: Sequence[int]) -> list[Part]:
    """Return what the draft's context holds: the target's text, with special tokens as the draft's or as their text."""
    to_draft, found = match_controls(target, draft).to_draft, list[Part](draft.prefix)
    num_prefix = next((at for at, (one, two) in enumerate(zip(ids, target.prefix, strict=False)) if one != two), None)
    start = min(len(ids), len(target.prefix)) if num_prefix is None else num_prefix
    for part in decoded(target, ids[start:]):
        new = part if isinstance(part, bytes) else to_draft.get(part, target.controls[part].encode())
        if isinstance(new, bytes) and found and isinstance(last := found[-1], bytes):
            found[-1] = last + new
        else:
            found.append(new)
    return found


def draft_ids(target: Vocabulary, draft: Vocabulary, ids: Sequence[int]) -> list[int]:
    """Return the draft's context: each text encoded whole, bytes that are no UTF-8 as the tokens of bytes."""
    found: list[int] = []
    has_text = False
    for part in draft_parts(target, draft, ids):
        if isinstance(part, int):
            found.append(part)
            continue
        adds_space = draft.space_prefix == "every" or (draft.space_prefix == "first" and not has_text)
        found += _encoded(draft, (" " if adds_space else "") + part.decode(errors=ESCAPED))
        has_text = True
    return found


def _encoded(draft: Vocabulary, text: str) -> Iterator[int]:
    for run in _VALID.findall(text):
        yield from draft.encode(run) if run[0] < "\udc80" or run[0] > "\udcff" else _bytes(draft, run)


def _bytes(draft: Vocabulary, run: str) -> Iterator[int]:
    for byte in run.encode(errors=ESCAPED):
        if draft.byte_ids[byte] >= 0:
            yield draft.byte_ids[byte]
        elif draft.unk_id is not None:
            yield draft.unk_id
