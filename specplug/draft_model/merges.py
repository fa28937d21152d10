"""PairMerger: byte pair encoding of many texts at once, on devices on which no tokenizer runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.text.translate.tables import LONGEST_PIECE, NEVER, Merges, Splits
from specplug.text.translate.vocabulary import Vocabulary

CONTROL = 256
"""Stands for a special token in a text's bytes."""

_ROUNDS = 24  # of different merges of a word; what is left after them stays in shorter tokens


class PairMerger:
    """Byte pair encoding of many texts at once.

    In each round, every word merges its pairs of the lowest rank; no token reaches from one word to the next.

    Args:
        vocabulary: with merges.
        ids: the token of each key of its `PieceHashes`.
        device: where it runs.
        is_exact: whether it ends after the last merge, which is read back, and not after a fixed number of rounds.
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

        Args:
            at: [R, M, `LONGEST_PIECE`], the key of the token of each size, where it `fits`.
            is_cut: [R, M] bool, the places before which a token ends.
        """
        num_rows, num_bytes = text.shape
        longest = torch.where(fits, torch.arange(1, LONGEST_PIECE + 1, device=text.device), 0).amax(2)
        ends = (torch.arange(num_bytes, device=text.device) + longest).cummax(1).values
        is_apart = is_cut.clone()
        is_apart[:, 1:] |= ends[:, :-1] <= torch.arange(1, num_bytes, device=text.device)
        words = is_apart.long().cumsum(1)
        ranks, lefts = torch.where(fits, self._ranks[at], NEVER), self._lefts[at]
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
        num_bytes = torch.where(text < CONTROL, num_bytes, 1)
        is_known = fits.gather(2, (num_bytes - 1)[:, :, None])[:, :, 0]
        sizes = torch.where(is_known, num_bytes, 1)
        ends = (sizes + torch.arange(text.shape[1], device=text.device)).cummax(1).values
        is_within = torch.arange(1, text.shape[1], device=text.device) < ends[:, :-1]
        sizes[:, 1:] = torch.where(is_within, 0, sizes[:, 1:])
        return sizes


def _every_other(is_pair: Tensor, is_token: Tensor, after: Tensor) -> Tensor:
    """Return which pairs merge, [R, M] bool: of pairs that overlap, in a row, the first, the third and so on.

    Args:
        is_pair: the tokens that are the left part of a pair.
        is_token: the places at which a token begins.
        after: [R, M] int64, where the token after each begins.
    """
    padded = torch.nn.functional.pad(torch.zeros_like(is_pair), (0, 1))
    follows = padded.scatter(1, torch.where(is_pair, after, is_pair.shape[1]), True)[:, :-1]
    number = is_token.long().cumsum(1)
    first = torch.where(is_pair & ~follows, number, 0).cummax(1).values
    return is_pair & ((number - first) % 2 == 0)


def cuts(text: Tensor, splits: Splits, total: Tensor, begins: Tensor) -> Tensor:
    """Return [R, M] bool, the places of texts of `total` [R, 1] bytes at which they are split by these rules.

    Args:
        begins: [R, M] bool, the places at which a text of its own begins, for the rules of digits and of signs.
    """
    places = torch.arange(text.shape[1], device=text.device)
    is_cut = torch.zeros_like(text, dtype=torch.bool)
    before, after = text.roll(1, 1), text.roll(-1, 1)
    if splits.spaces:
        is_last = _is_space(text) & _is_space(before) & ~_is_space(after) & (places > 0) & (places + 1 < total)
        for byte in splits.spaces:
            is_cut |= is_last & (text == byte)
    if splits.by_three:
        is_digit = (text >= 48) & (text <= 57)
        first = torch.maximum(torch.where(is_digit, -1, places + 1), torch.where(begins, places, -1)).cummax(1).values
        is_cut |= is_digit & ((places - first) % 3 == 0)
    if splits.after_signs:
        earlier, is_first = text.roll(2, 1), begins.roll(1, 1)
        after_two = _is_sign(before) & (_is_sign(earlier) | (earlier == 32)) & ~is_first
        is_cut |= _is_letter(text) & after_two & (places > 1)
    return is_cut


def _is_space(text: Tensor) -> Tensor:
    return (text == 32) | ((text >= 9) & (text <= 13))


def _is_letter(text: Tensor) -> Tensor:
    """All bytes of other scripts count as letters."""
    lower = text | 32
    return (lower >= 97) & (lower <= 122) | (text >= 128) & (text < CONTROL)


def _is_sign(text: Tensor) -> Tensor:
    return (text > 32) & (text < 127) & ~_is_letter(text) & ~((text >= 48) & (text <= 57))
