"""With specplug installed but not requested, vLLM is unmodified: same runner, scheduler, refusals and output."""

from __future__ import annotations

import pytest

from tests.engines.vllm import inside

V2_RUNS = "Using V2 Model Runner"
MODULES = "tests.engines.vllm.others"

REQUESTS = [
    ("def main():\n", {}),
    ("import os\nimport sys\nimport re\n", {"logprobs": 3, "max_tokens": 16}),
    ("class Foo:\n    def __init__(self):\n", {"temperature": 0.8, "seed": 5, "top_p": 0.9}),
    ("for i in range(10):\n    print(i)\n", {"temperature": 1.0, "seed": 7, "min_p": 0.05}),
    ("if x:\n", {"logit_bias": {"17": 5.0}, "repetition_penalty": 1.2}),
    ("a b c a b c", {"structured_outputs": {"regex": "[a-c ]{4,20}"}}),
]


def answers(engine):
    return engine.call(inside.generate, prompts=[p for p, _ in REQUESTS], params=[given for _, given in REQUESTS])


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_without_speculation_nothing_changes(runner, engine):
    baseline = engine(runner, installed=False)
    idle = engine(runner, asynchronous=runner == "v2", name="idle")
    facts = baseline.call(inside.facts)
    if runner == "v2":
        scheduler = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
        facts |= {"async_scheduling": True, "scheduler": scheduler, "scheduler_cls": scheduler}
    assert idle.call(inside.facts) == facts
    assert facts["speculator"] is None
    assert answers(idle) == answers(baseline)
    assert idle.call(hooked) == []
    assert idle.call(exported_names) == []


def test_another_custom_class_still_goes_to_v1(engine):
    requested = {"method": "custom_class", "model": f"{MODULES}.Repeats", "num_speculative_tokens": 2}
    other = engine("v2", asynchronous=True, speculative_config=requested, name="other_proposer")
    facts = other.call(inside.facts)
    assert (facts["v2"], facts["async_scheduling"]) == (False, False)
    assert facts["speculator"] == f"{MODULES}.Repeats"
    assert facts["scheduler"] == "vllm.v1.core.sched.scheduler.Scheduler"
    assert V2_RUNS not in other.log()
    prompts = [prompt for prompt, _ in REQUESTS]
    expected, found = (e.call(inside.generate, prompts=prompts) for e in (engine("v1", installed=False), other))
    assert [answer["text"] for answer in found] == [answer["text"] for answer in expected]
    assert other.call(calls) > 0
    assert other.call(hooked) == []


@pytest.mark.parametrize(("runner", "asynchronous"), [("v1", False), ("v2", False), ("v2", True)])
def test_the_launch_line_ends_in_the_runner_that_was_requested_for(runner, asynchronous, engine):
    launched = engine(runner, {"proposer": "ngram", "policy": "fixed"}, asynchronous=asynchronous)
    facts = launched.call(inside.facts)
    assert (facts["v2"], facts["async_scheduling"]) == (runner == "v2", asynchronous)
    assert (V2_RUNS in launched.log()) is (runner == "v2")


def hooked(llm):
    """Return the methods of runner, worker and scheduler that specplug has replaced."""
    objects = (inside.runner(llm), inside.scheduler(llm), inside.core(llm))
    classes = {cls for found in objects for cls in type(found).__mro__}
    return sorted(
        f"{cls.__qualname__}.{name}"
        for cls in classes
        for name, value in vars(cls).items()
        if hasattr(value, "_specplug") or str(getattr(value, "__module__", "")).startswith("specplug")
    )


def calls(llm):
    return inside.runner(llm).drafter.calls


def exported_names(llm):
    from prometheus_client import REGISTRY

    return [family.name for family in REGISTRY.collect() if family.name.startswith("specplug")]
