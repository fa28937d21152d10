"""The demo's arithmetic: loops, shared times and steps, and what its rows count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.metrics import SpecMetrics
from specplug.plugins.embedded import TextUpdate
from specplug.tools.demo.compare import TaskPair, TaskRun, loop_mask, run_pairs, summarise
from specplug.tools.demo.tasks import Task


@pytest.mark.parametrize("period", [1, 3, 16])
def test_a_loop_is_found_with_its_exact_ends(period):
    loop = list(range(period)) * 48
    loop = loop[: 48 + 5]
    head, tail = [900, 901, 902], [903, 904]
    expected = [False] * 3 + [True] * len(loop) + [False] * 2
    assert loop_mask(head + loop + tail) == expected


def test_shorter_or_slower_repetition_is_no_loop():
    assert not any(loop_mask([7] * 47))
    assert not any(loop_mask(list(range(17)) * 10))
    assert loop_mask([]) == []


@given(st.lists(st.integers(0, 2), max_size=120))
def test_the_mask_agrees_with_its_definition(tokens):
    expected = [False] * len(tokens)
    for period in range(1, 17):
        for start in range(len(tokens) - 48 + 1):
            stretch = tokens[start : start + 48]
            if all(stretch[i] == stretch[i - period] for i in range(period, 48)):
                expected[start : start + 48] = [True] * 48
    assert loop_mask(tokens) == expected


def pair(answer: str, text: str, *, speculative_ids, plain_ids=None, kind="quote") -> TaskPair:
    count = len(speculative_ids)
    plain = TaskRun(list(plain_ids or speculative_ids), text, [3.0] * count, [1.0] * count)
    fast = TaskRun(list(speculative_ids), text, [1.0] * count, [0.5] * count)
    return TaskPair(Task(kind, "p", answer), plain, fast, drafted=10, accepted=5)


def test_a_row_counts_correct_identical_outputs_only():
    good = pair("yes", "yes", speculative_ids=[1, 2, 3, 4])
    wrong = pair("yes", "no", speculative_ids=[1] * 10)
    differs = pair("yes", "yes", speculative_ids=[5, 6], plain_ids=[5, 7])
    row = summarise("quote", [good, wrong, differs])
    assert (row.tasks, row.identical, row.tokens) == (3, 2, 4)
    assert row.correct_share == pytest.approx(2 / 3)
    assert row.tokens_per_step == 2.0
    assert row.speedup == 3.0
    assert row.acceptance_rate == 0.5


def test_tokens_in_loops_are_left_out_and_a_row_of_nothing_says_so():
    row = summarise("code", [pair("", "x", speculative_ids=[9, 8] + [1] * 50, kind="code")])
    assert (row.correct_share, row.tokens, row.loop_share) == (None, 2, pytest.approx(50 / 52))
    row = summarise("json", [pair("{}", "nonsense", speculative_ids=[1, 2], kind="json")])
    assert (row.tokens_per_step, row.speedup, row.tokens) == (None, None, 0)


class FakeEngine:
    """Emits its tokens in steps of a given size, and keeps the order it was called in."""

    def __init__(self, name: str, size: int, log: list[str]) -> None:
        self.name, self.size, self.log = name, size, log
        self.metrics = SpecMetrics(("x",), 4, "cpu")

    def stream(self, requests):
        self.log.append(self.name)
        for start in range(0, 6, self.size):
            ids = list(range(start, min(6, start + self.size)))
            yield TextUpdate(index=0, text="".join(map(str, ids)), token_ids=ids)


def test_engines_take_turns_and_steps_are_shared_among_their_tokens():
    log: list[str] = []
    tasks = [Task("quote", "p", "012345")] * 3
    seen: list[Task] = []
    pairs = run_pairs(tasks, FakeEngine("plain", 1, log), FakeEngine("fast", 4, log), 10, seen.append)
    assert log == ["plain", "fast", "fast", "plain", "plain", "fast"]
    assert len(seen) == 3
    assert all(p.identical and p.speculative.text == "012345" for p in pairs)
    assert pairs[0].plain.steps == [1.0] * 6
    assert pairs[0].speculative.steps == [0.25] * 4 + [0.5] * 2
    assert summarise("quote", pairs).tokens_per_step == 3.0
