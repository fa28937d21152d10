"""SpecMetrics against counting by hand, row by row."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.counts import NO_SOURCE, OFF_SOURCE, SourceCounts
from specplug.errors import ContractError
from specplug.metrics import SpecMetrics
from specplug.types.step import Outcome, Verdict

SOURCES = ("own text", "references")
DRAFT_LENGTH = 4


def step(rows: list[dict], device: str = "cpu") -> tuple[torch.Tensor, Verdict]:
    """One step's sources, one for a row or one for each token, and its verdict; omitted values are 0."""

    def column(name):
        return torch.tensor([row.get(name, 0) for row in rows], dtype=torch.int32).to(device)

    given = [row.get("source", -1) for row in rows]
    sources = [list(source) if isinstance(source, tuple) else [source] * DRAFT_LENGTH for source in given]
    source = torch.tensor(sources, dtype=torch.int32).view(-1, DRAFT_LENGTH).to(device)
    fields = ("verified", "accepted", "emitted", "cut_by_grammar", "after_stop")
    return source, Verdict.build(column("proposed"), Outcome(*map(column, fields)))


STEP = [
    {"source": 0, "proposed": 4, "verified": 4, "accepted": 2, "emitted": 3},
    {"source": 0, "proposed": 3, "verified": 1, "accepted": 1, "emitted": 2},  # two dropped by the engine
    {"source": 1, "proposed": 3, "verified": 1, "accepted": 0, "emitted": 1, "cut_by_grammar": 2},
    {"source": 1, "proposed": 2, "verified": 2, "accepted": 2, "emitted": 3, "after_stop": 2},
    {"emitted": 1},  # plain decoding
    {},  # a prefill chunk
]


def recorded(*steps: list[dict]) -> SpecMetrics:
    metrics = SpecMetrics(SOURCES, DRAFT_LENGTH)
    for rows in steps:
        metrics.record(*step(rows))
    return metrics


class TestCounts:
    def test_tau_is_the_tokens_of_clients_by_steps(self):
        """Answers of 2 tokens and the end of sequence, drafted with 2 further tokens, which nobody receives."""
        first = {"emitted": 1}
        drafted = {"source": 0, "proposed": 4, "verified": 4, "accepted": 4, "emitted": 5, "after_stop": 3}
        overrun = {"source": 0, "proposed": 4, "verified": 4, "accepted": 0, "emitted": 1, "after_stop": 1}
        total = recorded(*[[first], [drafted], [overrun]] * 50).snapshot().total
        assert (total.emitted, total.target_steps, total.tau) == (50 * 3, 50 * 2, 3 / 2)
        assert (total.accepted, total.rejected, total.wasted, total.never_verified) == (50, 0, 0, 50 * 3)
        assert total.acceptance_by_position == (1.0, None, None, None)

    def test_one_step(self):
        own, references, unknown = recorded(STEP).snapshot().by_source.values()
        assert own == SourceCounts(
            target_steps=2,
            proposed=7,
            cut_by_grammar=0,
            emitted=5,
            after_stop=0,
            verified_at=(2, 1, 1, 1),
            tested_at=(2, 1, 1, 0),
            accepted_at=(2, 1, 0, 0),
        )
        assert (own.verified, own.tested, own.accepted) == (5, 4, 3)
        assert (own.rejected, own.wasted, own.never_verified) == (1, 2, 2)
        assert own.acceptance_rate == 3 / 7
        assert own.verified_acceptance_rate == 3 / 5
        assert own.acceptance_by_position == (1.0, 1.0, 0.0, None)
        assert own.tau == 5 / 2
        assert (references.rejected, references.never_verified, references.cut_by_grammar) == (1, 2, 2)
        assert (references.emitted, references.after_stop) == (2, 2)
        assert (unknown.target_steps, unknown.emitted, unknown.proposed) == (1, 1, 0)

    def test_total_counts_plain_rows_too(self):
        total = recorded(STEP).snapshot().total
        assert total.target_steps == 5
        assert total.tau == 8 / 5
        assert total.acceptance_rate == 3 / 12

    def test_nothing_recorded_has_no_ratios(self):
        total = SpecMetrics((), 2).snapshot().total
        assert (total.acceptance_rate, total.verified_acceptance_rate, total.tau) == (None, None, None)
        assert total.acceptance_by_position == (None, None)

    @given(st.data())
    @settings(max_examples=50, deadline=None)
    def test_against_plain_python(self, data):
        steps = data.draw(st.lists(st.lists(random_rows(), max_size=4), max_size=3))
        snapshot = recorded(*steps).snapshot()
        rows = [row for rows in steps for row in rows]
        for name, counts in snapshot.by_source.items():
            mine = [r for r in rows if who(r["source"][0]) == name]
            assert counts.target_steps == sum(seen(r) > 0 for r in mine)
            assert counts.emitted == sum(seen(r) for r in mine)
            assert counts.after_stop == sum(r["after_stop"] for r in mine)
            for field, reached in REACHED.items():
                at = [sum(who(r["source"][p]) == name and p in reached(r) for r in rows) for p in range(DRAFT_LENGTH)]
                assert getattr(counts, field) == sum(at), field
                assert field in ("proposed", "cut_by_grammar") or getattr(counts, f"{field}_at") == tuple(at), field
            assert counts.proposed == counts.verified + counts.cut_by_grammar + counts.never_verified
            assert counts.verified == counts.accepted + counts.wasted
        assert snapshot.total.rejected == sum(r["accepted"] < r["verified"] and not r["after_stop"] for r in rows)


def who(source: int) -> str:
    return SOURCES[source] if source in (0, 1) else NO_SOURCE


def seen(row: dict) -> int:
    """Emitted tokens that reach the client."""
    return row["emitted"] - row["after_stop"]


def until_end(row: dict, count: int) -> range:
    """The places below `count`; of a row that ended within its draft, those before its last token."""
    return range(min(count, seen(row) - 1) if row["after_stop"] else count)


def left(row: dict) -> int:
    return row["proposed"] if seen(row) or not row["emitted"] else 0


REACHED = {
    "proposed": lambda row: range(left(row)),
    "cut_by_grammar": lambda row: range(max(0, left(row) - row["cut_by_grammar"]), left(row)),
    "verified": lambda row: until_end(row, row["verified"]),
    "tested": lambda row: until_end(row, min(row["accepted"] + 1, row["verified"])),
    "accepted": lambda row: until_end(row, row["accepted"]),
}
"""Which places of a row's draft count."""


@st.composite
def random_rows(draw):
    proposed = draw(st.integers(0, DRAFT_LENGTH))
    cut = draw(st.integers(0, proposed))
    verified = draw(st.integers(0, proposed - cut))
    accepted = draw(st.integers(0, verified))
    emitted = draw(st.sampled_from([0, accepted + 1]))
    return {
        "source": draw(st.tuples(*[st.integers(-1, 3)] * DRAFT_LENGTH)),  # 2 and 3 are out of range
        "proposed": proposed,
        "verified": verified,
        "accepted": accepted,
        "cut_by_grammar": cut,
        "emitted": emitted,
        "after_stop": draw(st.integers(0, emitted)),
    }


class TestOff:
    """Rows that could not draft are no evidence of what drafts are worth."""

    def test_so_have_rows_of_requests_that_take_no_drafts(self):
        plain = {"emitted": 1}
        off = torch.tensor([False, True, False, True])
        rows = [STEP[0], plain, plain, {"emitted": 1, "after_stop": 1}]
        metrics = SpecMetrics(SOURCES, DRAFT_LENGTH)
        metrics.record(*step(rows), off)
        metrics.record_plain(step([plain] * 4)[1], off)
        counts = metrics.snapshot().by_source
        assert [counts[name].target_steps for name in (SOURCES[0], NO_SOURCE, OFF_SOURCE)] == [1, 3, 3]
        assert (counts[SOURCES[0]].emitted, counts[OFF_SOURCE].after_stop) == (3, 1)

    def test_they_have_a_source_of_their_own(self):
        metrics = recorded([STEP[0]])
        before = metrics.snapshot()
        assert OFF_SOURCE not in before.by_source, "while there are none"
        metrics.record_on_host(5, after_stop=1, planned=False)
        metrics.record_on_host(2)
        spent = metrics.snapshot() - before
        assert (spent.by_source[OFF_SOURCE].target_steps, spent.by_source[OFF_SOURCE].emitted) == (4, 4)
        assert (spent.by_source[NO_SOURCE].target_steps, spent.total.target_steps) == (2, 6)
        assert spent.total.after_stop == 1


class TestSnapshot:
    def test_difference_is_what_happened_in_between(self):
        metrics = recorded(STEP, STEP)
        metrics.count_fault("slow", "late")
        before = metrics.snapshot()
        metrics.record(*step(STEP))
        metrics.count_fault("slow", "late")
        metrics.count_fault("slow", "switched off")
        spent = metrics.snapshot() - before
        assert spent.by_source == recorded(STEP).snapshot().by_source
        assert spent.faults == {"slow": {"late": 1, "switched off": 1}}
        assert (metrics.snapshot() - metrics.snapshot()).faults == {}

    def test_a_snapshot_does_not_move(self):
        metrics = recorded(STEP)
        metrics.count_fault("slow", "late")
        before = metrics.snapshot()
        twin = metrics.snapshot()
        metrics.record(*step(STEP))
        metrics.count_fault("slow", "late")
        assert before == twin
        assert metrics.snapshot() != before

    def test_snapshots_of_different_metrics_do_not_subtract(self):
        with pytest.raises(ContractError, match=r"different metrics; found .*'none'\]; expected .*\['own"):
            recorded(STEP).snapshot() - SpecMetrics((), DRAFT_LENGTH).snapshot()

    def test_as_dict_is_json_of_every_field(self):
        metrics = recorded(STEP)
        metrics.count_fault("slow", "raised")
        plain = json.loads(json.dumps(metrics.snapshot().as_dict(), allow_nan=False))
        assert plain["faults"] == {"slow": {"raised": 1}}
        assert plain["total"]["tau"] == 1.6
        assert plain["by_source"]["own text"]["acceptance_by_position"] == [1.0, 1.0, 0.0, None]
        public = {name for name in dir(SourceCounts) if not name.startswith("_")} - {"as_dict"}
        assert set(plain["total"]) == public


class TestRecording:
    def test_needs_no_values(self):
        """Tensors on the meta device hold no values, so code that needs one raises."""
        metrics = SpecMetrics(SOURCES, DRAFT_LENGTH, device="meta")
        metrics.record(*step(STEP, device="meta"))
        with pytest.raises((NotImplementedError, RuntimeError)):
            metrics.snapshot()

    def test_empty_batches_and_rows_without_drafts(self):
        metrics = SpecMetrics(SOURCES, DRAFT_LENGTH)
        metrics.record(*step([]))
        metrics.record(*step([{"emitted": 1}]))
        assert metrics.snapshot().total.emitted == 1

    @pytest.mark.parametrize("sources", [("a", "a"), ("a", NO_SOURCE)])
    def test_refuses_sources_that_cannot_be_reported_apart(self, sources):
        with pytest.raises(ContractError, match=r"cannot be told apart; found \['a'.*; expected distinct names other"):
            SpecMetrics(sources, DRAFT_LENGTH)
