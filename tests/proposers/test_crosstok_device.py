"""The proposer `crosstok` for batches on a GPU reads nothing back, and graphs draft what their functions do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specplug.draft_model.loop import size_for, sizes
from specplug.testing.driver import DraftedStep, Driver
from specplug.types.step import Draft
from tests.draft_model.recorded import RecordedGraphs
from tests.proposers.crosstok_tools import FORMS, OTHER, SAME, TEXTS, VOCAB, Warm, options
from tests.steps.test_no_sync import Watch


def started(draft: str) -> Driver:
    """Return a driver with all texts."""
    driver = Warm(FORMS["device"], options(draft), vocab_size=VOCAB, max_draft_length=8, max_length=600)
    for name, ids in zip("abc", TEXTS, strict=True):
        driver.start(name, ids)
    return driver


class Recording:
    """Steps of a driver whose proposer runs recorded graphs, beside those of one that runs plain functions."""

    def __init__(self, draft: str) -> None:
        self.plain, self.recorded = started(draft), started(draft)
        self.graphs = RecordedGraphs()
        step = self.recorded.proposer._step  # type: ignore[attr-defined]
        step.loop.graphs = self.graphs
        with torch.inference_mode():
            step.loop.capture(step)

    def steps(self) -> Iterator[tuple[DraftedStep, DraftedStep]]:
        """Yield steps of both, through starts, ends and growing texts."""
        for number in range(14):
            for driver in (self.plain, self.recorded):
                if number == 5:
                    driver.leave("a")
                    driver.start("d", TEXTS[0][:9])
                if number == 8:
                    driver.start("e", TEXTS[0] * 3)
            length = (4, 2, 8)[number % 3]
            pair = self.plain.step(length), self.recorded.step(length)
            yield pair
            for driver, step in zip((self.plain, self.recorded), pair, strict=True):
                answers = {
                    name: [*row.token_ids[: number % 4], 7, 8][: 1 + number % 4]
                    for name, row in pair[0].by_request().items()
                }
                driver.settle(step, answers)


@pytest.mark.parametrize("draft", [SAME, OTHER])
def test_graphs_draft_what_plain_functions_do(draft: str) -> None:
    """For sampled rows, and for greedy ones beside them."""
    run = Recording(draft)
    total = 0
    for plain, recorded in run.steps():
        expected, found = plain.by_request(), recorded.by_request()
        assert {name: row.token_ids for name, row in found.items()} == {
            name: row.token_ids for name, row in expected.items()
        }
        torch.testing.assert_close(recorded.draft.confidence, plain.draft.confidence)
        total += sum(len(row.token_ids) for row in found.values())
    assert total > 80
    kinds = [key[0] for key in run.graphs.replayed]
    assert kinds.count("begin") == kinds.count("first") == kinds.count("finish") == 14
    assert kinds.count("further") > 28


@pytest.mark.parametrize("draft", [SAME, OTHER])
def test_a_steady_step_reads_nothing_back_and_copies_nothing_in(draft: str) -> None:
    """Learning included.  What a GPU would run as graphs is counted apart."""
    with started(draft) as driver:
        step = driver.proposer._step  # type: ignore[attr-defined]
        for number in range(6):
            if number < 3:
                driver.settle(driver.step(4), {name: [5, 6, 7] for name in "abc"})
                continue
            batch, draft_length = driver.batch(), 4
            limits = torch.full((3,), 4, dtype=torch.int32)
            draft_of = Draft.allocate(
                3,
                draft_length,
                distribution=driver.caps.distribution,
                draft_vocab=driver.proposer.draft_vocab,
                sources=driver.proposer.sources,
            )
            graphs: list[Any] = []
            inside = Watch()
            step.loop.graphs.run = lambda key, function: (graphs.append(key), _under(inside, function))  # noqa: B023
            with torch.inference_mode(), Watch() as watch:
                driver.proposer.step(batch, limits, draft_of)
            assert watch.found == inside.found == []
            assert bool(draft_of.lengths.all())
            assert [key[0] for key in graphs][:2] == ["begin", "first"]
            assert watch.launches < 100


def _under(watch: Watch, function: Any) -> None:
    with torch.utils._python_dispatch._disable_current_modes(), watch:
        function()


@given(st.integers(1, 300), st.integers(1, 8), st.data())
def test_a_size_is_the_least_that_suffices(most: int, least: int, data: st.DataObject) -> None:
    found = sizes(most, min(least, most))
    assert found[-1] == most
    assert found == sorted(set(found))
    needed = data.draw(st.integers(0, most))
    assert size_for(needed, found) == min(size for size in found if size >= needed)
    assert size_for(most + 5, found) == most
