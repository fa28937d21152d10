"""A chain's tokens are learnt from whatever was verified: the steps that follow judge what a step leaves undecided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from specplug.match.cpu.evidence import Table
from specplug.match.cpu.lookup import Lookup
from specplug.match.options import LookupSettings
from tests.match.driver import Client

SONG = [1, 2, 3, 4, 5, 6, 7, 8, 9]
LENGTH = 8


def learnt(parts: Sequence[Sequence[int]], *, drafts: Sequence[bool] = (), trees: bool = False) -> tuple[Table, ...]:
    """Return the tries and hits that are counted, by table, while a repeated song goes on by some parts.

    Before the first part 8 tokens are drafted, and after each part whose `drafts` is true.
    """
    client = Client(Lookup(1, 200, LENGTH, LookupSettings(), trees=trees), LENGTH, trees)
    client.lookup.start(0)
    before = [table.copy() for table in client.lookup.tables.arrays]
    text = SONG * 3
    client.ingest([0], [text], [len(text)])
    assert client.propose([0], [LENGTH])[0].ids[:3] == [1, 2, 3]
    for k, part in enumerate(parts):
        text = text + list(part)
        client.ingest([0], [list(part)], [len(text)])
        if k < len(drafts) and drafts[k]:
            assert client.propose([0], [LENGTH])[0].ids
    return tuple(now - then for now, then in zip(client.lookup.tables.arrays, before, strict=True))


def tries(tables: Sequence[Table]) -> list[int]:
    """Return the tries of `evidence`, `contexts` and `tokens`."""
    return [int(table[:, 1].sum()) for table in tables[1:]]


@pytest.mark.parametrize(
    ("parts", "drafts"),
    [
        ([[1], [2], [3], [4], [5], [6], [7], [8]], [True] * 7),
        ([[1], [2], [3], [4], [5], [6], [7], [8]], []),
        ([[1, 2], [3], [4, 5, 6], [7, 8]], [True, False, True]),
    ],
    ids=["nothing verified", "nothing drafted after it", "some verified"],
)
def test_a_chain_counts_as_if_all_of_it_had_been_verified(parts: list[list[int]], drafts: list[bool]) -> None:
    at_once, in_steps = learnt([SONG[:LENGTH]]), learnt(parts, drafts=drafts)
    assert tries(at_once) == [LENGTH] * 3
    for one, other in zip(at_once[1:], in_steps[1:], strict=True):
        assert np.array_equal(one, other)


def test_a_chain_is_judged_up_to_its_first_wrong_token_and_the_next_draft_after_it() -> None:
    assert tries(learnt([[1], [2], [99]], drafts=[True, True])) == [3] * 3
    assert tries(learnt([[1], [2], [99], [4]], drafts=[True, True, False])) == [3] * 3
    assert tries(learnt([[1], [2], [99, 1], [2]], drafts=[True, True, True])) == [4] * 3


def test_a_chain_is_dropped_if_the_engine_takes_tokens_back() -> None:
    client = Client(Lookup(1, 200, LENGTH, LookupSettings(), trees=False), LENGTH, False)
    client.lookup.start(0)
    start = int(client.lookup.tables.evidence[:, 1].sum())
    client.ingest([0], [SONG * 3], [27])
    client.propose([0], [LENGTH])
    client.ingest([0], [[1]], [28])
    client.ingest([0], [[7, 2]], [28])  # the last two tokens are others
    client.ingest([0], [[2]], [29])
    assert int(client.lookup.tables.evidence[:, 1].sum()) - start == 1


def test_trees_learn_from_the_next_step_alone() -> None:
    once = tries(learnt([[1]], trees=True))
    assert once == tries(learnt([[1], [2], [3]], trees=True))
    assert once < tries(learnt([[1, 2, 3]], trees=True))
