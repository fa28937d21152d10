from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.errors import EngineError
from specplug.plugins.registry import Owner, Registry
from specplug.tools.replay.engine import ReplayEngine, Setup
from specplug.tools.replay.run import replay
from specplug.tools.replay.slots import PLENTY
from specplug.types.request import Lifecycle
from specplug.types.step import StepPlan
from tests.tools.replay.tools import EOS, ITEMS, VOCAB, Planted, PlantedPolicy, in_turn, item, registry

SAME = item([1, 2, 3], [1, 2, 3, 1, 2, 3, 1, 2])
STATELESS = Setup("ngram-reference", "fixed", 4, {"ngram-reference": {"min_n": 1}})


def planted(proposer: Any, items: list[Any], *, policy: PlantedPolicy | None = None, **given: Any) -> Any:
    """Replay `items` with a planted proposer; with `slots`, so many at a time, and return the counts."""
    caps = given.pop("caps", {"needs_host": True, "inline": True})
    setup = Setup(proposer="planted", policy="planted" if policy else "fixed", **given.pop("setup", {"gamma": 4}))
    plugins = {"registry": registry(lambda context: proposer, policy, **caps), "vocab_size": VOCAB}
    slots = given.pop("slots", None)
    if slots is not None:
        return in_turn(ReplayEngine(setup, max_length=64, slots=slots, **plugins), items, slots)
    return replay(items, setup, **plugins, **given)


def test_counts_by_hand():
    drafts = iter([[1, 2, 9], [3], [], [2, 2]])  # 9 is no token: the whole draft is dropped
    proposer = Planted(lambda batch, row, limit: next(drafts))
    found = planted(proposer, [item([5], [1, 2, 3, 2, 2])], caps={"needs_host": True}, setup={"gamma": 3})
    #  prefill: 1 | dropped: 2 | 3 + bonus 2 | 2 | drafted 2, 2 where only the end is left
    assert found.counts.histogram == {(0, 0, 1): 2, (1, 1, 2): 1, (2, 0, 1): 1}
    assert found.faults == {"planted": {"malformed": 1}}
    assert found.items == 1


def test_an_output_that_ends_inside_a_draft_decides_nothing_behind_its_end():
    proposer = Planted(lambda batch, row, limit: [2, EOS, 1, 1])
    found = planted(proposer, [item([5], [1, 2])], caps={"needs_host": True, "inline": True, "learns": True})
    assert found.counts.histogram == {(4, 2, 2): 1}
    assert found.calibration.count == 2
    assert found.calibration.brier == pytest.approx(0.25)
    assert (found.survival.count, found.survival.brier) == (2, pytest.approx((0.5**2 + 0.75**2) / 2))
    ((batch, draft, verdict),) = proposer.observed
    assert (batch.lengths.tolist(), draft.lengths.tolist(), verdict.tested().tolist()) == ([4], [4], [2])


@pytest.mark.parametrize("caps", [{"needs_host": True}, {"needs_host": True, "inline": True}, {}])
def test_reading_past_the_context_gains_nothing(caps):
    def cheat(batch, row, limit):
        stop = int(batch.lengths[row])
        return batch.tokens[int(batch.rows[row]), stop : stop + limit].tolist()

    items = [SAME, SAME, item([1], [1, 2])]
    plain = replay(items, Setup(policy="none"), vocab_size=VOCAB).counts
    found = [planted(Planted(cheat), items, caps=caps, mode=mode).counts for mode in ("serving", "cold")]
    for counts in (*found, planted(Planted(cheat), items, caps=caps, slots=2)):
        assert (counts.emitted, counts.accepted) == (plain.emitted, 0)


def test_nothing_tells_where_an_output_ends():
    seen = []

    def look(batch, row, limit):
        seen.append((int(batch.room[row] + batch.lengths[row]), limit, batch.requests[row].max_tokens))
        return ()

    planted(Planted(look), [SAME, item([1], [2])])
    ((end, limit, most),) = set(seen)
    assert (limit, most) == (4, PLENTY)
    assert end > PLENTY


def test_requests_live_as_in_an_engine():
    proposer = Planted()
    items = [item([1, 2], [3, 1], "a", [[1, 1]]), item([2], [2], "b")]
    planted(proposer, items)
    repeats = [(e.kind, e.request.request_id, e.slot, e.generation, e.visible) for e in proposer.events]
    assert repeats == [
        (Lifecycle.STARTED, "a", 0, 1, None),
        (Lifecycle.FINISHED, "a", 0, 1, 5),
        (Lifecycle.STARTED, "b", 0, 2, None),
        (Lifecycle.FINISHED, "b", 0, 2, 3),
    ]
    assert all(not e.request.references and e.request.isolation_key == "" for e in proposer.events)
    assert proposer.texts == {(0, 1): [1, 2, 3, 1, EOS], (0, 2): [2, 2, EOS]}


def test_documents_are_references_when_requested():
    proposer = Planted()
    planted(proposer, [item([1, 2], [3], "a", [[1, 1], []])], setup={"gamma": 4, "references": True})
    (reference,) = proposer.events[0].request.references
    assert reference.token_ids.tolist() == [1, 1]


def test_cold_builds_anew_and_serving_keeps():
    for mode, lives in (("cold", 3), ("serving", 1)):
        built = []

        def build(context, built=built):
            built.append(Planted())
            return built[-1]

        replay(
            [SAME] * 3, Setup(proposer="planted", policy="fixed"), mode=mode, vocab_size=VOCAB,
            registry=registry(build, needs_host=True),
        )  # fmt: skip
        assert len(built) == lives
        assert sum(len(each.events) for each in built) == 6


@given(ITEMS, st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_requests_in_flight_do_not_disturb_each_other(items, slots):
    """If a proposer keeps no state across requests, a batch's counts are those of its requests alone."""
    engine = ReplayEngine(STATELESS, max_length=64, vocab_size=VOCAB, slots=slots)
    assert in_turn(engine, items, slots) == replay(items, STATELESS, mode="cold", vocab_size=VOCAB).counts


def test_in_flight_requests_finish_and_make_room():
    proposer = Planted()
    items = [item([1], [1] * 5, "long"), item([2], [2], "short"), item([3], [3], "next"), item([1], [], "end")]
    sizes = []
    policy = PlantedPolicy(lambda stats: sizes.append(len(stats.requests)) or StepPlan(0))
    found = planted(proposer, items, policy=policy, slots=2)
    repeats = [(e.kind.value, e.request.request_id, e.slot) for e in proposer.events]
    assert repeats == [
        ("started", "long", 0),
        ("started", "short", 1),
        ("finished", "short", 1),
        ("started", "next", 1),
        ("finished", "next", 1),
        ("started", "end", 1),
        ("finished", "end", 1),
        ("finished", "long", 0),
    ]
    assert sizes == [2, 2, 1, 1, 1]
    assert found.histogram == {(0, 0, 1): 7}


@pytest.mark.parametrize(("budget", "trimmed"), [(10, {(32, 10)}), (128, set())])
def test_a_policy_is_reported_the_batch_which_a_budget_that_suffices_leaves_whole(budget, trimmed):
    policy = PlantedPolicy(lambda stats: StepPlan(4, token_budget=budget))
    found = planted(Planted(lambda batch, row, limit: [1] * limit), [SAME], policy=policy, batch=32)
    assert {len(stats.requests) for stats in policy.stats} == {32}
    assert set(policy.trimmed) == trimmed
    assert found.counts.drafts_per_step == 4


def test_a_policy_sees_what_became_of_drafts():
    policy = PlantedPolicy(lambda stats: StepPlan(2))
    planted(Planted(lambda batch, row, limit: [1, 2]), [item([3], [1, 1, 2, 1, 1])], policy=policy)
    # prefill: 1 | drafted 1, 2 and right: 1, 2, 1 | drafted 1, 2, of which 1 is right: 1 and the end
    assert [stats.requests[0][1:] for stats in policy.stats] == [
        (2, PLENTY, None, 0, 0, 0),
        (5, PLENTY, None, 2, 2, 0),
    ]


def test_a_trimmer_may_cut_without_a_budget():
    policy = PlantedPolicy(lambda stats: StepPlan(4))
    requested = []
    policy.cuts_without_budget = lambda batch_size, draft_length: requested.append((batch_size, draft_length)) or True
    planted(Planted(lambda batch, row, limit: ()), [SAME], policy=policy, batch=32)
    assert set(requested) == {(32, 4)}
    assert set(policy.trimmed) == {(32, 128)}  # also where nothing was drafted: it may learn from that


@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=12),
    st.integers(2, 5),
    st.integers(0, 24),
    st.sampled_from(["fixed", "batch"]),
)
@settings(max_examples=20, deadline=None)
def test_one_request_stands_for_a_batch_of_equal_ones(text, batch, budget, policy):
    """The measured request verifies what the first of B real ones does."""
    few = {"saturation": 9, "token_budget": budget}
    options = {"ngram": {"min_n": 1}, "fixed": {"token_budget": budget}, "batch": few}
    setup = Setup(gamma=4, policy=policy, options=options)
    recorded = item(text, [])
    repeats = ReplayEngine(setup, max_length=32, vocab_size=VOCAB, repeats=batch)
    real = ReplayEngine(setup, max_length=32, vocab_size=VOCAB, slots=batch)
    repeats.start(0, "a", recorded.prompt)
    for slot in range(batch):
        real.start(slot, f"request-{slot}", recorded.prompt)
    assert repeats.propose() == real.propose()[:1]
    for engine in (repeats, real):
        engine.close()


def test_progress_is_reported():
    seen = []
    replay([SAME, SAME], STATELESS, vocab_size=VOCAB, advance=lambda: seen.append(1))
    assert len(seen) == 2


def test_a_text_that_does_not_fit_is_an_error():
    engine = ReplayEngine(STATELESS, max_length=4, vocab_size=VOCAB)
    engine.start(0, "a", SAME.prompt)
    engine.extend(0, [1])
    with pytest.raises(EngineError, match="does not fit"):
        engine.extend(0, [1])
    engine.close()


def test_what_a_proposer_holds_is_noted_at_its_most():
    sizes = iter([10, 30, 20])
    proposer = Planted()
    proposer.memory = lambda: next(sizes)
    assert planted(proposer, [SAME] * 3).memory == 30


def test_a_setups_settings_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("SPECPLUG_CONFIG", '{"policy": "none", "num_speculative_tokens": 3}')
    setup = Setup(gamma=2)
    assert replay([SAME], setup, vocab_size=VOCAB).counts.verified == 0
    verified = {key[0] for key in replay([SAME], Setup(gamma=2, policy="fixed"), vocab_size=VOCAB).counts.histogram}
    assert max(verified) == 2


def test_calibration_is_of_what_was_decided():
    found = replay([SAME], STATELESS, vocab_size=VOCAB)
    decided = Counter()
    for (verified, accepted, emitted), count in found.counts.histogram.items():
        decided[True] += accepted * count
        decided[False] += count * (verified > accepted and emitted > accepted)
    assert found.calibration.count == decided[True] + decided[False]
    assert found.calibration.sums[2].sum() == decided[True]


@pytest.mark.parametrize("batch", [1, 8])
def test_a_policy_of_somebody_elses_learns(monkeypatch, batch):
    """The plan half receives the drafts' outcomes in as many rows as configured, the trim half in one."""
    found = Registry.discover()
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "engines" / "plugins"))
    found.add(importlib.import_module("specplug_testkit.plugin"), Owner("testkit", "specplug-testkit", "0"))
    built: list[Any] = []
    get = found.get

    def noting(spec_type: Any, name: str) -> Any:
        spec = get(spec_type, name)
        if name != "learner":
            return spec
        halves = {"factory": spec.build, "trimmer": spec.build_trimmer}
        return replace(spec, **{half: lambda context, make=make: noted(make(context)) for half, make in halves.items()})

    def noted(half: Any) -> Any:
        built.append(half)
        return half

    found.get = noting
    setup = Setup("ngram-reference", "learner", 4, {"ngram-reference": {"min_n": 1}})
    result = replay([SAME, SAME], setup, registry=found, vocab_size=VOCAB, batch=batch)
    assert result.faults == {}
    trimmer, planner = built
    steps = sum(result.counts.histogram.values())
    assert [report.step for report in planner.reports] == [*range(steps)]
    assert {report.requests for report in planner.reports} == {batch}
    accepted = sum(count * times for (_, count, _), times in result.counts.histogram.items())
    assert sum(report.accepted for report in planner.reports) == batch * accepted > 0
    assert int(trimmer.counts[1]) == accepted
    assert float(trimmer.price) == pytest.approx(planner.prices[-1])
