"""Translation token by token, by tables, for devices on which no tokenizer runs.

The bytes stay the same where the draft's tokens can spell them, but a word that the two vocabularies cut differently
gets other tokens than its own tokenizer would give it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.text.translate.vocabulary import ESCAPED, Vocabulary, tokens_of

_ROLES = {
    "begin": ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"),
    "end": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    "turn": ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|start|>"),
    "end_of_turn": ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|eot|>", "<|return|>"),
    "infill_prefix": ("<|fim_prefix|>", "<fim_prefix>", "[PREFIX]", "<\uff5cfim\u2581begin\uff5c>"),
    "infill_middle": ("<|fim_middle|>", "<fim_middle>", "[MIDDLE]", "<\uff5cfim\u2581end\uff5c>"),
    "infill_suffix": ("<|fim_suffix|>", "<fim_suffix>", "[SUFFIX]", "<\uff5cfim\u2581hole\uff5c>"),
    "padding": ("<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "[PAD]"),
}
"""Roles, and the names that published models give their tokens."""

_ENDS = (*_ROLES["end"], *_ROLES["end_of_turn"])


@dataclass(frozen=True, slots=True)
class Controls:
    """The control tokens that correspond.  Unknown tokens do to nothing.

    `to_draft` maps the target's ids to the draft's, `to_target` the reverse.
    """

    to_draft: dict[int, int]
    to_target: dict[int, int]


def match_controls(target: Vocabulary, draft: Vocabulary) -> Controls:
    """Match tokens of the same literal text, then those of the same role.

    The remaining tokens that end a text or a turn all correspond to the one that ends the other model's outputs: models
    differ in which of them they use.
    """
    own = _texts(target)
    other = _texts(draft)
    pairs = [(own[text], other[text]) for text in own.keys() & other.keys()]
    matched = {token for token, _ in pairs}, {token for _, token in pairs}
    for names in _ROLES.values():
        first = next((own[name] for name in names if name in own and own[name] not in matched[0]), None)
        second = next((other[name] for name in names if name in other and other[name] not in matched[1]), None)
        if first is not None and second is not None:
            pairs.append((first, second))
    to_draft = dict(pairs)
    to_target = {second: first for first, second in pairs}
    _add_ends(to_draft, own, target.eos_id, draft.eos_id)
    _add_ends(to_target, other, draft.eos_id, target.eos_id)
    return Controls(to_draft, to_target)


def _texts(vocabulary: Vocabulary) -> dict[str, int]:
    return {text: token for token, text in vocabulary.controls.items() if token != vocabulary.unk_id}


def _add_ends(table: dict[int, int], texts: dict[str, int], eos_id: int | None, other: int | None) -> None:
    if other is not None:
        for token in (eos_id, *(texts[name] for name in _ENDS if name in texts)):
            if token is not None:
                table.setdefault(token, other)


@dataclass(frozen=True, slots=True)
class Intersection:
    """Tokens of two vocabularies with the same bytes, or special ones that correspond, one to one.

    Token-level intersection (TLI; Timor et al., ICML 2025, arXiv 2502.05202) drafts from these alone.

    Of several tokens with the same bytes, such as SentencePiece's "a" and its byte 0x61, the one that a text is encoded
    to is used.  The first word of a text differs for tokenizers that put a space before it: there " The" of one stands
    for "The" of the other, which these tables do not say.

    Attributes:
        to_draft: [target_vocab] int32, the draft's id of each of the target's; -1 where there is none.
        to_target: [draft_vocab] int32, the reverse.
        of_target: percentage of the target's tokens that the draft has too; those with the same bytes count once.
        of_draft: percentage of the draft's tokens that the target has too.
    """

    to_draft: npt.NDArray[np.int32]
    to_target: npt.NDArray[np.int32]
    of_target: float
    of_draft: float


def intersect(target: Vocabulary, draft: Vocabulary, target_vocab: int = 0, draft_vocab: int = 0) -> Intersection:
    """Return the intersection of two vocabularies.

    The models' logits have the lengths `target_vocab` and `draft_vocab`, if they are longer than the vocabularies.
    """
    to_draft = np.full(max(target_vocab, len(target.pieces)), -1, np.int32)
    to_target = np.full(max(draft_vocab, len(draft.pieces)), -1, np.int32)
    own = ids_by_piece(target)
    other = ids_by_piece(draft)
    controls = match_controls(target, draft)
    pairs = [(own[piece], other[piece]) for piece in own.keys() & other.keys()]
    pairs += [(token, to) for token, to in controls.to_draft.items() if controls.to_target.get(to) == token]
    for token, to in pairs:
        to_draft[token] = to
        to_target[to] = token
    return Intersection(
        to_draft,
        to_target,
        *(100 * len(pairs) / (len(ids) + len(v.controls)) for ids, v in ((own, target), (other, draft))),
    )


def ids_by_piece(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Return bytes -> id; ids for bytes alone are used only if no other token has the same ones."""
    alone = set(vocabulary.byte_ids)
    ordinary = [(piece, token) for token, piece in enumerate(vocabulary.pieces) if piece]
    return dict(sorted(ordinary, key=lambda pair: (pair[1] not in alone, -pair[1])))


Integers = npt.NDArray[np.int64]

LONGEST_PIECE = 32
"""The maximum number of bytes of a token that `PieceHashes` knows."""

_AFTER_SIGNS = re.compile(r"(?<=[ !-/:-@\[-`{-~][!-/:-@\[-`{-~])(?=[A-Za-z])")

NEVER = 1 << 62
"""The rank of tokens that no merge makes."""

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_MODULUS = 1 << 64


class TokenLists(NamedTuple):
    """A list of numbers for each of V ids.

    Attributes:
        starts: [V] int64, where each list begins in `values`.
        counts: [V] int64, its length; -1 for ids that no token has.
        values: [n] int64, all lists, one after the other; never empty.
    """

    starts: Integers
    counts: Integers
    values: Integers

    @classmethod
    def of(cls, lists: Iterable[Sequence[int] | None]) -> TokenLists:
        """Join lists; None is for ids that no token has."""
        known = [([] if it is None else it, -1 if it is None else len(it)) for it in lists]
        counts = np.array([count for _, count in known], np.int64)
        starts = np.concatenate([[0], counts.clip(0).cumsum()])[:-1].astype(np.int64)
        values = np.array([number for numbers, _ in known for number in numbers] or [0], np.int64)
        return cls(starts, counts, values)

    @classmethod
    def identity(cls, num_known: int, size: int) -> TokenLists:
        """Return the lists of two models with one tokenizer of `num_known` ids."""
        ids = np.arange(size, dtype=np.int64)
        return cls(ids, np.where(ids < num_known, 1, -1).astype(np.int64), ids)

    @property
    def mean_length(self) -> float:
        """About the average length of the lists in a text, 1 at least.

        Texts have more of the ids with short lists.  For ten pairs of tokenizers, texts had 0.98 to 0.72 times the
        square root of the average over all ids.
        """
        return float(np.sqrt(self.counts[self.counts > 0].mean())) if (self.counts > 0).any() else 1.0


def expansions(target: Vocabulary, draft: Vocabulary, to_draft: npt.NDArray[np.int32]) -> TokenLists:
    """Return the draft's ids for each of the target's.

    Args:
        target, draft: the vocabularies.
        to_draft: [V], see `Intersection`; tokens that it has become one id.  A special token that it lacks becomes the
            one of its role, or its literal text.
    """
    controls = match_controls(target, draft).to_draft

    def of(token: int, known: int) -> Sequence[int] | None:
        if known >= 0:
            return [known]
        if token in target.controls:
            return [controls[token]] if token in controls else tokens_of(draft, target.controls[token])
        piece = target.pieces[token] if token < len(target.pieces) else b""
        return tokens_of(draft, piece.decode(errors=ESCAPED)) if piece else None

    return TokenLists.of(of(token, known) for token, known in enumerate(to_draft.tolist()))


def piece_bytes(vocabulary: Vocabulary, size: int) -> TokenLists:
    """Return the bytes of each of `size` ids; of special tokens and padding none."""
    pieces = [list(piece) for piece in vocabulary.pieces[:size]]
    return TokenLists.of([*pieces, *[[]] * (size - len(pieces))])


class PieceHashes(NamedTuple):
    """The tokens of a vocabulary by a hash of their bytes, for searches of many substrings at once.

    The hash of the bytes b is the sum of (b[k] + 1) * base^k, modulo 2^64.

    Attributes:
        keys: [n] int64, ascending.
        ids: [n] int64, the token of each key.
        powers, inverses: [M] int64, base^k, and its inverse, for texts of at most M bytes.
    """

    keys: Integers
    ids: Integers
    powers: Integers
    inverses: Integers

    @classmethod
    def of(cls, vocabulary: Vocabulary, num_bytes: int, size: int) -> PieceHashes:
        """Hash the tokens of at most `LONGEST_PIECE` bytes and of ids below `size`, for texts of M = `num_bytes`."""
        powers = _powers(_BASE, max(num_bytes, LONGEST_PIECE))
        by_length: defaultdict[int, list[tuple[bytes, int]]] = defaultdict(list)
        for piece, token in ids_by_piece(vocabulary).items():
            if len(piece) <= LONGEST_PIECE and token < size:
                by_length[len(piece)].append((piece, token))
        keys = []
        ids = []
        for length, found in by_length.items():
            data = np.frombuffer(b"".join(piece for piece, _ in found), np.uint8).reshape(-1, length)
            keys.append(((data.astype(np.uint64) + 1) * powers[:length]).sum(1, dtype=np.uint64).view(np.int64))
            ids.append(np.array([token for _, token in found], np.int64))
        joined = np.concatenate(keys)
        order = np.argsort(np.concatenate(keys), kind="stable")
        inverses = _powers(pow(_BASE, -1, _MODULUS), num_bytes)
        return cls(joined[order], np.concatenate(ids)[order], *(it.view(np.int64) for it in (powers, inverses)))


class Splits(NamedTuple):
    """Where a tokenizer splits text before it merges, as far as the regular expressions of GPT-2 and its successors do.

    Attributes:
        spaces: the bytes of white space of which the last of several belongs to the word after them.
        by_three: whether numbers are split from the left into groups of three digits.
        after_signs: whether letters begin a word after several signs, or a space and one.
    """

    spaces: tuple[int, ...]
    by_three: bool
    after_signs: bool

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Splits:
        """Try the rules on a few texts."""

        def ends(text: str) -> set[int]:
            """Return the places at which tokens of ASCII text end."""
            return set(accumulate(len(vocabulary.pieces[token]) for token in vocabulary.encode(text)))

        of_space = all(len(text) - 2 in ends(text) for text in ("a    b", "a\n    b", "a\n\n  ("))
        others = (byte for byte in b"\t\n\v\f\r" if of_space and 4 in ends(f"a{chr(byte) * 4}b"))
        numbers = ("2718281828459", "1000000000000", "1234567890123")
        by_three = all(ends(number) >= {3, 6, 9, 12} for number in numbers)
        texts = ("x = 's'", "f(*args, **kw)", "['Abc', \"the\"]", "self._name.__init__", "('s')", "a ->b")
        letters = [(text, match.start()) for text in texts for match in _AFTER_SIGNS.finditer(text)]
        after_signs = all(place in ends(text) for text, place in letters)
        return cls((32, *others) if of_space else (), by_three, after_signs)


class Merges(NamedTuple):
    """The merges of byte pair encoding, by the index of each token's key in `PieceHashes`.

    Attributes:
        ranks: [n] int64, `NEVER` for tokens that no merge makes.
        lefts: [n] int64, the bytes of the left part, 0 for any.
    """

    ranks: Integers
    lefts: Integers

    @classmethod
    def of(cls, vocabulary: Vocabulary, ids: Integers) -> Merges:
        """Return the merges that make tokens `ids` [n]."""
        found = [vocabulary.merges.get(token, (NEVER, 0)) for token in ids.tolist()]
        ranks, lefts = np.array(found, np.int64).reshape(-1, 2).T.copy()
        return cls(ranks, lefts)


def _powers(base: int, count: int) -> npt.NDArray[Any]:
    return np.array([pow(base, exponent, _MODULUS) for exponent in range(count)], np.uint64)
