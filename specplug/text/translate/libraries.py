"""Vocabularies of loaded tokenizers: Hugging Face's, SentencePiece's, Tekken's and tiktoken's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specplug.errors import SettingsError
from specplug.text.translate.vocabulary import Vocabulary, byte_ids, checked

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_IN_BARS = re.compile(r"<([|\uff5c]).*\1>")
_SPACE = "\u2581"  # SentencePiece's sign for a space


def read_vocabulary(tokenizer: Any, name: str = "") -> Vocabulary:
    """Return the vocabulary of a tokenizer.

    Args:
        tokenizer: a `specplug.text.tokenizers.Tokenizer`, one that `specplug.text.fingerprint.encoder` takes, or a
            `tiktoken.Encoding`.
        name: for messages; by default the tokenizer's own.

    Raises:
        SettingsError: the bytes of its tokens are not known, or they spell no text.
    """
    known = name or getattr(getattr(tokenizer, "fingerprint", None), "name", "") or type(tokenizer).__name__
    eos_id = getattr(tokenizer, "eos_id", getattr(tokenizer, "eos_token_id", None))
    for library in _inside(tokenizer):
        for marker, read in _READERS.items():
            if hasattr(library, marker):
                return checked(read(known, library, eos_id if isinstance(eos_id, int) else None))
    raise SettingsError.build(
        "cannot translate token ids of this tokenizer",
        who=known,
        found=type(getattr(tokenizer, "library", tokenizer)).__name__,
        expected="one of the libraries tokenizers, mistral_common or tiktoken",
    )


def byte_alphabet() -> dict[str, int]:
    """Return the characters that byte-level BPE writes for bytes: printable ones for themselves, others from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + i): byte for i, byte in enumerate(others)}}


def _inside(tokenizer: Any) -> Iterator[Any]:
    """Yield a tokenizer and those that it wraps."""
    yield tokenizer
    chat = getattr(tokenizer, "instruct_tokenizer", None)
    if chat is not None:
        yield chat.tokenizer
    for attribute in ("library", "backend_tokenizer", "tokenizer", "model"):
        inner = getattr(tokenizer, attribute, None)
        if inner is not None and inner is not tokenizer:
            yield from _inside(inner)


def _mistral_tekken(name: str, library: Any, eos_id: int | None) -> Vocabulary:
    size = library.n_words
    specials = set(library.special_ids)
    controls = {token: str(library.id_to_piece(token)) for token in sorted(specials)}
    pieces = tuple(b"" if token in specials else bytes(library.id_to_byte_piece(token)) for token in range(size))
    return Vocabulary(
        name, pieces, controls, byte_ids(enumerate(pieces)),
        lambda text: list(library.encode(text, bos=False, eos=False)),
        prefix=(library.bos_id,), eos_id=library.eos_id, unk_id=library.unk_id, merges=_merges_by_id(pieces),
    )  # fmt: skip


def _merges_by_id(pieces: Sequence[bytes]) -> dict[int, tuple[int, int]]:
    """Return the merges of a vocabulary in the order of which it merges any two tokens whose bytes are a token."""
    return {token: (token, 0) for token, piece in enumerate(pieces) if len(piece) > 1}


def _mistral_sentencepiece(name: str, library: Any, eos_id: int | None) -> Vocabulary:
    texts = [library.id_to_piece(token) for token in range(library.n_words)]
    specials = {*library.special_ids, library.unk_id}
    controls = {token: texts[token] for token in sorted(specials)}
    pieces = tuple(b"" if token in specials else _sentencepiece_bytes(text) for token, text in enumerate(texts))
    spelled = ((token, piece) for token, piece in enumerate(pieces) if _BYTE.fullmatch(texts[token]))

    def encode(text: str) -> list[int]:
        return list(library.encode(text, bos=False, eos=False))

    has_prefix = bool(encode("a")) and texts[encode("a")[0]].startswith(_SPACE)
    return Vocabulary(
        name, pieces, controls, byte_ids(spelled), _after_guard(encode, "".join(texts)) if has_prefix else encode,
        prefix=(library.bos_id,), merges_across_words=True,
        eos_id=library.eos_id, unk_id=library.unk_id, merges=_merges_by_id(pieces),
    )  # fmt: skip


def _after_guard(encode: Callable[[str], list[int]], characters: str) -> Callable[[str], list[int]]:
    """Return the encoding of text as it is after other text, from one that puts a space before it.

    The text is encoded after a character of no piece, which is encoded as its bytes and never merged with others.
    """
    guard = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in characters)
    guarded = len(encode(guard))
    return lambda text: encode(guard + text)[guarded:] if text else []


def _sentencepiece_bytes(text: str) -> bytes:
    byte = _BYTE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(_SPACE, " ").encode()


def _tiktoken(name: str, library: Any, eos_id: int | None) -> Vocabulary:
    controls = {library.encode_single_token(text): text for text in library.special_tokens_set}
    ends = next((token for token, text in controls.items() if text == "<|endoftext|>"), None)
    pieces = [b""] * library.n_vocab
    for piece in library.token_byte_values():
        pieces[library.encode_single_token(piece)] = piece
    return Vocabulary(
        name, tuple(pieces), controls, byte_ids(enumerate(pieces)), library.encode_ordinary,
        eos_id=ends if eos_id is None else eos_id, merges=_merges_by_id(pieces),
    )  # fmt: skip


@dataclass(slots=True)
class _Description:
    """A `tokenizer.json` whose parts that act around text are removed.

    Added tokens that stand for no text are removed, too: `controls`, id -> text.  If `byte_level`, the vocabulary is
    written in the byte alphabet.
    """

    content: dict[str, Any]
    eos_id: int | None = None
    byte_level: bool = False
    controls: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        content = self.content
        added = content["added_tokens"]
        self.controls = {
            each["id"]: each["content"] for each in added if each["id"] == self.eos_id or _is_control(each)
        }
        content["added_tokens"] = [each for each in added if each["id"] not in self.controls]
        content.update(post_processor=None, truncation=None, padding=None)
        content["normalizer"] = self._without(content["normalizer"], "normalizers")
        content["pre_tokenizer"] = self._without(content["pre_tokenizer"], "pretokenizers")

    def _without(self, part: dict[str, Any] | None, inner: str) -> dict[str, Any] | None:
        """Return a normalizer or pre-tokenizer that does nothing to a text's ends, nor composes characters (NFC)."""
        kind = part["type"] if part else None
        if part is None or kind in ("NFC", "Strip", "Prepend"):
            return None
        if kind == "Sequence":
            kept = [each for each in (self._without(one, inner) for one in part[inner]) if each]
            return {**part, inner: kept} if kept else None
        if kind == "Metaspace" and part["prepend_scheme"] != "never":
            return {**part, "prepend_scheme": "never"}
        if kind == "ByteLevel":
            self.byte_level = True
            return {**part, "add_prefix_space": False} if inner == "pretokenizers" else part
        return part


def _is_control(added: Mapping[str, Any]) -> bool:
    """Return whether an added token stands for no text.

    Text never becomes such a token.  Others are found in text, as Gemma's `<h1>` and runs of spaces are.  Names in bars
    mark roles even where a tokenizer does not call them special.
    """
    text = added["content"]
    return not text.isspace() and (added["special"] or bool(_IN_BARS.fullmatch(text)))


def _hugging_face(name: str, library: Any, eos_id: int | None) -> Vocabulary:
    found = _Description(json.loads(library.to_str()), eos_id)
    model = found.content["model"]
    ids = _vocabulary_ids(model)
    unk_id = _unknown(model)
    bytes_of = _bytes_of(found)
    added = {each["id"]: each["content"] for each in found.content["added_tokens"]}
    controls = found.controls
    if unk_id is not None:
        controls.setdefault(unk_id, next(text for text, token in ids.items() if token == unk_id))
    pieces = [b""] * (1 + max([*ids.values(), *controls, *added]))
    for text, token in ids.items():
        pieces[token] = b"" if token in controls else bytes_of(text)
    for token, text in added.items():
        pieces[token] = text.encode() if found.byte_level else _sentencepiece_bytes(text)
    spelled = (
        (token, pieces[token]) for text, token in ids.items()
        if token not in controls and (found.byte_level or _BYTE.fullmatch(text))
    )  # fmt: skip
    whole = library.encode("a").ids
    return Vocabulary(
        name, tuple(pieces), dict(sorted(controls.items())), byte_ids(spelled), _bare(library, found),
        prefix=tuple(whole[: next((at for at, token in enumerate(whole) if token not in controls), 0)]),
        merges_across_words=not found.byte_level, eos_id=eos_id, unk_id=unk_id,
        merges=_merges(model, ids, bytes_of, added),
    )  # fmt: skip


def _merges(
    model: Mapping[str, Any], ids: Mapping[str, int], bytes_of: Callable[[str], bytes], added: Mapping[int, str]
) -> dict[int, tuple[int, int]]:
    """Return the merges of a BPE model; added tokens are found before any of them."""
    pairs = model.get("merges") or ()
    prefix = model.get("continuing_subword_prefix") or ""
    found = dict.fromkeys(added, (-1, 0)) if pairs else {}
    for rank, pair in enumerate(pairs):
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        token = ids.get(left + right.removeprefix(prefix))
        if token in found:  # of one that was converted from SentencePiece's vocabulary, all pairs of tokens are listed
            found[token] = (found[token][0], 0)
        elif token is not None:
            found[token] = (rank, len(bytes_of(left)))
    return found


def _bytes_of(found: _Description) -> Callable[[str], bytes]:
    """Return what the texts of a vocabulary's entries stand for."""
    alphabet = byte_alphabet() if found.byte_level else {}
    prefix = found.content["model"].get("continuing_subword_prefix") or ""

    def bytes_of(text: str) -> bytes:
        if found.byte_level and all(character in alphabet for character in text):
            return bytes(alphabet[each] for each in text)
        return _sentencepiece_bytes(text.removeprefix(prefix))

    return bytes_of


def _unknown(model: Mapping[str, Any]) -> int | None:
    """Return the model's unknown token, which Unigram names by id and the others by text."""
    found = model.get("unk_id")
    return _vocabulary_ids(model).get(model.get("unk_token") or "") if found is None else int(found)


def _vocabulary_ids(model: Mapping[str, Any]) -> dict[str, int]:
    """Return text -> id; Unigram's vocabulary is a list of texts with their scores."""
    found = model["vocab"]
    return dict(found) if isinstance(found, dict) else {text: token for token, (text, _) in enumerate(found)}


def _bare(library: Any, found: _Description) -> Callable[[str], list[int]]:
    """Return the encoding of the changed description, whose added tokens may have got other ids."""
    bare = type(library).from_str(json.dumps(found.content))
    kept = {each["content"]: each["id"] for each in found.content["added_tokens"]}
    moved = {bare.token_to_id(text): token for text, token in kept.items() if bare.token_to_id(text) != token}
    if not moved:
        return lambda text: list(bare.encode(text, add_special_tokens=False).ids)
    return lambda text: [moved.get(token, token) for token in bare.encode(text, add_special_tokens=False).ids]


_READERS: dict[str, Callable[[str, Any, int | None], Vocabulary]] = {
    "get_added_tokens_decoder": _hugging_face,
    "encode_ordinary": _tiktoken,
    "id_to_byte_piece": _mistral_tekken,
    "get_control_token": _mistral_sentencepiece,
}
"""A method or attribute of each library's tokenizers, and the function that reads them."""
