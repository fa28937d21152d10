"""A tokenizer's vocabulary: the bytes of each token, and the encoding of text without anything around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from specplug.errors import ContractError, SettingsError

ESCAPED = "surrogateescape"
"""The codec's error handler: text carries each byte that is no UTF-8 as a character of U+DC80 to U+DCFF."""

SpacePrefix = Literal["never", "first", "every"]

REMEDY = "Choose a draft model with the target's own tokenizer, which needs no translation"

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
        byte_ids: byte -> the id that stands for this byte alone.
        encode: text -> ids, without special tokens, without a prefixed space, and never as control tokens.
        prefix: the ids that the tokenizer puts before a text, such as BOS.
        space_prefix: where the tokenizer puts a space before text, which decoding removes: "first", before the whole
            text; "every", also before the text after each control token (SentencePiece's `add_dummy_prefix`).
        merges_across_words: False if the tokenizer splits text into words by a regular expression before merging.
        eos_id: the token that ends an output; None if the tokenizer does not name it.
        unk_id: the token for text that has none; never written.
    """

    name: str
    pieces: tuple[bytes, ...]
    controls: Mapping[int, str]
    byte_ids: tuple[int, ...]
    encode: Callable[[str], list[int]]
    prefix: tuple[int, ...] = ()
    space_prefix: SpacePrefix = "never"
    merges_across_words: bool = False
    eos_id: int | None = None
    unk_id: int | None = None

    def piece(self, token: int) -> bytes:
        """Return an ordinary token's bytes.

        Raises:
            ContractError: no token has this id.
        """
        found = self.pieces[token] if 0 <= token < len(self.pieces) else b""
        if not found:
            raise ContractError.build(
                "no token has this id", who=self.name, found=int(token), expected=f"an id of {len(self.pieces)}"
            )
        return found

    def bytes_of(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of ordinary tokens."""
        return b"".join(map(self.piece, tokens))

    def spelled(self, text: str) -> list[int]:
        """Return a text's bytes as one token each."""
        return [self.byte_ids[byte] for byte in text.encode(errors=ESCAPED)]


def byte_ids(name: str, pieces: Iterable[tuple[int, bytes]]) -> tuple[int, ...]:
    """Return the id of each byte.

    Args:
        pieces: ids with their bytes; the last id of one byte is used.

    Raises:
        SettingsError: a byte has none, so some texts could be encoded as an unknown token only.
    """
    found = {piece[0]: token for token, piece in pieces if len(piece) == 1}
    missing = [f"{byte:#04x}" for byte in range(256) if byte not in found]
    if missing:
        raise SettingsError.build(
            "cannot translate token ids of this tokenizer",
            who=name,
            found=f"no token for {len(missing)} of 256 bytes: {', '.join(missing[:4])}",
            expected="a byte-level vocabulary, or SentencePiece's with byte fallback",
            remedy=REMEDY,
        )
    return tuple(found[byte] for byte in range(256))


def checked(vocabulary: Vocabulary) -> Vocabulary:
    """Return the vocabulary if its tokenizer preserves text.

    Raises:
        SettingsError: encoding alters a text, for example by lower-casing, NFKC or joining spaces.
    """
    for probe in _PROBES:
        ids = vocabulary.encode(probe)
        found = b"".join(vocabulary.pieces[token] or vocabulary.controls[token].encode() for token in ids)
        if found != probe.encode():
            raise SettingsError.build(
                "cannot translate token ids of this tokenizer, which alters text",
                who=vocabulary.name,
                found=f"{found.decode(errors='replace')!r} for {probe!r}",
                expected="tokens whose bytes are the text's",
                remedy=REMEDY,
            )
    return vocabulary
