"""Random drafts and limits for trim halves."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from specplug.types.paths import ROOT
from specplug.types.plan import TrimLimits
from specplug.types.step import CostPoint, Draft

EXTREMES = (0.0, -0.0, 1.0, 0.5, 1e-40)


@dataclass(frozen=True)
class Case:
    """A draft of at most N tokens, in a buffer that has more columns, and its limits."""

    draft: Draft
    budget: int
    costs: tuple[CostPoint, ...]

    @property
    def limits(self) -> TrimLimits:
        """Return the limits as tensors."""
        return TrimLimits.build(self.budget, self.costs)


def random_case(random: Random, *, trees: bool, least: int = 0, most: int = 7) -> Case:
    """Return a draft of `least` to `most` rows, in which ties are common, and some rows empty."""
    rows, draft_length = random.randint(least, most), random.randint(1, most)
    levels = [*EXTREMES, *(random.random() for _ in range(random.randint(1, 9)))]
    buffer = Draft.allocate(rows + 1, draft_length + 2, trees=trees, sources=("a", "b"))
    for row in range(rows):
        count = random.randint(0, draft_length) if random.random() < 0.8 else 0
        buffer.set_row(
            row,
            [random.randrange(1000) for _ in range(count)],
            [random.choice(levels) for _ in range(count)],
            source=[random.randrange(2) for _ in range(count)],
            parents=[random.randint(ROOT, place - 1) for place in range(count)] if trees else None,
        )
    budget = random.choice([0, random.randint(0, rows * draft_length), rows * draft_length])
    return Case(buffer.view(rows, draft_length), budget, random_costs(random, rows * draft_length))


def each_costs(cost: float) -> tuple[CostPoint, ...]:
    """Return the curve by which each draft token of at most 1,000 costs so much."""
    return CostPoint(0, 0.0), CostPoint(1000, 1000 * cost)


def random_costs(random: Random, places: int) -> tuple[CostPoint, ...]:
    """Return a curve of up to nine points, which rises, jumps, falls or is flat, up to and beyond so many places."""
    tokens = sorted(random.sample(range(places + 3), random.randint(0, min(9, places + 3))))
    slope, jump = random.choice([0.0, 0.1, 0.5, 1.0, 1.5]), random.choice([0.0, 0.001, 0.5, 2.0])
    heights = [random.choice([0, 0, jump, -jump]) for _ in tokens]
    return tuple([CostPoint(count, slope * count + height) for count, height in zip(tokens, heights, strict=True)])


def bits(draft: Draft) -> list[bytes]:
    """Return the contents of a draft."""
    tensors = (draft.token_ids, draft.confidence, draft.source, draft.lengths, draft.base_len, draft.parents)
    return [tensor.contiguous().numpy().tobytes() for tensor in tensors if tensor is not None]
