"""Random drafts and limits for trim halves."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch

from specplug.types.draft import Draft
from specplug.types.paths import ROOT
from specplug.types.plan import Price, TrimLimits

EXTREMES = (0.0, -0.0, 1.0, 0.5, 1e-40)


@dataclass(frozen=True)
class Case:
    """A draft of at most N tokens, in a buffer that has more columns, and its limits."""

    draft: Draft
    budget: int
    prices: tuple[Price, ...]
    decoding: torch.Tensor
    entry: float = 0.0

    @property
    def limits(self) -> TrimLimits:
        """Return the limits as tensors."""
        return TrimLimits.build(self.budget, self.decoding, self.prices, self.entry)


def random_case(random: Random, *, trees: bool, least: int = 0, most: int = 7) -> Case:
    """Return a draft of `least` to `most` rows, in which ties are common, some rows empty and some not decoding."""
    rows, draft_length = random.randint(least, most), random.randint(1, most)
    levels = [*EXTREMES, *(random.random() for _ in range(random.randint(1, 9)))]
    buffer = Draft.allocate(rows + 1, draft_length + 2, trees=trees, sources=("a", "b"))
    decoding = [random.random() < 0.8 for _ in range(rows)]
    for row in range(rows):
        count = random.randint(0, draft_length) if decoding[row] else 0
        buffer.set_row(
            row,
            [random.randrange(1000) for _ in range(count)],
            [random.choice(levels) for _ in range(count)],
            source=[random.randrange(2) for _ in range(count)],
            parents=[random.randint(ROOT, place - 1) for place in range(count)] if trees else None,
        )
    budget = random.choice([0, random.randint(0, rows * draft_length), rows * draft_length])
    prices = tuple(map(Price, *_ascending(random, [random.choice(levels[3:]), 0.25, 1.0, 1.5], rows * draft_length)))
    entry = random.choice([0.0, 0.001 + 3 * random.random()])
    return Case(buffer.view(rows, draft_length), budget, prices, torch.tensor(decoding, dtype=torch.bool), entry)


def _ascending(random: Random, levels: list[float], most: int) -> tuple[list[float], list[int]]:
    """Return the fields of up to three prices."""
    count = random.randrange(4)
    after = [random.choice([0, random.randint(0, most + 2)]) for _ in range(count)]
    return sorted(random.choices(levels, k=count)), sorted(after)


def bits(draft: Draft) -> list[bytes]:
    """Return the contents of a draft."""
    tensors = (draft.token_ids, draft.confidence, draft.source, draft.lengths, draft.base_len, draft.parents)
    return [tensor.contiguous().numpy().tobytes() for tensor in tensors if tensor is not None]
