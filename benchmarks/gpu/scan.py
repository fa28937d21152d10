"""Drafting by a scan of each row's text on the device, as engines' own n-gram proposers do; the reference and a choice.

A draft continues the longest earlier occurrence of the text's last tokens, between `SHORTEST` and `LONGEST` of them;
ties go to the last one.  It ends with the text, and is padded with the text's last token.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHORTEST, LONGEST = 2, 5
"""Tokens of a match; the reference and the kernel share them."""


class Scan:
    """Drafts of B rows by a scan; all tensors are on one device.

    Args:
        rows: B.
        device: a GPU, where Triton's kernels scan, or a CPU, where the reference does.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._best = torch.zeros(rows, dtype=torch.int64, device=device)
        self._has_kernels = device.type == "cuda"

    def draft(self, slots: Tensor, lengths: Tensor, texts: Tensor, out: Tensor) -> None:
        """Fill `out`, [B, K] int64, for rows with `slots` [B] of `texts` [S, L] int32, `lengths` [S] int32."""
        if self._has_kernels:
            from benchmarks.gpu import scan_kernels

            scan_kernels.draft(slots, lengths, texts, self._best, out)
        else:
            draft(slots, lengths, texts, out)


def draft(slots: Tensor, lengths: Tensor, texts: Tensor, out: Tensor) -> None:
    """Fill `out` like `Scan.draft`, in plain torch, row by row."""
    for row, slot in enumerate(slots.tolist()):
        text = texts[slot, : int(lengths[slot])]
        out[row] = text[-1]
        length, end = best_match(text, SHORTEST, LONGEST)
        found = text[end : end + out.shape[1]] if length else text[:0]
        out[row, : len(found)] = found


def best_match(text: Tensor, shortest: int, longest: int) -> tuple[int, int]:
    """Return the length of the longest earlier occurrence of the text's end, and the index after the last of these.

    Both are 0 if none has at least `shortest` tokens; beyond `longest` tokens none is longer.
    """
    if len(text) < 2:
        return 0, 0
    counts = torch.zeros(len(text) - 1, dtype=torch.int64)
    is_equal = torch.ones_like(counts, dtype=torch.bool)
    for distance in range(min(longest, len(counts))):
        is_equal[:distance] = False
        is_equal[distance:] &= text[: len(counts) - distance] == text[-1 - distance]
        counts += is_equal
    ends = torch.arange(1, len(counts) + 1)
    key = int(torch.where(counts >= shortest, (counts << 32) + ends, 0).max())
    return key >> 32, key & ((1 << 32) - 1)
