"""A policy of somebody else's that learns, on the embedded engine."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from specplug.plugins.registry import Owner, Registry
from tests.transformers.conftest import assert_plain, requests_of
from tests.transformers.toys import prompts

PROMPTS = [prompt * 3 for prompt in prompts(4)]


def test_both_halves_learn_and_the_text_stays(make_engine, llama, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "engines" / "plugins"))
    registry = Registry.discover()
    registry.add(importlib.import_module("specplug_testkit.plugin"), Owner("testkit", "specplug-testkit", "0"))
    settings = {"num_speculative_tokens": 6, "proposer": "ngram", "policy": "learner"}
    engine = make_engine(max_num_seqs=3, registry=registry, **settings)
    outputs = engine.generate(requests_of(PROMPTS, max_tokens=30, ignore_eos=True))
    assert_plain(llama, PROMPTS, outputs, 30)

    planner, trimmer = engine._plans._planner, engine._drafts._trimmer
    counts = engine.metrics.snapshot()
    assert counts.faults == {}
    assert [report.step for report in planner.reports] == list(range(engine.steps))
    assert sum(report.verified for report in planner.reports) == counts.total.verified > 0
    assert sum(report.accepted for report in planner.reports) == counts.total.accepted > 0
    assert trimmer.counts.tolist() == [counts.total.tested, counts.total.accepted]
    assert planner.reports[-1].cost is engine.last_step
    assert planner.costs == [report.cost for report in planner.reports[:-1]]
    assert float(trimmer.price) == pytest.approx(planner.prices[-1], rel=1e-5)
    assert len(set(planner.prices)) > 1, "the price was learnt"
