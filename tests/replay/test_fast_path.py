"""The lean stage does what the draft stage does, whatever a proposer does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specplug.replay.engine import ReplayEngine
from specplug.replay.fast_path import FastPathStage
from specplug.replay.interleaved import replay_interleaved
from specplug.replay.run import replay
from specplug.replay.setup import Setup
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from tests.replay.tools import ITEMS, VOCAB, Planted, PlantedPolicy, item, registry

TOKENS = st.lists(st.sampled_from([-1, 0, 1, 1, 2, 2, 3, VOCAB]), max_size=6)
LEVELS = st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0, float("nan"), float("inf")])
SCRIPT = st.lists(
    st.tuples(TOKENS, LEVELS, st.sampled_from([-3, 0, 0, 1, 7]), st.sampled_from(["", "", "", "raise", "resize"])),
    min_size=1,
    max_size=8,
)


class Unruly(Planted):
    """Drafts by a script, wrong in every way, and notes all that it is handed."""

    sources = ("one", "two")

    def __init__(self, script: list[Any], trees: bool) -> None:
        super().__init__()
        self._script, self._trees, self._step = script, trees, 0
        self.log: list[Any] = []

    def ingest(self, batch):
        columns = [batch.slots, batch.generations, batch.lengths, batch.num_new, batch.reset_slots]
        self.log.append(["ingest", *[list(map(int, column)) for column in columns]])

    def propose(self, batch, limits, draft):
        self._step += 1
        ids, level, source, action = self._script[self._step % len(self._script)]
        self.log.append(["propose", limits.tolist(), draft.base_len.tolist(), *map(plain, fields(draft))])
        for row in range(batch.batch_size):
            count = min(len(ids), draft.draft_length)
            for place in range(count):
                draft.token_ids[row, place] = ids[place]
                draft.confidence[row, place] = level
                draft.source[row, place] = source + place
                if self._trees and draft.parents is not None:
                    draft.parents[row, place] = (ids[place] + row) % (place + 2) - 1
            draft.lengths[row] = len(ids)
        if action == "raise":
            raise ZeroDivisionError
        if action == "resize":
            draft.token_ids.resize_(1, 1)

    def observe(self, batch, draft, verdict):
        fates = [getattr(verdict, name).tolist() for name in type(verdict).__slots__]
        self.log.append(["observe", batch.lengths.tolist(), batch.num_new.tolist(), *map(plain, fields(draft)), *fates])


def fields(draft: Draft) -> list[Any]:
    return [
        draft.token_ids,
        draft.lengths,
        draft.confidence,
        draft.source,
        draft.base_len,
        draft.parents,
        draft.sources,
    ]


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@given(
    ITEMS,
    SCRIPT,
    st.sampled_from([{"inline": True}, {"inline": True, "incremental": True}, {}, {"needs_host": False}]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 12),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
@example([item([1], [1] * 8), item([2], [1] * 8, "b")], [([1, 1, 1, 2], 0.5, 0, "")], {}, False, True, 2, 3, False)
def test_fast_path_and_full_stages_count_and_tell_the_same(
    items, script, caps, makes_trees, takes_trees, slots, budget, capped
):
    found = []
    for fast_path in (True, False):
        proposers: list[Unruly] = []

        def build(context, proposers=proposers):
            proposers.append(Unruly(script, makes_trees))
            return proposers[-1]

        caps_rows = PlantedPolicy(lambda stats: StepPlan(5, None, {"request-0": 2, "request-1": 0}))
        setup = Setup(
            "planted",
            "planted" if capped else "fixed",
            5,
            {"fixed": {"token_budget": budget}},
            trees=takes_trees,
            fast_path=fast_path,
            settings={"faults": {"max_consecutive": 2, "cooldown_steps": 3}},
        )
        plugins = registry(build, caps_rows, learns=True, trees=makes_trees, **{"needs_host": True, **caps})
        result = replay_interleaved(items, setup, batch=slots, vocab_size=VOCAB, registry=plugins)
        found.append([result.counts.rows(), result.faults, result.calibration.sums.tolist(), proposers[0].log])
    assert found[0] == found[1]


@given(ITEMS, st.booleans(), st.sampled_from(["fixed", "batch"]))
@settings(max_examples=30, deadline=None)
def test_fast_path_and_full_stages_agree_on_ngrams(items, trees, policy):
    options = {"fixed": {"token_budget": 9}, "batch": {"saturation": 9}}
    counts = [
        replay(items, Setup("ngram", policy, 5, options, trees=trees, fast_path=fast_path), batch=3).counts
        for fast_path in (True, False)
    ]
    assert counts[0] == counts[1]


def test_several_proposers_and_traces_need_the_full_stage(tmp_path):
    plugins = registry(lambda context: Planted(), needs_host=True)
    for more, uses_fast_path in [
        ({}, True),
        ({"extra_proposers": ["planted"]}, False),
        ({"trace": {"path": str(tmp_path / "trace.jsonl")}}, False),
    ]:
        engine = ReplayEngine(Setup(settings=more), max_length=16, vocab_size=VOCAB, registry=plugins)
        assert isinstance(engine._stage, FastPathStage) is uses_fast_path
        engine.close()


@pytest.mark.parametrize("fast_path", [True, False])
def test_faults_are_counted(fast_path):
    def fail(batch, row, limit):
        raise ZeroDivisionError

    found = replay(
        [item([1], [2, 2])], Setup("planted", "fixed", fast_path=fast_path), registry=registry(lambda c: Planted(fail))
    )
    assert found.faults == {"planted": {"raised": 2}}
