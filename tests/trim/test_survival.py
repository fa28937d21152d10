from __future__ import annotations

import heapq

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.trim import SurvivalTrimmer
from specplug.types.caps import Distribution
from specplug.types.draft import Draft
from specplug.types.paths import ROOT
from specplug.types.plan import Price, TrimLimits

# Few distinct values, so that ties are common, the two extremes among them.
LEVELS = (0.0, 0.25, 0.5, 1.0)


def draft_of(rows: list[list[tuple[float, int]]], draft_length: int, *, trees: bool) -> Draft:
    """Rows of (confidence, parent); the parents of chains do not matter."""
    draft = Draft.allocate(len(rows), draft_length, trees=trees, sources=("only",))
    for row, nodes in enumerate(rows):
        ids = [10 * row + column for column in range(len(nodes))]
        parents = [parent for _, parent in nodes] if trees else None
        draft.set_row(row, ids, [level for level, _ in nodes], parents=parents)
    return draft


def admitted_by_heap(rows: list[list[tuple[float, int]]], budget: int) -> list[list[int]]:
    """The plain way: from the tokens whose parents are in, take the one of highest survival, until the budget is spent.

    Returns the columns that each row keeps.
    """
    survival: list[list[float]] = []
    for nodes in rows:
        reached: list[float] = []
        for level, parent in nodes:
            reached.append(level * (1.0 if parent == ROOT else reached[parent]))
        survival.append(reached)
    heap: list[tuple[float, int, int]] = []

    def offer(row: int, parent: int) -> None:
        for column, (_, above) in enumerate(rows[row]):
            if above == parent:
                heapq.heappush(heap, (-survival[row][column], column, row))

    for row in range(len(rows)):
        offer(row, ROOT)
    kept: list[list[int]] = [[] for _ in rows]
    for _ in range(budget):
        if not heap:
            break
        _, column, row = heapq.heappop(heap)
        kept[row].append(column)
        offer(row, column)
    return [sorted(columns) for columns in kept]


def trim(draft: Draft, budget: int) -> Draft:
    return SurvivalTrimmer().trim(draft, limits_of(draft, budget))


def limits_of(draft: Draft, budget: int, *prices: Price) -> TrimLimits:
    return TrimLimits.build(budget, torch.ones_like(draft.lengths, dtype=torch.bool), prices)


def ids(draft: Draft) -> list[list[int]]:
    return [row[:count] for row, count in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)]


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[list[tuple[float, int]]], bool]:
    """Return rows, and whether they are trees; chains are trees in which each token follows the one before."""
    trees, levels = draw(st.booleans()), st.lists(st.sampled_from(LEVELS), max_size=6)
    rows = draw(st.lists(levels, min_size=1, max_size=4))
    parents = [[draw(st.integers(ROOT, k - 1)) if trees else k - 1 for k in range(len(row))] for row in rows]
    return [list(zip(*both, strict=True)) for both in zip(rows, parents, strict=True)], trees


@settings(max_examples=300, deadline=None)
@given(forest=forests(), budget=st.integers(0, 26))
def test_the_tokens_equal_those_of_the_heap(forest: tuple[list[list[tuple[float, int]]], bool], budget: int) -> None:
    rows, trees = forest
    draft = draft_of(rows, 6, trees=trees)
    kept = admitted_by_heap(rows, budget)
    trimmed = trim(draft, budget)
    trimmed.validate()
    assert ids(trimmed) == [[10 * row + column for column in columns] for row, columns in enumerate(kept)]
    assert int(trimmed.lengths.sum()) == min(budget, int(draft.lengths.sum()))
    for row, columns in enumerate(kept):
        moved = [ROOT if rows[row][it][1] == ROOT else columns.index(rows[row][it][1]) for it in columns]
        assert trimmed.parents is None or trimmed.parents[row, : len(columns)].tolist() == moved
        assert trees or columns == list(range(len(columns)))


@pytest.mark.parametrize(("batch_size", "draft_length"), [(0, 4), (3, 0)])
@pytest.mark.parametrize("trees", [False, True])
def test_nothing_to_trim(batch_size: int, draft_length: int, trees: bool) -> None:
    trimmed = trim(Draft.allocate(batch_size, draft_length, trees=trees), 2)
    assert (trimmed.batch_size, trimmed.draft_length) == (batch_size, draft_length)


@pytest.mark.parametrize("trees", [False, True])
def test_reads_nothing_back(trees: bool) -> None:
    draft = Draft.allocate(3, 4, device="meta", trees=trees, distribution=Distribution.PROBS, vocab_size=5)
    trimmed = SurvivalTrimmer().trim(draft, limits_of(draft, 2))
    trimmed.validate()
    assert trimmed.device.type == "meta"
