"""A plug-in that raises, drafts nonsense or hangs costs its drafts: the text is right and the engine lives on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.plain import Answers, assert_greedy, greedy, prompts
from tests.engines.sglang import inside, watching

PROMPTS = [list(prompt) for prompt in prompts()]
BROKEN = ["raises", "raises-device", "garbage", "garbage-device", "slow"]
SETTINGS = {
    "proposer": "ngram",
    "extra_proposers": BROKEN,
    "policy": "fixed",
    "faults": {"host_deadline_ms": 100.0, "max_consecutive": 3, "cooldown_steps": 4},
    "options": {
        "raises": {"every": 2, "hostile": True},
        "raises-device": {"hostile": True},
        "slow": {"seconds": 0.3, "every": 8},
    },
}
NOTHING_WORKS = {"proposer": "raises-device", "faults": {"cooldown_steps": 2}}


@pytest.fixture(scope="session")
def broken(engine: Callable[..., Engine]) -> Engine:
    return engine("SPECPLUG", environment={"SPECPLUG_CONFIG": json.dumps(SETTINGS)}, name="broken")


@pytest.fixture(scope="session")
def nothing_works(engine: Callable[..., Engine]) -> Engine:
    """The server's one proposer raises at every call, in trees and a step at a time."""
    environment = {"SPECPLUG_CONFIG": json.dumps(NOTHING_WORKS)}
    return engine("SPECPLUG", topk=4, overlap=False, environment=environment, name="nothing works")


@pytest.fixture(scope="session")
def truth() -> Answers:
    """The plain model's answers."""
    return [greedy(prompt) for prompt in prompts()[:12]]


def misbehave(scheduler: Any, call: str) -> None:
    """Let those that raise do so in another kind of call; and let requests named "x/1" ask for proposer x."""
    from specplug.requests import wire
    from specplug.types.request import RequestOptions

    for handle in [runner.handle for runner in scheduler.draft_worker.drafting.stage.runners]:
        if handle.spec.name.startswith("raises"):
            options = handle.proposer._options
            handle.proposer._options = options.model_copy(update={"call": call})
    add = type(scheduler)._add_request_to_queue

    def choose(req: Any, *args: Any, **kwargs: Any) -> Any:
        name, is_named, _ = req.rid.partition("/")
        if is_named:
            fields = wire.encode(RequestOptions(proposer=name), (), None)
            req.sampling_params.custom_params = {wire.WIRE_KEY: fields}
        return add(scheduler, req, *args, **kwargs)

    scheduler._add_request_to_queue = choose


def counted(engine: Any, prompts: list[list[int]], rids: list[str]) -> dict[str, Any]:
    """Generate; return "answers", and what was counted meanwhile; "policy" are the plan half's faults."""
    watching.call(engine, begin)
    answers = inside.generate(engine, prompts, rid=rids)
    left = watching.settled(engine)
    return {"answers": answers, "left": left, **watching.call(engine, end)}


def begin(scheduler: Any) -> None:
    drafting = scheduler.draft_worker.drafting
    scheduler._watched = drafting.counts.read(), dict(drafting.step_planner.faults)


def end(scheduler: Any) -> dict[str, Any]:
    drafting = scheduler.draft_worker.drafting
    metrics, faults = scheduler._watched
    new = {"/".join(key): count - faults.get(key, 0) for key, count in drafting.step_planner.faults.items()}
    return {"policy": new, **(drafting.counts.read() - metrics).as_dict()}


@pytest.mark.parametrize("call", ["propose", "ingest", "observe", "on_event"])
def test_every_request_gets_its_text(call, broken, truth):
    """Rows of all the broken proposers in one batch, twice: what is switched off comes back and fails again."""
    broken.inside(misbehave, call=call)
    names = ["", *BROKEN]
    faults: dict[tuple[str, str], int] = {}
    for turn in range(2):
        rids = [f"{names[i % len(names)]}/{call} {turn} {i}".lstrip("/") for i in range(12)]
        found = broken.call(counted, prompts=PROMPTS[:12], rids=rids)
        assert_greedy(PROMPTS[:12], truth, found["answers"])
        assert not any(found["left"].values())
        assert found["by_source"]["ngram/own text"]["accepted"] > 0, "the sound one is not disturbed"
        for name, kinds in found["faults"].items():
            for fault, count in kinds.items():
                faults[name, fault] = faults.get((name, fault), 0) + count
    assert faults["raises", "raised"] > 0
    assert faults["raises-device", "raised"] > 0
    assert faults["garbage", "malformed"] > 0
    assert faults["slow", "late"] > 0
    if call in ("propose", "ingest"):  # it fails at every step; between the other calls there are steps that go well
        assert faults["raises-device", "switched off"] > 1, "it came back and failed again"
    assert not {name for name, _ in faults} & {"ngram", "policy fixed"}


def break_policy(scheduler: Any, every: int) -> None:
    """Let the policy raise at every n-th step; 0 stops that."""
    stage = scheduler.draft_worker.drafting.step_planner.stage
    planner, stage.is_constant = stage._planner, not every  # a constant plan is made once
    planner.__dict__.pop("plan", None)
    original, steps = planner.plan, []

    def plan(stats: Any) -> Any:
        steps.append(1)
        if len(steps) % every == 0:
            raise RuntimeError("raised as told")
        return original(stats)

    if every:
        planner.plan = plan


@pytest.mark.parametrize("every", [1, 3])
def test_a_policy_that_raises(every, broken, truth):
    broken.inside(break_policy, every=every)
    try:
        found = broken.call(counted, prompts=PROMPTS[:6], rids=[f"policy {every} {i}" for i in range(6)])
    finally:
        broken.inside(break_policy, every=0)
    assert_greedy(PROMPTS[:6], truth[:6], found["answers"])
    assert found["policy"]["policy fixed/raised"] > 0
    assert (found["policy"].get("policy fixed/switched off", 0) > 0) == (every == 1)
    assert (found["total"]["proposed"] > 0) == (every == 3), "without a plan nothing is drafted"


def test_the_only_proposer_raises(nothing_works, truth):
    found = nothing_works.call(counted, prompts=PROMPTS[:6], rids=[f"only {i}" for i in range(6)])
    assert_greedy(PROMPTS[:6], truth[:6], found["answers"])
    assert found["faults"]["raises-device"]["raised"] > 0
    assert found["faults"]["raises-device"]["switched off"] > 0
    assert found["total"]["proposed"] == 0
