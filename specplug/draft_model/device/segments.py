"""Segments: drafted ids as tokens of the target, by the longest token that each place of the drafted text begins with.

String-level exact match (SLEM; Timor et al., ICML 2025, arXiv 2502.05202) for devices on which no tokenizer runs.  A
tokenizer that merges pairs mostly finds the longest token of a word, but not always: see docs/crosstok.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specplug.draft_model.pairing import Pair
from specplug.text.translate.tables import LONGEST_PIECE, PieceHashes, leaves_last_space, piece_bytes

BYTES_PER_ID = 12
"""Bytes of drafted text that a step reads, for each id that it drafts at most."""

_CONTROL = 256  # stands for a special token in a text's bytes


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
        num_drafted: the most ids of a draft.
    """

    def __init__(self, pair: Pair, to_target: Tensor, target_vocab: int, num_drafted: int) -> None:
        assert pair.translator is not None
        device, size = to_target.device, len(to_target)
        self._num_bytes = BYTES_PER_ID * num_drafted
        target, draft = pair.translator.target, pair.translator.draft
        hashes = PieceHashes.of(target, self._num_bytes, target_vocab)
        self._keys, self._ids, self._powers, self._inverses = (torch.from_numpy(it).to(device) for it in hashes)
        self._leaves_last_space = leaves_last_space(target)
        of_ids = piece_bytes(draft, size)
        self._starts, self._sizes, self._bytes = (torch.from_numpy(numbers).to(device) for numbers in of_ids)
        controls = [token for token in draft.controls if token < size]
        is_control = torch.zeros(size, dtype=torch.bool)
        is_control[controls] = True
        ends = torch.full((size,), -1, dtype=torch.int64)
        for token, found in pair.translator.controls.to_target.items():
            if token < size and found < target_vocab:
                ends[token] = found
        self._control_of = torch.where(is_control, ends, -1).to(device)
        self._to_target = to_target

    def find(
        self, drafted: Tensor, num_ids: Tensor, is_fixed: Tensor, probabilities: Tensor, num_tokens: int
    ) -> Segments:
        """Return at most K = `num_tokens` tokens for each row.

        The draft ends with a special token, before an id that has no text, before text that no token begins with, and
        where the text is too long.

        Args:
            drafted: [R, n] int64.
            num_ids: [1] int64, how many of the n were drafted; the others are ignored.
            is_fixed: [R, n] bool, the ids that become the token that they correspond to.
            probabilities: [R, n] float64.
        """
        sizes, controls = self._sizes[drafted].clamp(min=0), self._control_of[drafted]
        is_control = controls >= 0
        sizes = torch.where(is_control, 1, sizes)
        is_there = torch.arange(drafted.shape[1], device=drafted.device) < num_ids
        ended = (is_control.long().cumsum(1) - is_control.long()) > 0
        sizes = torch.where(((sizes > 0) & is_there & ~ended).long().cumprod(1) > 0, sizes, 0)
        fits = sizes.cumsum(1) <= self._num_bytes
        sizes = torch.where(fits, sizes, 0)
        ends = sizes.cumsum(1)
        is_fixed = (is_fixed | is_control) & (sizes > 0)
        tokens = torch.where(is_control, controls, self._to_target[drafted])
        return self._walk(_Drafted(drafted, sizes, ends, is_fixed, is_control, tokens), probabilities, num_tokens)

    def _walk(self, of: _Drafted, probabilities: Tensor, num_tokens: int) -> Segments:
        """Go from token to token, from the beginning of the text."""
        source, longest, found = self._longest(of)
        at, total = torch.zeros_like(of.ends[:, :1]), of.ends[:, -1:]
        ids, begins, steps, ends = [], [], [], []
        for _ in range(num_tokens):
            place = at.clamp(max=self._num_bytes - 1)
            ids.append(found.gather(1, place))
            steps.append(source.gather(1, place))
            begins.append(at)
            at = at + torch.where(at < total, longest.gather(1, place), 0)
            ends.append(at)
        begin, end, step = torch.cat(begins, 1), torch.cat(ends, 1), torch.cat(steps, 1)
        within = (of.begins[:, None] >= begin[:, :, None]) & (of.begins[:, None] < end[:, :, None])
        within &= (of.sizes > 0)[:, None]
        of_tokens = torch.where(within, probabilities.log()[:, None], 0.0).sum(2).exp()
        is_fixed = of.is_fixed.gather(1, step)
        is_last = (end == total) & ~is_fixed
        return Segments(torch.cat(ids, 1), step, is_fixed, is_last, of_tokens, (end > begin).sum(1))

    def _longest(self, of: _Drafted) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for each place of the text, [R, M]: its drafted id, the size of the longest token, and this token."""
        num_rows, num_bytes = len(of.drafted), self._num_bytes
        places = torch.arange(num_bytes, device=of.drafted.device)
        source = torch.searchsorted(of.ends, places.expand(num_rows, num_bytes).contiguous(), right=True)
        source = source.clamp(max=of.drafted.shape[1] - 1)
        begins = of.begins.gather(1, source)
        values = self._starts[of.drafted.gather(1, source)] + places - begins
        text = self._bytes[values.clamp(0, len(self._bytes) - 1)]
        text = torch.where(of.is_control.gather(1, source), _CONTROL, text)
        room = of.next_fixed().gather(1, source) - places
        if self._leaves_last_space:
            room = torch.minimum(room, _to_last_space(text, of.ends[:, -1:]))
        sizes, found = self._matches(text, room)
        is_fixed = of.is_fixed.gather(1, source)
        sizes = torch.where(is_fixed, of.sizes.gather(1, source), sizes)
        return source, sizes, torch.where(is_fixed, of.tokens.gather(1, source), found)

    def _matches(self, text: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
        """Return the size of the longest token at each place of a text [R, M], at most `room`, and it; 0 if none."""
        num_bytes = self._num_bytes
        before = torch.nn.functional.pad(((text + 1) * self._powers[:num_bytes]).cumsum(1), (1, 0))
        sizes = torch.arange(1, LONGEST_PIECE + 1, device=text.device)
        stops = torch.arange(num_bytes, device=text.device)[:, None] + sizes
        hashed = (before[:, stops.clamp(max=num_bytes)] - before[:, :-1, None]) * self._inverses[:, None]
        at = torch.searchsorted(self._keys, hashed).clamp(max=len(self._keys) - 1)
        fits = (self._keys[at] == hashed) & (sizes <= room[:, :, None]) & (stops <= num_bytes)
        longest = torch.where(fits, sizes, 0).amax(2)
        return longest, self._ids[at.gather(2, (longest - 1).clamp(min=0)[:, :, None])[:, :, 0]]


def _to_last_space(text: Tensor, total: Tensor) -> Tensor:
    """Return [R, M], the bytes from each place to the next space between another one and a word."""
    num_bytes = text.shape[1]
    places = torch.arange(num_bytes, device=text.device)
    is_space = ((text == 32) | ((text >= 9) & (text <= 13))) & (places < total)
    before, after = (is_space.roll(shift, 1) for shift in (1, -1))
    is_last = is_space & before & ~after & (places > 0) & (places + 1 < total)
    at = torch.where(is_last, places, 2 * num_bytes)
    later = torch.nn.functional.pad(at.flip(1).cummin(1).values.flip(1)[:, 1:], (0, 1), value=2 * num_bytes)
    return later - places


class _Drafted(NamedTuple):
    """Drafted ids [R, n]: their bytes' sizes and ends, which of them are fixed or special, and their tokens."""

    drafted: Tensor
    sizes: Tensor
    ends: Tensor
    is_fixed: Tensor
    is_control: Tensor
    tokens: Tensor

    @property
    def begins(self) -> Tensor:
        return self.ends - self.sizes

    def next_fixed(self) -> Tensor:
        """Return [R, n], where the next fixed id after each begins, or the end of the text."""
        begins = torch.where(self.is_fixed, self.begins, self.ends[:, -1:])
        later = begins.flip(1).cummin(1).values.flip(1)[:, 1:]
        return torch.cat([later, self.ends[:, -1:]], 1)
