"""The policy `batch` where rows are padded: it finds the best draft length on unknown costs and drafts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from specplug.interfaces import PluginContext
from specplug.steps.step_planner import REPORT_EVERY
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged
from specplug.types.plan import HostStats, StepReport
from specplug.types.step import StepCost
from specplug_batch.acceptance import ReportedLengths
from specplug_batch.options import BatchOptions
from specplug_batch.pace import TRIAL_STEPS
from specplug_batch.padded import PROBE_EVERY, PROBE_STEPS, FreePlanner, PaddedPlanner, TreePlanner
from specplug_batch.plugin import build
from specplug_batch.ragged import RaggedPlanner
from tests.policies.late_server import LateServer

LENGTHS = (0, 1, 3, 7, 15)
CAPS = EngineCaps(
    15,
    captured_draft_lengths=LENGTHS,
    ragged=Ragged.PADDED,
    draft_length_change=DraftLengthChange.CAPTURED,
)
TRAFFIC = {
    "easy": np.linspace(0.9, 0.97, 15),
    "mixed": np.concatenate(([0.45], np.linspace(0.8, 0.93, 14))),
    "hard": np.full(15, 0.25),
    "hopeless": np.full(15, 0.004),
}
SURFACES = {
    "dense": lambda requests, tokens, length: 5 + 0.15 * (length > 0) + 2.5 * (tokens / 700) ** 1.5,
    "experts": lambda requests, tokens, length: 4 + 9 * (1 - (15 / 16) ** tokens) + 0.01 * tokens,
    "draft model": lambda requests, tokens, length: 6.5 + 0.9 * length + 0.01 * max(tokens - 250, 0),
}


class Server(LateServer):
    """An engine with padded rows."""

    def __init__(self, surface, seed=1, *, is_timed=True):
        planner = PaddedPlanner(PluginContext(CAPS, options=BatchOptions()))
        super().__init__(planner, seed)
        self._surface, self._run = SURFACES[surface], np.zeros(0, int)
        if is_timed:
            planner.calibrate(
                [
                    StepCost(
                        rows,
                        rows * (length + 1),
                        1500 * rows,
                        length,
                        self._surface(rows, rows * (length + 1), length) * 1e-3,
                    )
                    for rows in (1, 4, 16, 64)
                    for length in LENGTHS
                ]
            )

    def serve(self, traffic, requests, tokens=0, *, steps=0):
        """Emit so many tokens, or take so many steps.

        Returns:
            The tokens per second, and the verified-and-rejected tokens per emitted one.
        """
        seconds = emitted = wasted = taken = 0
        while emitted < tokens or taken < steps:
            length = self.next_plan.draft_length
            spent = self._surface(requests, requests * (length + 1), length) * 1e-3
            kept = (self.rng.random((requests, 15)) < TRAFFIC[traffic]).cumprod(1)[:, :length].sum(1)
            seconds, emitted = seconds + spent, emitted + requests + int(kept.sum())
            wasted += requests * length - int(kept.sum())
            taken += 1
            self._end(requests, length, kept, spent)
        return emitted / seconds, wasted / emitted

    def _end(self, requests, length, kept, seconds):
        before = self._run if len(self._run) == requests else np.zeros(requests, int)
        self._run = np.where(length and kept == length, before + kept + 1, 0)
        rows = range(requests if length else 0)
        fates = [(length, int(kept[row])) for row in rows]
        runs = [(int(before[row]), int(before[row] + kept[row]) + 1) for row in rows]
        self.end_step(requests, requests * (length + 1), seconds, requests, fates, runs)


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("traffic", TRAFFIC)
@pytest.mark.parametrize("requests", [8, 64])
@pytest.mark.parametrize("is_timed", [True, False])
def test_it_comes_close_to_the_best_fixed_length(surface, traffic, requests, is_timed):
    server = Server(surface, is_timed=is_timed)
    server.serve(traffic, requests, 500 * requests)  # learning costs a little
    assert server.serve(traffic, requests, 1500 * requests)[0] > 0.955 * best_rate(surface, traffic, requests)


def rate_of(surface: str, traffic: str, requests: int, length: int) -> float:
    """Return the expected tokens per second at a fixed draft length."""
    emitted = requests * (1 + TRAFFIC[traffic][:length].cumprod().sum())
    return emitted / (SURFACES[surface](requests, requests * (length + 1), length) * 1e-3)


def best_rate(surface: str, traffic: str, requests: int) -> float:
    return max(rate_of(surface, traffic, requests, length) for length in LENGTHS)


def test_hopeless_drafts_are_hardly_verified():
    server = Server("dense")
    server.serve("hopeless", 8, 200 * 8)
    rate, wasted = server.serve("hopeless", 8, 3000 * 8)
    assert wasted <= PROBE_STEPS / PROBE_EVERY * 1.2
    assert rate > 0.985 * rate_of("dense", "hopeless", 8, 0)


def test_it_follows_the_load_and_comes_back():
    server = Server("draft model")
    rates = [server.serve("mixed", requests, 1500 * requests)[0] for requests in (8, 64, 8)]
    for requests, rate in zip((8, 64, 8), rates, strict=True):
        assert rate > 0.93 * best_rate("draft model", "mixed", requests)


def test_drafts_that_become_good_are_drafted_again():
    server = Server("dense")
    server.serve("hopeless", 8, 1000 * 8)
    server.serve("easy", 8, 3000 * 8)
    assert server.serve("easy", 8, 1000 * 8)[0] > 0.97 * rate_of("dense", "easy", 8, 15)


@pytest.mark.parametrize(
    ("requests", "surface", "idle"),
    [(1, "dense", 100), (8, "dense", 5000), (64, "dense", 1000), (1, "experts", 1000), (64, "draft model", 1000)],
)
def test_drafting_is_back_soon_after_it_was_off(requests, surface, idle):
    server = Server(surface)
    server.serve("hopeless", requests, steps=idle)
    server.serve("easy", requests, steps=300)
    assert server.serve("easy", requests, steps=300)[0] > 0.95 * rate_of(surface, "easy", requests, 15)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, PaddedPlanner),
        ({"ragged": Ragged.NATIVE}, RaggedPlanner),
        ({"ragged": Ragged.LONGEST}, RaggedPlanner),
        ({"ragged": Ragged.NATIVE, "verifies_budget": True}, RaggedPlanner),
        ({"trees": True}, TreePlanner),
        ({"draft_length_change": DraftLengthChange.FIXED, "captured_draft_lengths": ()}, FreePlanner),
        ({"draft_length_change": DraftLengthChange.FIXED, "captured_draft_lengths": (0, 15)}, PaddedPlanner),
    ],
    ids=str,
)
def test_an_engine_has_the_planner_for_its_capabilities(change, kind):
    fields = {name: getattr(CAPS, name) for name in CAPS.__slots__}
    assert type(build(PluginContext(EngineCaps(**{**fields, **change})))) is kind


def test_it_states_what_it_plans_and_why():
    server = Server("dense")
    assert server.planner.status() == {"why": "nothing was planned yet"}
    server.serve("easy", 8, 4000 * 8)
    found = server.planner.status()
    assert (found["draft_length"], found["requests"], found["basis"]) == (15, 8, "measured at start")
    assert found["why"].startswith("at 8 requests 15 draft tokens gain")
    assert found["accepted_per_row"]["15"] > 5
    assert found["costs_per_row"]["0"] == 0
    server.serve("hopeless", 8, 4000 * 8)
    assert server.planner.status()["why"].startswith("off: at 8 requests")


def reported(step, expected, rows=4, length=0):
    """Return the report of a step whose newest drafts survive with these probabilities by position."""
    return StepReport(step, length, rows, rows, 0, 0, expected=expected, expected_rows=rows)


def test_lengths_follow_what_drafters_report_whatever_was_planned():
    planner = PaddedPlanner(PluginContext(CAPS, options=BatchOptions()))
    surface = SURFACES["dense"]
    planner.calibrate([StepCost(4, 4 * (n + 1), 6000, n, surface(4, 4 * (n + 1), n) * 1e-3) for n in LENGTHS])
    lengths = []
    for step in range(400):
        sure = step % 200 >= 100
        if step % REPORT_EVERY == 0 or lengths[-1]:
            planner.observe(reported(step, [4 * (0.95 if sure else 0.002) ** n for n in range(1, 16)]))
        lengths.append(planner.plan(HostStats(step, range(4))).draft_length)
    assert set(lengths[20:100]) == {0}, "hopeless drafts are not verified"
    assert set(lengths[110:200]) == {15}, "though no step had verified any, they begin with the reports"
    assert set(lengths[260:300]) == {0}


def test_a_drafter_that_reports_no_longer_is_judged_by_what_is_accepted():
    """It has failed, and steps verify padding."""
    planner = PaddedPlanner(PluginContext(CAPS, options=BatchOptions()))
    surface = SURFACES["dense"]
    planner.calibrate([StepCost(4, 4 * (n + 1), 6000, n, surface(4, 4 * (n + 1), n) * 1e-3) for n in LENGTHS])
    lengths = [0]
    for step in range(1000):
        length = lengths[-1]
        if step < 100:
            planner.observe(reported(step, [4 * 0.95**n for n in range(1, 16)], length=length))
        else:
            planner.observe(StepReport(step, length, 4, 4, 4 * length, 0, runs=[(0, 1)] * 4 if length else []))
        lengths.append(planner.plan(HostStats(step, range(4))).draft_length)
    assert {*lengths[50:100]} == {15}
    assert max(lengths[500:]) <= 1, "a token is tried now and then"


@pytest.mark.parametrize(("steps", "least", "most"), [(200, 0.9, 1.0), (1, 0.0, 0.2)])
def test_the_newest_reports_count_as_far_as_what_follows_is_like_them(steps, least, most):
    """Drafts are good, or poor, for so many steps in a row; a length is chosen every fourth step."""
    rng, found = np.random.default_rng(0), ReportedLengths(15)
    kept = []
    for step in range(4000):
        if step % steps == 0:
            kept.append(rng.choice([0.2, 0.9]))
        expected = [4 * kept[-1] ** n for n in range(1, 16)]
        if step % 4 == 0:
            found.observe([reported(each, expected) for each in range(step, step + 4)])
    assert least <= found.share <= most
    average = np.mean([[rate**n for n in range(1, 16)] for rate in kept], axis=0)
    if most < 1:
        assert found.accepted()[15] == pytest.approx(average.sum(), rel=0.5)
    else:
        assert found.accepted()[15] == pytest.approx(sum(expected) / 4, rel=0.2)


def test_a_report_counts_for_the_steps_since_the_one_before():
    """As many steps change what is expected alike, whether each is reported or every eighth."""
    often, seldom = ReportedLengths(15), ReportedLengths(15)
    for found, every in ((often, 1), (seldom, 8)):
        for step in range(0, 801, every):
            found.observe([reported(step, [4 * (0.2 if step < 792 else 0.9) ** n for n in range(1, 16)])])
    assert often.accepted()[15] == pytest.approx(seldom.accepted()[15], rel=0.2)
    assert often.accepted()[15] > 2 * 0.25


def test_without_reports_rare_probes_show_whether_drafts_pay_again():
    server = Server("dense", is_timed=True)
    server.serve("hopeless", 8, steps=1000)
    planned = []
    for _ in range(640):
        server.serve("hopeless", 8, steps=1)
        planned.append(server.next_plan.draft_length)
    assert sum(length > 0 for length in planned) == 640 // PROBE_EVERY * PROBE_STEPS


def test_steps_that_were_timed_need_no_trials():
    timed, untimed = Server("experts", is_timed=True), Server("experts", is_timed=False)
    assert not timed.planner._trials._counts
    untimed.serve("easy", 8, steps=100)
    timed.serve("easy", 8, steps=100)
    assert not timed.planner._trials._counts
    assert set(untimed.planner._trials._counts.values()) == {TRIAL_STEPS}


@pytest.mark.parametrize(("budget", "planned"), [(None, 15), (8 * 15, 15), (8, 0), (0, 0)])
def test_only_lengths_that_the_budget_allows_are_compared(budget, planned):
    """Any verification costs 1.5 times a plain step: 15 draft tokens gain more, but not the single one of a budget."""
    planner = PaddedPlanner(PluginContext(CAPS, options=BatchOptions(token_budget=budget)))
    planner.calibrate([StepCost(8, 8 * (length + 1), 0, length, 2.5 if length else 1.0) for length in LENGTHS])
    planner.plan(HostStats(0, range(8)))
    planner.observe(StepReport(0, 0, 8, 8, 0, 0, expected=(8 * 0.9 ** np.arange(1, 16)).tolist(), expected_rows=8))
    assert planner.plan(HostStats(1, range(8))).draft_length == planned


# -- trees -----------------------------------------------------------------------------------------------------------

TREES = replace(CAPS, captured_draft_lengths=(), draft_length_change=DraftLengthChange.FREE, trees=True)
NODES = (0.6 / np.arange(1, 16)).tolist()
"""What each node of a row's tree is expected to add, the likeliest first."""


def tree_planner(cost: float, caps: EngineCaps = TREES) -> TreePlanner:
    """Return a planner for steps that cost so much of a plain one for each node beyond 16 tokens."""
    planner = TreePlanner(PluginContext(caps, options=BatchOptions()))
    sizes = [(rows, rows * (length + 1), length) for rows in (1, 2, 4, 8, 16) for length in LENGTHS]
    planner.calibrate([StepCost(*size[:2], 0, size[2], 1.0 + cost * max(0, size[1] - 16)) for size in sizes])
    return planner


def nodes_planned(planner: TreePlanner, requests: int, nodes: list[float] = NODES) -> int:
    """Return what is planned once drafters have reported what these trees are expected to yield."""
    for step in range(8):
        planner.observe(reported(step, [requests * each for each in nodes], rows=requests))
        planned = planner.plan(HostStats(step, range(requests))).draft_length
    return planned


@pytest.mark.parametrize(
    ("cost", "planned"),
    [(0.0, [15, 15, 15, 15, 15]), (0.05, [15, 7, 3, 1, 0]), (0.5, [15, 7, 3, 1, 0])],
)
def test_trees_have_the_nodes_that_pay(cost, planned):
    """A step of 16 tokens costs nothing more than a plain one, so few requests have large trees, and many have none."""
    assert [nodes_planned(tree_planner(cost), requests) for requests in (1, 2, 4, 8, 16)] == planned


def test_trees_are_not_verified_where_they_yield_nothing():
    assert nodes_planned(tree_planner(0.05), 8, [0.001] * 15) == 0


def test_without_reports_trees_have_the_nodes_that_are_assumed_to_be_free():
    planner = tree_planner(0.5)
    free = FreePlanner(PluginContext(TREES, options=BatchOptions()))
    for step, requests in enumerate([1, 8, 16, 20, 64, 256]):
        stats = HostStats(step, range(requests))
        assert planner.plan(stats) == free.plan(stats)
        planner.observe(StepReport(step, 15, requests, requests, 15 * requests, requests))
    assert not planner.reads_requests


def test_trees_of_unknown_costs_are_tried_once_drafters_have_reported():
    planner = TreePlanner(PluginContext(TREES, options=BatchOptions()))
    for step in range(40):
        planner.plan(HostStats(step, range(4)))
    planner.observe(reported(40, [4 * each for each in NODES], rows=4))
    planned = [planner.plan(HostStats(step, range(4))).draft_length for step in range(41, 41 + 5 * len(LENGTHS))]
    assert Counter(planned) == dict.fromkeys(LENGTHS, 5)


@pytest.mark.parametrize("requests", [1, 16, 17, 64, 100, 128, 200, 256, 300])
def test_captured_trees_are_no_larger_than_steps_that_are_assumed_to_be_free(requests):
    """A mask has a cell for each node and token of each text's context, and graphs keep theirs."""
    captured = replace(CAPS, trees=True)
    planner = tree_planner(0.0, captured)
    planned = nodes_planned(planner, requests, [0.9] * 15)
    assert planned == planner.longest_draft(requests) == captured.fit_draft_length(max(0, 256 // requests - 1))
    assert tree_planner(0.0).longest_draft(requests) == 15
