"""Layout of the memory that the kernels share, and what both kernels use."""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

from specplug.pipeline.device import columns

INTERPRETED: bool = knobs.runtime.interpret is True
"""Whether Triton's interpreter runs these kernels, on any device: Triton decides this where a kernel is defined."""

GENERATION, END, CAP, GRAMMAR, STOP_IDS = map(tl.constexpr, (0, 1, 2, 3, 5))
"""Columns of the slot table."""

BASE_LEN, COUNT, SOURCES = map(tl.constexpr, (1, 2, 3))
"""Entries of a draft's head, after its generation."""

LENGTHS, ROOM, KNOWN, NUM_NEW, LIMITS, TAKEN, BASE, PROPOSED, VERIFIED, ACCEPTED, _, EMITTED, AFTER_STOP = map(
    tl.constexpr, range(columns.AFTER_STOP + 1)
)
"""Rows of `Columns.counts`."""

ROW_COUNTS, FATES = tl.constexpr(3), tl.constexpr(6)
"""Figures per source, and per source and position, that `SpecMetrics` counts."""

DRAFT = ("draft_ids", "draft_confidence", "draft_sources", "draft_lengths")
"""Names of the kernels' arguments that are tensors of the draft buffer."""


@triton.jit  # type: ignore[untyped-decorator]
def smaller(a, b):  # type: ignore[no-untyped-def]
    """Return the smaller number, like Triton's own `tl.min`, which its interpreter does not run in every process."""
    return tl.where(a < b, a, b)
