"""Buckets of match lengths, by which vLLM's suffix speculator counts acceptance: a feature for the peers that use it.

The longest match at a position is the longest end of the text so far that occurred earlier in the text.  Nine buckets
are those of vLLM's branch of 2026-09: 1 to 6 tokens each by itself, 7 to 10, 11 to 20, and more.  Its confidences are
counts by source, bucket and position: (accepted + 1) / (tested + 2), halved now and then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Counted = npt.NDArray[np.int64]

LEAST = (1, 2, 3, 4, 5, 6, 7, 11, 21)
"""Shortest match of each bucket, in tokens."""

HALVING = 1024
"""Steps after which counts are halved."""

MAX_SOURCES = 8

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def match_buckets(text: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint8]:
    """Return [n + 1] uint8: for each length of the text's prefixes, the bucket of the longest match plus 1; 0 for none.

    Matches are found by hashes of 64 bits, so a wrong one is possible but of no consequence.
    """
    found = np.zeros(text.size + 1, np.uint8)
    for bucket, length in enumerate(LEAST, 1):
        if text.size <= length:
            break
        keys = _hashes(text, length)
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        found[length:][first[group] < np.arange(keys.size)] = bucket
    return found


class BucketCounts:
    """Acceptance counts by source of a draft's first token, -1 for none, bucket of its match, and position.

    All arguments [B] are integers, one per draft; `draft_length` is N.
    """

    def __init__(self, draft_length: int) -> None:
        self._counts = np.zeros((MAX_SOURCES + 1, len(LEAST) + 1, draft_length, 2), np.int64)
        self._steps = 0

    def rates(self, sources: Counted, buckets: Counted) -> npt.NDArray[np.float64]:
        """Return [B, N], the confidence of each position."""
        counts = self._counts[sources + 1, buckets]
        rates: npt.NDArray[np.float64] = (counts[..., 0] + 1) / (counts[..., 1] + 2)
        return rates

    def learn(self, sources: Counted, buckets: Counted, verified: Counted, accepted: Counted) -> None:
        """Count the tokens of one step whose acceptance was decided."""
        places = np.arange(self._counts.shape[2])
        for kind, most in ((0, accepted), (1, np.minimum(accepted + 1, verified))):
            rows, columns = np.nonzero(places < most[:, None])
            np.add.at(self._counts[..., kind], (sources[rows] + 1, buckets[rows], columns), 1)
        self._steps += 1
        if self._steps % HALVING == 0:
            self._counts >>= 1


def _hashes(text: npt.NDArray[np.integer[Any]], length: int) -> npt.NDArray[np.uint64]:
    """Return [n - length + 1] uint64, a polynomial hash of each run of `length` tokens."""
    tokens, count = text.astype(np.uint64), text.size - length + 1
    keys = np.zeros(count, np.uint64)
    for place in range(length):
        keys = keys * _MULTIPLIER + tokens[place : place + count] + np.uint64(1)
    return keys ^ (keys >> np.uint64(29))
