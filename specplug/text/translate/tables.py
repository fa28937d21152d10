"""Translation token by token, by tables, for devices on which no tokenizer runs.

The bytes stay the same where the draft's tokens can spell them, but a word that the two vocabularies cut differently
gets other tokens than its own tokenizer would give it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.text.translate.intersection import ids_by_piece, match_controls
from specplug.text.translate.vocabulary import ESCAPED, Vocabulary, tokens_of

Integers = npt.NDArray[np.int64]

LONGEST_PIECE = 32
"""The most bytes of a token that `PieceHashes` knows."""

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

    def of_id(self, index: int) -> list[int]:
        """Return the list of an id that has one."""
        start = int(self.starts[index])
        found: list[int] = self.values[start : start + int(self.counts[index])].tolist()
        return found

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
        keys, ids = [], []
        for length, found in by_length.items():
            data = np.frombuffer(b"".join(piece for piece, _ in found), np.uint8).reshape(-1, length)
            keys.append(((data.astype(np.uint64) + 1) * powers[:length]).sum(1, dtype=np.uint64).view(np.int64))
            ids.append(np.array([token for _, token in found], np.int64))
        joined, order = np.concatenate(keys), np.argsort(np.concatenate(keys), kind="stable")
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
