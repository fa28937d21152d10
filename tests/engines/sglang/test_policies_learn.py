"""A third party's policy that learns, with both halves in SGLang's worker, receives each step's outcome."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.sglang import inside

PROMPTS = [list(prompt) for prompt in prompts()][:8]
SETTINGS = {"proposer": "ngram", "policy": "learner"}


@pytest.fixture(params=[False, True], ids=["sync", "overlap"])
def learning(request: pytest.FixtureRequest, engine: Callable[..., Engine]) -> Engine:
    environment = {"SPECPLUG_CONFIG": json.dumps(SETTINGS)}
    return engine("SPECPLUG", overlap=request.param, environment=environment, name=f"learning, overlap {request.param}")


def note_lengths(scheduler: Any) -> None:
    """Note how many draft tokens each step really verifies."""
    drafting = scheduler.draft_worker.drafting
    original, scheduler._lengths = drafting.launched, []

    def launched(reqs: Any, draft: Any) -> None:
        scheduler._lengths.append(0 if draft is None else int(draft.lengths.sum()))
        original(reqs, draft)

    drafting.launched = launched


def learnt(scheduler: Any) -> dict[str, Any]:
    """Return what the policy's halves have learnt."""
    drafting = scheduler.draft_worker.drafting
    planner, trimmer = drafting.step_planner.stage._planner, drafting.stage._trimmer
    return {
        "reports": [asdict(report) for report in planner.reports],
        "costs": [asdict(cost) for cost in planner.costs],
        "prices": planner.prices,
        "price": float(trimmer.price),
        "counts": drafting.counts.read().as_dict(),
        "faults": len(drafting.step_planner.faults),
        "decided": trimmer.counts.tolist(),
        "lengths": scheduler._lengths,
    }


def test_both_halves_learn_and_the_text_stays(learning):
    learning.inside(note_lengths)
    answers = learning.call(inside.generate, prompts=PROMPTS)
    assert_greedy(PROMPTS, [greedy(tuple(prompt)) for prompt in PROMPTS], answers)
    found = learning.inside(learnt)
    reports, total = found["reports"], found["counts"]["total"]
    assert found["faults"] == 0
    assert found["counts"]["faults"] == {}
    assert [report["step"] for report in reports] == list(range(len(reports)))
    verified = [report["verified"] for report in reports]
    cut = [drafted - count for drafted, count in zip(found["lengths"], verified, strict=False)]
    assert min(cut) == 0, "what was drafted, not the padded width"
    assert sum(map(bool, cut)) <= len(PROMPTS), "less only where requests end"
    assert sum(verified) < sum(report["draft_length"] * report["requests"] for report in reports)
    assert sum(report["accepted"] for report in reports) >= total["accepted"] > 0
    assert found["decided"] == [total["tested"], total["accepted"]]
    assert len(set(found["prices"])) > 1, "the price was learnt"
    assert min(abs(price - found["price"]) for price in found["prices"]) < 1e-6, "and came to the trim half"
    for cost in found["costs"]:
        assert cost["seconds"] > 0
        assert cost["tokens"] == cost["requests"] * (cost["draft_length"] + 1)
        assert cost["context_tokens"] > cost["requests"]
    assert any(cost["draft_length"] for cost in found["costs"])
    assert any(report["cost"] is None for report in reports), "the step behind a prefill is not timed"


def switch(scheduler: Any, mode: str) -> None:
    """Switch drafting off or on, as operators do."""
    scheduler.draft_worker.drafting.step_planner.control.set(mode=mode)


def test_while_speculation_is_off_no_planner_is_called(learning):
    learning.inside(note_lengths)
    learning.call(inside.generate, prompts=PROMPTS)
    learning.inside(switch, mode="off")
    answers, before = learning.call(inside.generate, prompts=PROMPTS), learning.inside(learnt)
    assert_greedy(PROMPTS, [greedy(tuple(prompt)) for prompt in PROMPTS], answers)
    learning.call(inside.generate, prompts=PROMPTS)
    off = learning.inside(learnt)
    assert [off[name] for name in ("prices", "reports", "costs")] == [
        before[name] for name in ("prices", "reports", "costs")
    ]
    learning.inside(switch, mode="on")
    learning.call(inside.generate, prompts=PROMPTS)
    on = learning.inside(learnt)
    assert len(on["prices"]) > len(off["prices"])
    assert len(on["reports"]) > len(off["reports"])
