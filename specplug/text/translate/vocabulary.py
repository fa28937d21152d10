"""A tokenizer's vocabulary: the bytes of each token, and the encoding of text without anything around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from specplug.errors import SettingsError

ESCAPED = "surrogateescape"
"""The codec's error handler: text carries each byte that is no UTF-8 as a character of U+DC80 to U+DCFF."""

_ESCAPE = re.compile("[\udc80-\udcff]")
_ESCAPES = re.compile(f"({_ESCAPE.pattern})")

REMEDY = "Choose a draft model with the target's own tokenizer, which needs no translation"

_PLAIN = (
    *("the cat", "le chat", "der Hund", "кот и пёс", "το σπίτι", "القط", "חתול", "बिल्ली", "แมว"),
    *("天地", "ねこ", "고양이"),
)
"""Texts of which a usable vocabulary spells one at least, those of scripts that have spaces with one."""

_PROBES = (
    "Straße, ABC",
    "a  b",
    " a ",
    "one\n\n\ttwo",
    "ﬁ Å ½ \uff21\uff22",
    "e\u0301 \u200b\u00a0x",
    "天地 नमस्ते 👍🏽",
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary, from `specplug.text.translate.libraries.read_vocabulary`.

    Attributes:
        name: the tokenizer's name, for messages.
        pieces: id -> its bytes; empty for control tokens and for ids that no token has.
        controls: id -> the literal text of a special or added token, which stands for no text of its own.
        byte_ids: byte -> the id that stands for this byte alone; -1 where there is none.
        encode: text -> ids, without special tokens, without a prefixed space, and never as control tokens.
        prefix: the ids that the tokenizer puts before a text, such as BOS.
        merges_across_words: False if the tokenizer splits text into words by a regular expression before merging.
        eos_id: the token that ends an output; None if the tokenizer does not name it.
        unk_id: the token for text that has none.
        alters_text: whether the tokenizer normalises text: it lower-cases it, say, or joins spaces.
        merges: token -> its rank among the merges of byte pair encoding, lowest first, and the bytes of its left part,
            0 if any two tokens that are its bytes merge.  Empty for tokenizers that merge no pairs.
    """

    name: str
    pieces: tuple[bytes, ...]
    controls: Mapping[int, str]
    byte_ids: tuple[int, ...]
    encode: Callable[[str], list[int]]
    prefix: tuple[int, ...] = ()
    merges_across_words: bool = False
    eos_id: int | None = None
    unk_id: int | None = None
    alters_text: bool = False
    merges: Mapping[int, tuple[int, int]] = field(default_factory=dict, repr=False)

    def spells(self, tokens: Iterable[int], text: str) -> bool:
        """Return whether tokens are ordinary ones whose bytes are exactly the text's."""
        return b"".join([self.pieces[token] for token in tokens]) == text.encode(errors=ESCAPED)

    def spelled(self, text: str) -> list[int] | None:
        """Return a text's bytes as one token each; None if one of them has none."""
        found = [self.byte_ids[byte] for byte in text.encode(errors=ESCAPED)]
        return None if -1 in found else found


def byte_ids(pieces: Iterable[tuple[int, bytes]]) -> tuple[int, ...]:
    """Return the id of each byte, -1 where there is none.  The last id of one byte is used."""
    found = {piece[0]: token for token, piece in pieces if len(piece) == 1}
    return tuple(found.get(byte, -1) for byte in range(256))


def checked(vocabulary: Vocabulary) -> Vocabulary:
    """Return the vocabulary with what its tokenizer does to texts.

    Raises:
        SettingsError: its tokens do not spell even plain words with a space between them, as those of WordPiece do not.
    """
    if not any(vocabulary.spells(vocabulary.encode(text), text) for text in _PLAIN):
        raise SettingsError.build(
            "cannot translate token ids of this tokenizer, whose tokens spell no text",
            who=vocabulary.name,
            found=f"{_read(vocabulary, _PLAIN[0]).decode(errors='replace')!r} for {_PLAIN[0]!r}",
            expected="tokens whose bytes are the text's, spaces included",
            remedy=REMEDY,
        )
    return replace(vocabulary, alters_text=any(_alters(vocabulary, text) for text in _PROBES))


def _alters(vocabulary: Vocabulary, text: str) -> bool:
    """Return whether the tokenizer does more to a text than to leave out bytes for which it has no token."""
    alone = [_read(vocabulary, character) for character in text]
    is_other = any(
        bytes(filter(found.__contains__, own.encode())) != found for own, found in zip(text, alone, strict=True)
    )
    return is_other or _read(vocabulary, text) != b"".join(alone)


def _read(vocabulary: Vocabulary, text: str) -> bytes:
    """Return what a text is to the tokenizer, without what is unknown to it."""
    return b"".join(vocabulary.pieces[token] for token in vocabulary.encode(text))


def tokens_of(vocabulary: Vocabulary, text: str) -> tuple[int, ...]:
    """Return the tokens of a text.

    Their bytes are exactly the text's if the vocabulary can spell it: characters that the tokenizer would lose, such as
    SentencePiece's sign for a space and bytes that are no UTF-8, are spelled in bytes.  Otherwise they are what the
    tokenizer makes of it: normalised text, the unknown token, or nothing.
    """
    found = _spelled(vocabulary, text)
    return _written(vocabulary, text) if found is None else found


def _spelled(vocabulary: Vocabulary, text: str) -> tuple[int, ...] | None:
    if not _ESCAPE.search(text):
        found = vocabulary.encode(text)
        if vocabulary.spells(found, text):
            return tuple(found)
        if vocabulary.alters_text:  # its model has read no text spelled in another way
            return None
    if len(text) == 1:
        alone = vocabulary.spelled(text)
        return None if alone is None else tuple(alone)
    half = len(text) // 2
    first = _spelled(vocabulary, text[:half])
    second = None if first is None else _spelled(vocabulary, text[half:])
    return None if first is None or second is None else first + second


def _written(vocabulary: Vocabulary, text: str) -> tuple[int, ...]:
    unknown = () if vocabulary.unk_id is None else (vocabulary.unk_id,)
    found: list[int] = []
    for part in filter(None, _ESCAPES.split(text)):
        found += (vocabulary.spelled(part) or unknown) if _ESCAPE.match(part) else vocabulary.encode(part)
    return tuple(found)
