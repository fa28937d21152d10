"""Segments: drafted ids as tokens of the target, as its tokenizer would write the drafted text.

String-level exact match (SLEM; Timor et al., ICML 2025, arXiv 2502.05202) for devices on which no tokenizer runs: the
merges of byte pair encoding, or for other tokenizers the longest token at each place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.draft_model.pairing import TokenizerPair
from specplug.text.translate.tables import (
    LONGEST_PIECE,
    NEVER,
    Merges,
    PieceHashes,
    Splits,
    match_controls,
    piece_bytes,
)
from specplug.text.translate.vocabulary import Vocabulary

FIXED = 256
"""Stands for a special token, or one that stands for a drafted id, in a text's bytes."""

_ROUNDS = 24  # of different merges of a word; what is left after them stays in shorter tokens


class PairMerger:
    """Byte pair encoding of many texts at once.

    In each round, every word merges its pairs of the lowest rank; no token reaches from one word to the next.  Each key
    of the vocabulary's `PieceHashes` has the token in `ids`.  If `is_exact`, it ends after the last merge, which is
    read back, otherwise after a fixed number of rounds.
    """

    def __init__(
        self, vocabulary: Vocabulary, ids: npt.NDArray[np.int64], device: torch.device, *, is_exact: bool
    ) -> None:
        self._is_exact = is_exact
        merges = Merges.of(vocabulary, ids)
        self._ranks, self._lefts = (torch.from_numpy(it).to(device) for it in merges)
        self._of_characters = vocabulary.merges_across_words  # they begin with characters, the others with bytes

    def sizes(self, text: Tensor, at: Tensor, fits: Tensor, is_cut: Tensor) -> Tensor:
        """Return the bytes of the token that begins at each place of a text [R, M], 0 within tokens.

        `at` [R, M, `LONGEST_PIECE`] is the key of the token of each size, where it `fits`; a token ends before each
        place in `is_cut` [R, M] bool.
        """
        num_rows, num_bytes = text.shape
        longest = torch.where(fits, torch.arange(1, LONGEST_PIECE + 1, device=text.device), 0).amax(2)
        ends = (torch.arange(num_bytes, device=text.device) + longest).cummax(1).values
        is_apart = is_cut.clone()
        is_apart[:, 1:] |= ends[:, :-1] <= torch.arange(1, num_bytes, device=text.device)
        words = is_apart.long().cumsum(1)
        ranks = torch.where(fits, self._ranks[at], NEVER)
        lefts = self._lefts[at]
        sizes = torch.nn.functional.pad(self._first(text, fits), (0, 1))
        places = torch.arange(num_bytes, device=text.device).expand(num_rows, num_bytes)
        for _ in range(num_bytes if self._is_exact else _ROUNDS):
            own = sizes[:, :-1]
            after = (places + own).clamp(max=num_bytes)
            both = own + sizes.gather(1, after)
            pair = (both - 1).clamp(0, LONGEST_PIECE - 1)[:, :, None]
            left = lefts.gather(2, pair)[:, :, 0]
            is_pair = (own > 0) & (both > own) & (both <= LONGEST_PIECE) & ((left == 0) | (left == own))
            rank = torch.where(is_pair, ranks.gather(2, pair)[:, :, 0], NEVER)
            lowest = torch.full_like(sizes, NEVER).scatter_reduce(1, words, rank, "amin").gather(1, words)
            is_lowest = (rank == lowest) & (rank < NEVER)
            if self._is_exact and not bool(is_lowest.any()):
                break
            merges = _every_other(is_lowest, own > 0, after)
            sizes = sizes.scatter(1, torch.where(merges, after, num_bytes), 0)
            sizes[:, :-1] = torch.where(merges, both, sizes[:, :-1])
        return sizes[:, :-1]

    def _first(self, text: Tensor, fits: Tensor) -> Tensor:
        """Return the sizes of the tokens before any merge."""
        ones = torch.ones_like(text)
        if not self._of_characters:
            return ones
        num_bytes = sum((text >= least).long() for least in (0xC0, 0xE0, 0xF0)) + ones
        num_bytes = torch.where(text < FIXED, num_bytes, 1)
        is_known = fits.gather(2, (num_bytes - 1)[:, :, None])[:, :, 0]
        sizes = torch.where(is_known, num_bytes, 1)
        ends = (sizes + torch.arange(text.shape[1], device=text.device)).cummax(1).values
        is_within = torch.arange(1, text.shape[1], device=text.device) < ends[:, :-1]
        sizes[:, 1:] = torch.where(is_within, 0, sizes[:, 1:])
        return sizes


def _every_other(is_pair: Tensor, is_token: Tensor, after: Tensor) -> Tensor:
    """Return which pairs merge, [R, M] bool: of pairs that overlap, in a row, the first, the third and so on.

    A pair's left part is a token in `is_pair`; tokens begin at the places in `is_token`, and the next one at `after`
    [R, M] int64.
    """
    padded = torch.nn.functional.pad(torch.zeros_like(is_pair), (0, 1))
    follows = padded.scatter(1, torch.where(is_pair, after, is_pair.shape[1]), True)[:, :-1]
    number = is_token.long().cumsum(1)
    first = torch.where(is_pair & ~follows, number, 0).cummax(1).values
    return is_pair & ((number - first) % 2 == 0)


def cuts(text: Tensor, splits: Splits, total: Tensor, begins: Tensor) -> Tensor:
    """Return [R, M] bool, the places of texts of `total` [R, 1] bytes at which they are split by these rules.

    A text of its own begins at each place in `begins` [R, M] bool.  No rule looks ahead at one: it may be a token that
    was drawn, on whose value those before it must not depend.
    """
    places = torch.arange(text.shape[1], device=text.device)
    is_cut = torch.zeros_like(text, dtype=torch.bool)
    before = text.roll(1, 1)
    after = text.roll(-1, 1)
    if splits.spaces:
        is_last = _is_space(text) & _is_space(before) & ~_is_space(after) & (places > 0) & (places + 1 < total)
        is_last &= ~begins.roll(-1, 1)
        for byte in splits.spaces:
            is_cut |= is_last & (text == byte)
    if splits.by_three:
        is_digit = (text >= 48) & (text <= 57)
        first = torch.maximum(torch.where(is_digit, -1, places + 1), torch.where(begins, places, -1)).cummax(1).values
        is_cut |= is_digit & ((places - first) % 3 == 0)
    if splits.after_signs:
        earlier = text.roll(2, 1)
        is_first = begins.roll(1, 1)
        after_two = _is_sign(before) & (_is_sign(earlier) | (earlier == 32)) & ~is_first
        is_cut |= _is_letter(text) & after_two & (places > 1)
    return is_cut


def _is_space(text: Tensor) -> Tensor:
    return (text == 32) | ((text >= 9) & (text <= 13))


def _is_letter(text: Tensor) -> Tensor:
    """All bytes of other scripts count as letters."""
    lower = text | 32
    return (lower >= 97) & (lower <= 122) | (text >= 128) & (text < FIXED)


def _is_sign(text: Tensor) -> Tensor:
    return (text > 32) & (text < 127) & ~_is_letter(text) & ~((text >= 48) & (text <= 57))


BYTES_PER_ID = 12
"""Bytes of drafted text that a step reads, for each id that it drafts at most."""


class Segments(NamedTuple):
    """Tokens of the target for drafted ids, [R, K]; only the first `counts` [R] of each row are there.

    Attributes:
        ids: int64, ids of the target.
        steps: int64, the drafted id that each token begins in.
        is_fixed: bool, true for tokens that stand for one drafted id and were not found in its text.
        is_last: bool, true for tokens at the end of the text, which may go on.
        probabilities: float64, the product of those of the drafted ids that begin in the token.
        counts: int64.
    """

    ids: Tensor
    steps: Tensor
    is_fixed: Tensor
    is_last: Tensor
    probabilities: Tensor
    counts: Tensor


class Segmenter:
    """Finds the target's tokens in drafted text.

    Args:
        pair: two tokenizers that differ.
        to_target: [Vd] int64 on the device, the target's id of each drafted id; -1 where there is none.
        target_vocab: V, the target's vocabulary.
        num_drafted: the maximum number of ids of a draft.
        is_exact: whether only as much text is looked at as there is, which is read back; otherwise shapes are fixed.
    """

    def __init__(
        self, pair: TokenizerPair, to_target: Tensor, target_vocab: int, num_drafted: int, *, is_exact: bool = False
    ) -> None:
        assert pair.vocabularies is not None
        device = to_target.device
        size = len(to_target)
        self._num_bytes = BYTES_PER_ID * num_drafted
        self._is_exact = is_exact
        target, draft = pair.vocabularies
        hashes = PieceHashes.of(target, self._num_bytes, target_vocab)
        self._keys, self._ids, self._powers, self._inverses = (torch.from_numpy(it).to(device) for it in hashes)
        self._splits = Splits.of(target)
        self._merger = PairMerger(target, hashes.ids, device, is_exact=is_exact) if target.merges else None
        of_ids = piece_bytes(draft, size)
        self._starts, self._sizes, self._bytes = (torch.from_numpy(numbers).to(device) for numbers in of_ids)
        controls = [token for token in draft.controls if token < size]
        is_control = torch.zeros(size, dtype=torch.bool)
        is_control[controls] = True
        ends = torch.full((size,), -1, dtype=torch.int64)
        for token, found in match_controls(target, draft).to_target.items():
            if token < size and found < target_vocab:
                ends[token] = found
        self._control_of = torch.where(is_control, ends, -1).to(device)
        self._to_target = to_target

    def find(
        self, drafted: Tensor, num_ids: Tensor, is_fixed: Tensor, probabilities: Tensor, num_tokens: int
    ) -> Segments:
        """Return at most K = `num_tokens` tokens for each row.

        The draft ends with a special token, before an id that has no text, before text that no token begins with, and
        where the text is too long.  Ids in `is_fixed` take one place of the text, whatever they are: they may be drawn,
        and whether a drawn id is kept must not depend on its value.

        Args:
            drafted: [R, n] int64.
            num_ids: [1] int64, how many of the n were drafted; the others are ignored.
            is_fixed: [R, n] bool, the ids that become the token that they correspond to.
            probabilities: [R, n] float64.
        """
        sizes = self._sizes[drafted].clamp(min=0)
        controls = self._control_of[drafted]
        is_control = controls >= 0
        is_fixed = is_fixed | is_control
        sizes = torch.where(is_fixed, 1, sizes)
        is_there = torch.arange(drafted.shape[1], device=drafted.device) < num_ids
        ended = (is_control.long().cumsum(1) - is_control.long()) > 0
        sizes = torch.where(((sizes > 0) & is_there & ~ended).long().cumprod(1) > 0, sizes, 0)
        fits = sizes.cumsum(1) <= self._num_bytes
        sizes = torch.where(fits, sizes, 0)
        ends = sizes.cumsum(1)
        tokens = torch.where(is_control, controls, self._to_target[drafted])
        return self._walk(_Drafted(drafted, sizes, ends, is_fixed & (sizes > 0), tokens), probabilities, num_tokens)

    def _walk(self, of: _Drafted, probabilities: Tensor, num_tokens: int) -> Segments:
        """Go from token to token, from the beginning of the text."""
        num_bytes = max(1, int(of.ends[:, -1].max())) if self._is_exact else self._num_bytes
        source, longest, found = self._at_places(of, num_bytes)
        at = torch.zeros_like(of.ends[:, :1])
        total = of.ends[:, -1:]
        ids = []
        begins = []
        steps = []
        ends = []
        for _ in range(num_tokens):
            place = at.clamp(max=num_bytes - 1)
            ids.append(found.gather(1, place))
            steps.append(source.gather(1, place))
            begins.append(at)
            at = at + torch.where(at < total, longest.gather(1, place), 0)
            ends.append(at)
        begin = torch.cat(begins, 1)
        end = torch.cat(ends, 1)
        step = torch.cat(steps, 1)
        within = (of.begins[:, None] >= begin[:, :, None]) & (of.begins[:, None] < end[:, :, None])
        within &= (of.sizes > 0)[:, None]
        of_tokens = torch.where(within, probabilities.log()[:, None], 0.0).sum(2).exp()
        is_fixed = of.is_fixed.gather(1, step)
        is_last = (end == total) & ~is_fixed
        return Segments(torch.cat(ids, 1), step, is_fixed, is_last, of_tokens, (end > begin).sum(1))

    def _at_places(self, of: _Drafted, num_bytes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for the first M places of the text, [R, M]: its drafted id, the size of the token, and this token."""
        num_rows = len(of.drafted)
        places = torch.arange(num_bytes, device=of.drafted.device)
        source = torch.searchsorted(of.ends, places.expand(num_rows, num_bytes).contiguous(), right=True)
        source = source.clamp(max=of.drafted.shape[1] - 1)
        begins = of.begins.gather(1, source)
        values = self._starts[of.drafted.gather(1, source)] + places - begins
        text = self._bytes[values.clamp(0, len(self._bytes) - 1)]
        is_fixed = of.is_fixed.gather(1, source)
        text = torch.where(is_fixed, FIXED, text)
        is_cut = (places == begins) & (is_fixed | is_fixed.roll(1, 1)) | (places == 0)
        is_cut |= cuts(text, self._splits, of.ends[:, -1:], is_cut)
        sizes, found = self._tokens(text, is_cut, of.ends[:, -1:])
        sizes = torch.where(is_fixed, 1, sizes)
        return source, sizes, torch.where(is_fixed, of.tokens.gather(1, source), found)

    def _tokens(self, text: Tensor, is_cut: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Return the size of the token at each place of a text [R, M], and it; 0 if none.

        Args:
            text: the bytes.
            is_cut: [R, M] bool, the places before which a token ends.
            total: [R, 1], bytes of each text.
        """
        num_bytes = text.shape[1]
        places = torch.arange(num_bytes, device=text.device)
        room = torch.minimum(_next(is_cut, places), total) - places
        before = torch.nn.functional.pad(((text + 1) * self._powers[:num_bytes]).cumsum(1), (1, 0))
        sizes = torch.arange(1, LONGEST_PIECE + 1, device=text.device)
        stops = (places[:, None] + sizes).clamp(max=num_bytes)
        hashed = (before[:, stops] - before[:, :-1, None]) * self._inverses[:num_bytes, None]
        at = torch.searchsorted(self._keys, hashed).clamp(max=len(self._keys) - 1)
        fits = (self._keys[at] == hashed) & (sizes <= room[:, :, None])
        if self._merger is None:
            chosen = torch.where(fits, sizes, 0).amax(2)
        else:
            chosen = self._merger.sizes(text, at, fits, is_cut)
        last = (chosen - 1).clamp(min=0)[:, :, None]
        return torch.where(fits.gather(2, last)[:, :, 0], chosen, 0), self._ids[at.gather(2, last)[:, :, 0]]


def _next(is_cut: Tensor, places: Tensor) -> Tensor:
    """Return [R, M], the next cut after each place; the end of the text if there is none."""
    num_bytes = is_cut.shape[1]
    at = torch.where(is_cut, places, num_bytes)
    return torch.nn.functional.pad(at.flip(1).cummin(1).values.flip(1)[:, 1:], (0, 1), value=num_bytes)


class _Drafted(NamedTuple):
    """Drafted ids [R, n]: the sizes and ends of their text, which of them are fixed or special, and their tokens."""

    drafted: Tensor
    sizes: Tensor
    ends: Tensor
    is_fixed: Tensor
    tokens: Tensor

    @property
    def begins(self) -> Tensor:
        return self.ends - self.sizes
