"""Requests that may not draft are no evidence: what policies learn of the others is what they learn without them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from specplug.interfaces import PluginContext
from specplug.operator.server_planner import ServerPlanner
from specplug.settings import load_settings
from specplug.steps.step_planner import Bounds
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged
from specplug.types.step import StepCost

NATIVE = EngineCaps(8, ragged=Ragged.NATIVE)
PADDED = EngineCaps(8, ragged=Ragged.PADDED, draft_length_change=DraftLengthChange.CAPTURED)
KINDS = {"batch, ragged": ("batch", NATIVE), "batch, padded": ("batch", PADDED), "adaptive": ("adaptive", NATIVE)}


@dataclass(frozen=True)
class Row:
    """A request; one that opted out has a cap of 0."""

    name: str
    cap: int | None = None


class Server:
    """Runs steps, the outcome of each known before the next is planned; every draft token is accepted 7 times of 10."""

    def __init__(self, kind: str) -> None:
        policy, caps = KINDS[kind]
        found = load_settings({"policy": policy, "num_speculative_tokens": 8}, env={})
        context = PluginContext(caps)
        self.planner: ServerPlanner[Row] = ServerPlanner(
            found, context, lambda it: it.name, lambda it: 100, lambda it: Bounds(4000, it.cap)
        )
        self._pads, self._rng, self._now = caps is PADDED, np.random.default_rng(5), 0.0

    def serve(self, requests: list[Row], steps: int) -> int:
        """Run steps; return how many of them were planned to have drafts."""
        drafted = 0
        self.planner.make(requests)  # with their prompts
        for _ in range(steps):
            plan, planner = self.planner.plan, self.planner
            lengths = [plan.draft_length_for(each.name) for each in requests]
            fates = [
                (each.name, plan.draft_length if self._pads else length, self._accepted(length))
                for each, length in zip(requests, lengths, strict=True)
                if length or self._pads
            ]
            tokens = len(requests) + sum(verified for _, verified, _ in fates)
            cost = StepCost(len(requests), tokens, 100 * len(requests), plan.draft_length, 0.0)
            launched = planner.launch(self._now, cost)
            self._now += (5 + 0.01 * tokens) * 1e-3
            planner.finish(launched, fates if plan.draft_length else [], self._now)
            drafted += planner.make(requests).draft_length > 0
        planner.forget([each.name for each in requests])
        return drafted

    def _accepted(self, length: int) -> int:
        return int((self._rng.random(length) < 0.7).cumprod().sum())


def learnt(server: Server) -> float:
    """What the policy believes of drafts, whatever they cost, from its status."""
    status = server.planner.stage.status()
    return (
        1.0 + status["accepted_per_row"]["8"]
        if "accepted_per_row" in status
        else status.get("speed_up", status.get("acceptance"))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_requests_that_opted_out_do_not_switch_drafting_off(kind):
    """The obvious comparison on a fresh server: some quotations without drafts, then the same with drafts."""
    server = Server(kind)
    for number in range(3):
        server.serve([Row(f"plain {number}", 0)], 100)
    drafted = [server.serve([Row(f"drafts {number}")], 20) for number in range(4)]
    assert min(drafted) > 14  # the others measure what steps without drafts cost


@pytest.mark.parametrize("kind", KINDS)
def test_they_change_nothing_of_what_is_learnt_beside_them(kind):
    """Where rows are padded, the engine verifies padding after the row's last token; that is no draft, either."""
    alone, mixed = Server(kind), Server(kind)
    drafting = [Row(f"drafts {number}") for number in range(4)]
    alone.serve(drafting, 400)
    mixed.serve([*drafting, *[Row(f"plain {number}", 0) for number in range(12)]], 400)
    assert learnt(mixed) == pytest.approx(learnt(alone), rel=0.08)


def test_the_report_leaves_them_out():
    server = Server("batch, padded")
    reports = []
    server.planner.stage.observe = reports.append  # type: ignore[method-assign]
    server.serve([Row("drafts"), Row("plain", 0), Row("short", 2)], 6)
    newest = reports[-1]
    assert (newest.requests, newest.batch_size, len(newest.runs)) == (2, 3, 2)
