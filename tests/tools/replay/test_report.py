"""Counts of a replay, their calibration, and the tables and JSON that are made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.tools.replay.calibration import FINE_BINS, RANKS, Calibration, merge_calibrations, rank_of
from specplug.tools.replay.engine import Setup
from specplug.tools.replay.report import ReplayReport
from specplug.tools.replay.run import ReplayRun
from specplug.tools.replay.score import Result, ScoringRoofline, StepCounts, mean_speedup, pool

FOUR = StepCounts.from_rows([[4, 4, 5, 2], [4, 0, 1, 3], [0, 0, 1, 5]])


def test_counts_by_hand():
    assert (FOUR.steps, FOUR.verified, FOUR.accepted, FOUR.emitted) == (10, 20, 8, 18)
    assert FOUR.tau == pytest.approx(1.8)
    assert FOUR.acceptance_rate == pytest.approx(0.4)
    assert FOUR.drafts_per_step == pytest.approx(2)
    assert FOUR.waste == pytest.approx(12 / 18)


def test_speedup_by_hand():
    assert FOUR.speedup(1) == pytest.approx(18 / (10 * 1.02))
    # at 128, 5 steps of 128 * 5 tokens and 5 steps of 128
    assert FOUR.speedup(128) == pytest.approx(18 / (5 * (2.5 + 0.02) + 5 * (1 + 0.02)))
    # at 256, even a single token fills the step
    assert FOUR.speedup(256) == pytest.approx(18 / (5 * 5.02 + 5 * 1.02))
    assert FOUR.speedup(8, ScoringRoofline(n_sat=16, overhead=0.5)) == pytest.approx(18 / (5 * 3.0 + 5 * 1.5))


def test_pooled_histograms_add_and_means_are_geometric():
    once = StepCounts.from_rows([[0, 0, 1, 7]])
    both = pool([FOUR, once])
    assert both.rows() == [[0, 0, 1, 12], [4, 0, 1, 3], [4, 4, 5, 2]]
    product = FOUR.speedup(64) * once.speedup(64)
    assert mean_speedup([FOUR, once, StepCounts()], 64) == pytest.approx(product**0.5)


def test_nothing_counted_is_nothing_divided():
    nothing = StepCounts()
    assert nothing.tau == nothing.acceptance_rate == nothing.waste == nothing.speedup(8) == 0
    assert mean_speedup([nothing], 8) == 0
    empty = Calibration()
    assert (empty.brier, empty.auc, empty.curve(), empty.as_dict(), merge_calibrations([]).as_dict()) == (
        0,
        None,
        [],
        None,
        None,
    )


def test_calibration_by_hand():
    seen = Calibration()
    seen.add([(0.9, True), (0.8, True), (0.5, False), (0.9, False)])
    seen.add([(1.0, True)])
    assert seen.count == 5
    assert seen.brier == pytest.approx((0.01 + 0.04 + 0.25 + 0.81 + 0) / 5)
    curve = seen.curve()
    assert [(bin.count, round(bin.confidence, 6), bin.acceptance) for bin in curve] == [
        (1, 0.5, 0.0),
        (1, 0.8, 1.0),
        (3, pytest.approx(2.8 / 3), pytest.approx(2 / 3)),
    ]
    assert seen.auc == pytest.approx((1.0 + 0.5 + 1.0 + 1.0 + 0.0 + 1.0) / 6)
    assert seen.error == pytest.approx((0.5 + 0.2 + 3 * abs(2.8 / 3 - 2 / 3)) / 5)


def test_calibrations_of_workloads_add():
    one, other = Calibration(), Calibration()
    one.add([(0.25, True), (0.75, True), (0.125, False)] * 3000)
    other.add([(0.5, True)] * 3000)
    both = merge_calibrations([one, other])
    assert both.count == 12_000
    assert both.sums.shape == (4, FINE_BINS)
    assert both.ranks.sum() == 12_000
    assert both.brier == pytest.approx((3000 * (0.5625 + 0.0625 + 0.015625) + 3000 * 0.25) / 12_000)


OURS, TREES = Setup("ngram", "fixed", gamma=4), Setup("ngram-tree", "fixed", gamma=4, trees=True)
PROBABILITIES = st.integers(0, 1 << 24).map(lambda count: count / (1 << 24))


def result(*rows: tuple[int, int, int, int], confidence: float | None = None, **rest) -> Result:
    calibration, survival = Calibration(), Calibration()
    for n, a, _, steps in rows:
        for _ in range(steps if confidence is not None else 0):
            calibration.add([(confidence, k < a) for k in range(min(n, a + 1))])
            survival.add([(confidence ** (k + 1), k < a) for k in range(n)])
    return Result(StepCounts.from_rows(rows), calibration, survival, items=2, **rest)


def report() -> ReplayReport:
    """Two workloads at two batch sizes, of a proposer of chains and one of trees, whose confidences are not judged."""
    of_trees = result((4, 1, 2, 10)), result((4, 0, 1, 10))
    runs = [
        (OURS, 1, (result((4, 3, 4, 10), confidence=0.8), result((1, 0, 1, 10), confidence=0.3))),
        (OURS, 128, (result((1, 1, 2, 10)), result((0, 0, 1, 10)))),
        (TREES, 1, of_trees),
        (TREES, 128, of_trees),
    ]
    return ReplayReport(
        [ReplayRun(setup, "serving", batch, {"edit": edit, "chat": chat}) for setup, batch, (edit, chat) in runs],
        ScoringRoofline(),
    )


def scores(shown: ReplayReport, what: str) -> list[tuple[str, ...]]:
    return list(next(it.rows for it in shown.tables() if it.title == f"{what} against acceptance at batch size 1"))


def tables(shown: ReplayReport) -> dict[str, dict[tuple[str, str], tuple[str, ...]]]:
    return {
        table.title: {
            row[:2]: tuple(cell for cell, _ in zip(row[2:], table.columns[2:], strict=True)) for row in table.rows
        }
        for table in shown.tables()
    }


def test_drafts_are_shown_by_workload_and_pooled():
    shown = tables(report())["Drafts at batch size 1, gamma 4, serving"]
    assert shown[OURS.label, "edit"] == ("2", "40", "10", "4.00", "75%", "4.00", "0.25", "0")
    assert shown[OURS.label, "pooled"] == ("4", "50", "20", "2.50", "60%", "2.50", "0.40", "")
    assert shown[TREES.label, "chat"][3:7] == ("1.00", "0%", "4.00", "4.00")


def test_speedups_are_shown_by_batch_size_with_their_geometric_mean_beside_no_drafts():
    shown = tables(report())["Speed-up S(B) over plain decoding, gamma 4, serving"]
    assert shown[OURS.label, "edit"] == (f"{4 / 1.02:.2f}", f"{2 / 1.02:.2f}")
    assert shown[OURS.label, "chat"] == ("0.98", "0.98")
    assert shown[OURS.label, "geometric mean"] == (f"{(4 / 1.02**2) ** 0.5:.2f}", f"{(2 / 1.02**2) ** 0.5:.2f}")
    assert shown[TREES.label, "edit"] == (f"{2 / 1.02:.2f}", f"{2 / (128 * 5 / 256 + 0.02):.2f}")
    assert shown["no drafts", ""] == ("0.98", "0.98")


def test_all_workloads_together_are_shown_by_batch_size():
    shown = tables(report())["All workloads pooled, by batch size, gamma 4, serving"]
    assert shown[OURS.label, "tau"] == ("2.50", "1.50")
    assert shown[OURS.label, "accepted"] == ("60%", "100%")
    assert shown[OURS.label, "waste"] == ("0.40", "0.00")


def test_only_decided_tokens_of_chains_count_as_reliability():
    shown = tables(report())
    assert TREES.label not in {label for label, _ in shown["Confidence against acceptance at batch size 1"]}
    rows = {row[:3]: row[3:] for row in scores(report(), "Confidence")}
    assert rows == {
        (OURS.label, "serving", "edit"): ("40", "0.800", "0.750", "0.1900", "0.1875", "0.0500", "0.5000"),
        (OURS.label, "serving", "chat"): ("10", "0.300", "0.000", "0.0900", "0.0000", "0.3000", "none"),
        (OURS.label, "serving", "pooled"): ("50", "0.700", "0.600", "0.1700", "0.2400", "0.1000", "0.7500"),
        (OURS.label, "serving", "mean of workloads"): ("", "", "", "0.1400", "", "", "0.5000"),
    }


def test_json_holds_what_the_tables_are_made_of():
    document = json.loads(json.dumps(report().as_dict()))
    assert [(run["proposer"], run["batches"]) for run in document["runs"]] == [
        ("ngram", [1]), ("ngram", [128]), ("ngram-tree", [1]), ("ngram-tree", [128]),
    ]  # fmt: skip
    ours, _, trees, _ = document["runs"]
    assert (ours["label"], ours["mode"], ours["gamma"]) == ("ngram (fixed)", "serving", 4)
    assert ours["workloads"]["edit"]["histogram"] == [[4, 3, 4, 10]]
    assert ours["workloads"]["edit"]["speedup"] == {"1": pytest.approx(4 / 1.02)}
    assert ours["pooled"]["tau"] == 2.5
    assert ours["reliability"]["brier"] == pytest.approx(0.17)
    assert (ours["reliability"]["auc"], ours["workloads"]["chat"]["reliability"]["auc"]) == (pytest.approx(0.75), None)
    assert [point["count"] for point in ours["reliability"]["curve"]] == [10, 40]
    assert ours["mean_reliability"] == {"brier": pytest.approx(0.14), "auc": pytest.approx(0.5)}
    assert (ours["survival"]["tokens"], ours["workloads"]["edit"]["survival"]["auc"]) == (50, pytest.approx(1.0))
    assert (trees["trees"], trees["reliability"]) == (True, None)
    assert trees["mean_survival"] == {"brier": None, "auc": None}
    assert document["no_drafts"]["1"] == pytest.approx(1 / 1.02)


def test_faults_are_added_up():
    faulty = [result((0, 0, 1, 1), faults={"ngram": {"exception": 2}}) for _ in range(2)]
    run = ReplayRun(OURS, "serving", 1, dict(zip(("edit", "chat"), faulty, strict=True)))
    assert ReplayReport([run], ScoringRoofline()).faults() == {"ngram": {"exception": 4}}
    assert report().faults() == {}


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), st.integers(0, 60))
def test_brier_and_gap_are_what_their_definitions_say(tokens, cut):
    halves = [Calibration(), Calibration()]
    halves[0].add(tokens[:cut])
    halves[1].add(tokens[cut:])
    whole = merge_calibrations(halves)
    found = whole.as_dict()
    assert found is not None
    share = sum(accepted for _, accepted in tokens) / len(tokens)
    assert found["tokens"] == len(tokens) == sum(point.count for point in whole.curve())
    assert found["brier"] == pytest.approx(sum((c - a) ** 2 for c, a in tokens) / len(tokens))
    assert found["constant_brier"] == pytest.approx(sum((share - a) ** 2 for _, a in tokens) / len(tokens))
    weights = sum(point.count * abs(point.confidence - point.acceptance) for point in whole.curve())
    assert found["calibration_error"] == pytest.approx(weights / len(tokens))


def plain_auc(tokens: Sequence[tuple[float, bool]]) -> float | None:
    """Compare each accepted token with each that was not."""
    accepted, rejected = ([c for c, kept in tokens if kept is wanted] for wanted in (True, False))
    wins = [(one > other) + (one == other) / 2 for one in accepted for other in rejected]
    return sum(wins) / len(wins) if wins else None


@given(st.lists(st.tuples(PROBABILITIES, st.booleans()), max_size=60), st.integers(0, 60))
def test_auc_is_the_share_of_pairs_in_the_right_order(tokens, cut):
    halves = [Calibration(), Calibration()]
    halves[0].add(tokens[:cut])
    halves[1].add(tokens[cut:])
    ranked = [(int(rank_of(np.array([confidence]))[0]), accepted) for confidence, accepted in tokens]
    assert merge_calibrations(halves).auc == pytest.approx(plain_auc(ranked))
    if all(a == b or abs(a - b) > 0.001 for a, _ in tokens for b, _ in tokens):  # bins tell these apart
        assert merge_calibrations(halves).auc == pytest.approx(plain_auc(tokens))


@given(st.lists(PROBABILITIES, min_size=2))
def test_ranks_keep_the_order_of_probabilities(probabilities):
    ranks = rank_of(np.sort(np.array(probabilities, np.float64)))
    assert (np.diff(ranks) >= 0).all()
    assert ranks.min() >= 0
    assert ranks.max() < RANKS


def test_ranks_tell_near_certainties_apart():
    assert len(set(rank_of(np.array([0, 1e-6, 1.1e-6, 0.5, 0.999, 0.9991, 0.99999, 1.0])).tolist())) == 8
