"""The tables, figures and plots of a replay, from counts that are known."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.replay.matrix import Contender, Found, Run, plan_runs
from specplug.replay.plots import plot
from specplug.replay.reliability import bar, summarise, together
from specplug.replay.report import Report
from specplug.replay.score import RANKS, Calibration, Counts, Reliability, ScoringRoofline, rank_of
from specplug.replay.setup import Result, Setup

OURS = Contender("ours", Setup("ngram"))
PROBABILITIES = st.integers(0, 1 << 24).map(lambda count: count / (1 << 24))
PEER = Contender("peer:factory", peer="peer:factory")


def result(*rows: tuple[int, int, int, int], confidence: float | None = None, **rest) -> Result:
    calibration, survival = Calibration(), Calibration()
    for n, a, _, steps in rows:
        for _ in range(steps if confidence is not None else 0):
            calibration.add([confidence] * min(n, a + 1), a)
            survival.add([confidence ** (k + 1) for k in range(n)], a)
    return Result(Counts.from_rows(rows), calibration, survival, items=2, **rest)


def report(in_flight: int | None = None) -> Report:
    """Two workloads, a proposer with two batch sizes, and a peer that runs once for both."""
    found = []
    for run in plan_runs([OURS, PEER], ["serving"], [1, 128], gamma=4, in_flight=in_flight):
        if run.contender is PEER:
            one, other = result((4, 1, 2, 10)), result((4, 0, 1, 10))
        elif run.batches == (1,):
            one, other = result((4, 3, 4, 10), confidence=0.8), result((1, 0, 1, 10), confidence=0.3)
        elif run.in_flight > 1:
            one, other = result((1, 0, 1, 10)), result((0, 0, 1, 10))
        else:
            one, other = result((1, 1, 2, 10)), result((0, 0, 1, 10))
        found.append(Found(run, {"edit": one, "chat": other}))
    return Report(found, ScoringRoofline())


def scores(shown: Report, what: str) -> list[tuple[str, ...]]:
    return list(next(it.rows for it in shown.tables() if it.title == f"{what} against acceptance at batch size 1"))


def tables(shown: Report) -> dict[str, dict[tuple[str, str], tuple[str, ...]]]:
    return {
        table.title: {
            row[:2]: tuple(cell for cell, _ in zip(row[2:], table.columns[2:], strict=True)) for row in table.rows
        }
        for table in shown.tables()
    }


def test_a_peer_runs_once_for_all_batch_sizes():
    runs = plan_runs([OURS, PEER], ["cold", "serving"], [1, 8, 32, 64], 15)
    assert [(run.mode, run.gamma, run.batches) for run in runs if run.contender is PEER] == [
        (mode, 15, (1, 8, 32, 64)) for mode in ("cold", "serving")
    ]
    assert [(run.gamma, run.batches) for run in runs if run.contender is OURS] == 2 * [
        (15, (batch,)) for batch in (1, 8, 32, 64)
    ]


def test_requests_in_flight_are_a_run_of_serving_mode_only():
    runs = plan_runs([OURS], ["cold", "serving"], [1, 8], gamma=5, in_flight=8)
    assert [run for run in runs if run.in_flight > 1] == [Run(OURS, "serving", 5, (8,), 8)]


def test_drafts_are_shown_by_workload_and_pooled():
    shown = tables(report())["Drafts at batch size 1, gamma 4, serving"]
    assert shown["ours", "edit"] == ("2", "40", "10", "4.00", "75%", "4.00", "0.25", "0")
    assert shown["ours", "pooled"] == ("4", "50", "20", "2.50", "60%", "2.50", "0.40", "")
    assert shown["peer:factory", "chat"][3:7] == ("1.00", "0%", "4.00", "4.00")


def test_speedups_are_shown_by_batch_size_with_their_geometric_mean_beside_no_drafts():
    shown = tables(report())["Speed-up S(B) over plain decoding, gamma 4, serving"]
    assert shown["ours", "edit"] == (f"{4 / 1.02:.2f}", f"{2 / 1.02:.2f}")
    assert shown["ours", "chat"] == ("0.98", "0.98")
    assert shown["ours", "geometric mean"] == (f"{(4 / 1.02**2) ** 0.5:.2f}", f"{(2 / 1.02**2) ** 0.5:.2f}")
    assert shown["peer:factory", "edit"] == (f"{2 / 1.02:.2f}", f"{2 / (128 * 5 / 256 + 0.02):.2f}")
    assert shown["no drafts", ""] == ("0.98", "0.98")


def test_all_workloads_together_are_shown_by_batch_size():
    shown = tables(report())["All workloads pooled, by batch size, gamma 4, serving"]
    assert shown["ours", "tau"] == ("2.50", "1.50")
    assert shown["ours", "accepted"] == ("60%", "100%")
    assert shown["ours", "waste"] == ("0.40", "0.00")


def test_the_gap_of_requests_in_flight_is_against_the_same_batch_size():
    shown = tables(report(in_flight=32))["32 requests in flight against one after another, gamma 4, serving"]
    assert shown["ours", "edit"] == ("2.00", "1.00", "-50.0%", "1.96", "0.98", "-50.0%")
    assert shown["ours", "pooled"][:3] == ("1.50", "1.00", "-33.3%")
    assert shown["ours", "geometric mean"][3:] == ("1.39", "0.98", "-29.3%")
    assert shown["peer:factory", "chat"][2] == "+0.0%"


def test_only_decided_tokens_of_those_who_give_confidences_count_as_reliability():
    shown = tables(report())
    assert "peer:factory" not in {label for label, _ in shown["Confidence against acceptance at batch size 1"]}
    rows = {row[:3]: row[3:] for row in scores(report(), "Confidence")}
    assert rows == {
        ("ours", "serving", "edit"): ("40", "0.800", "0.750", "0.1900", "0.1875", "0.0500", "0.5000"),
        ("ours", "serving", "chat"): ("10", "0.300", "0.000", "0.0900", "0.0000", "0.3000", "none"),
        ("ours", "serving", "pooled"): ("50", "0.700", "0.600", "0.1700", "0.2400", "0.1000", "0.7500"),
        ("ours", "serving", "mean of workloads"): ("", "", "", "0.1400", "", "", "0.5000"),
    }
    (row, *_) = next(table for table in report().tables() if table.title == "Reliability").rows
    assert row[:5] == ("ours", "serving", "10", "0.300", "0.000")


def test_json_holds_what_the_tables_are_made_of():
    document = json.loads(json.dumps(report(in_flight=8).as_dict()))
    assert [(run["label"], run["batches"], run["in_flight"]) for run in document["runs"]] == [
        ("ours", [1], 1),
        ("ours", [8], 1),
        ("ours", [128], 1),
        ("ours", [8], 8),
        ("peer:factory", [1, 8, 128], 1),
        ("peer:factory", [8], 8),
    ]
    ours = document["runs"][0]
    assert (ours["proposer"], ours["mode"], ours["gamma"]) == ("ngram", "serving", 4)
    assert ours["workloads"]["edit"]["histogram"] == [[4, 3, 4, 10]]
    assert ours["workloads"]["edit"]["speedup"] == {"1": pytest.approx(4 / 1.02)}
    assert ours["pooled"]["tau"] == 2.5
    assert ours["reliability"]["brier"] == pytest.approx(0.17)
    assert (ours["reliability"]["auc"], ours["workloads"]["chat"]["reliability"]["auc"]) == (pytest.approx(0.75), None)
    assert ours["mean_reliability"] == {"brier": pytest.approx(0.14), "auc": pytest.approx(0.5)}
    assert (ours["survival"]["tokens"], ours["workloads"]["edit"]["survival"]["auc"]) == (50, pytest.approx(1.0))
    assert document["runs"][4]["mean_survival"] == {"brier": None, "auc": None}
    assert document["runs"][4]["reliability"] is None
    assert document["no_drafts"]["1"] == pytest.approx(1 / 1.02)


def test_faults_are_added_up():
    faulty = [result((0, 0, 1, 1), faults={"ngram": {"exception": 2}}) for _ in range(2)]
    run = Run(OURS, "serving", 4, (1,))
    shown = Report([Found(run, dict(zip(("edit", "chat"), faulty, strict=True)))], ScoringRoofline())
    assert shown.faults() == {"ngram": {"exception": 4}}
    assert report().faults() == {}


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), st.integers(0, 60))
def test_brier_and_gap_are_what_their_definitions_say(tokens, cut):
    halves = [Calibration(), Calibration()]
    for place, (confidence, accepted) in enumerate(tokens):
        halves[place < cut].add([confidence], int(accepted))
    found = summarise(together(halves))
    assert found is not None
    share = sum(accepted for _, accepted in tokens) / len(tokens)
    assert found.tokens == len(tokens) == sum(point.count for point in found.curve)
    assert found.brier == pytest.approx(sum((c - a) ** 2 for c, a in tokens) / len(tokens))
    assert found.constant_brier == pytest.approx(sum((share - a) ** 2 for _, a in tokens) / len(tokens))
    weights = sum(point.count * abs(point.confidence - point.acceptance) for point in found.curve)
    assert found.gap == pytest.approx(weights / len(tokens))


def plain_auc(tokens: Sequence[tuple[float, bool]]) -> float | None:
    """Compare each accepted token with each that was not."""
    accepted, rejected = ([c for c, kept in tokens if kept is wanted] for wanted in (True, False))
    wins = [(one > other) + (one == other) / 2 for one in accepted for other in rejected]
    return sum(wins) / len(wins) if wins else None


@given(st.lists(st.tuples(PROBABILITIES, st.booleans()), max_size=60), st.integers(0, 60))
def test_auc_is_the_share_of_pairs_in_the_right_order(tokens, cut):
    halves = [Calibration(), Calibration()]
    for place, (confidence, accepted) in enumerate(tokens):
        halves[place < cut].add([confidence], int(accepted))
    ranked = [(int(rank_of(np.array([confidence]))[0]), accepted) for confidence, accepted in tokens]
    assert together(halves).auc == pytest.approx(plain_auc(ranked))
    if all(a == b or abs(a - b) > 0.001 for a, _ in tokens for b, _ in tokens):  # bins tell these apart
        assert together(halves).auc == pytest.approx(plain_auc(tokens))


@given(st.lists(PROBABILITIES, min_size=2))
def test_ranks_keep_the_order_of_probabilities(probabilities):
    ranks = rank_of(np.sort(np.array(probabilities, np.float64)))
    assert (np.diff(ranks) >= 0).all()
    assert ranks.min() >= 0
    assert ranks.max() < RANKS


def test_ranks_tell_near_certainties_apart():
    assert len(set(rank_of(np.array([0, 1e-6, 1.1e-6, 0.5, 0.999, 0.9991, 0.99999, 1.0])).tolist())) == 8


def test_nothing_decided_has_no_reliability():
    assert summarise(Calibration()) is None
    assert summarise(together([])) is None


def test_a_bar_ends_at_its_mark_when_confidence_is_true():
    assert bar(Reliability(10, 0.5, 0.5)) == "##########|........."
    assert bar(Reliability(10, 1.0, 0.25)) == "#####..............|"


@pytest.mark.parametrize("in_flight", [None, 8])
def test_plots_are_one_picture_or_a_folder_of_three(tmp_path, in_flight):
    shown = report(in_flight)
    assert plot(shown, tmp_path / "all.png") == [tmp_path / "all.png"]
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    written = plot(shown, tmp_path / "new" / "folder")
    assert [path.name for path in written] == ["tau.png", "speedup.png", "reliability.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_reliability_is_not_plotted_where_nobody_gives_confidences(tmp_path):
    run = Run(PEER, "cold", 4, (1,))
    shown = Report([Found(run, {"edit": result((4, 1, 2, 10))})], ScoringRoofline())
    assert [path.name for path in plot(shown, tmp_path)] == ["tau.png", "speedup.png"]
