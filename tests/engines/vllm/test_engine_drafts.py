"""vLLM's own drafters under specplug's plans: lengths, caps, text as without speculation, and caches that stay in step.

The draft model of these tests is the target itself, so every draft token is accepted as long as the draft model's
key-value cache holds every token.  The EAGLE head is random: its drafts must be those of a head that computes its cache
anew.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from specplug_vllm.scheduler.scheduler import SpecplugAsyncScheduler
from tests.engines.eagle import write_head
from tests.engines.launch import TINY
from tests.engines.vllm import inside, steps
from tests.engines.vllm.launch import RUNNERS
from tests.engines.vllm.steps import assert_greedy_texts, requests

LONGEST = 5
DRAFT_LENGTHS = (0, 1, 3, 5, 0, 0, 2)
DRAFT_MODEL = {"method": "draft_model", "model": str(TINY), "num_speculative_tokens": LONGEST}


@pytest.fixture
def ladder(engine):
    """Make an engine whose draft length changes at every step, and whose second request is capped.

    Its policy is joined, so that the limits of a part reach the engine.
    """

    def make(kind: str, drafter: dict[str, Any], caps: tuple[int | None, ...] = (), **arguments: Any) -> Any:
        settings = {"policy": "fixed+ladder", "options": {"ladder": {"draft_lengths": DRAFT_LENGTHS, "caps": caps}}}
        spec = {"num_speculative_tokens": LONGEST, **drafter}
        return engine(**RUNNERS[kind], specplug=settings, speculative_config=spec, name="own", **arguments)

    return make


@pytest.mark.parametrize("kind", ["v1", "v2_async"])
def test_a_draft_model_keeps_its_cache_in_step_at_every_draft_length(ladder, kind):
    run = ladder(kind, DRAFT_MODEL).call(recorded_and_counted, requests=requests(3))
    assert_greedy_texts(run, requests(3))
    assert_planned_in_turn(run)
    drafted = run["counts"]["draft_model"]
    assert drafted["verified"] > 50
    assert drafted["accepted"] == drafted["verified"]
    seen = sum(len(output["token_ids"]) for output in run["outputs"].values())
    emitted = sum(run["counts"][source]["emitted"] for source in ("draft_model", "none", "off"))
    assert seen <= emitted <= seen + LONGEST * len(run["outputs"])  # some after a stop
    assert run["passes"] == [max(1, step["requested"]) for step in run["record"]]


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_an_eagle_head_keeps_its_cache_in_step_at_every_draft_length(ladder, kind, tmp_path):
    head = {"method": "eagle", "model": str(write_head(tmp_path / "eagle", "LlamaForCausalLM"))}
    server = ladder(kind, head, enable_prefix_caching=False)
    run = server.call(recorded_with_drafts, requests=requests(2))
    assert_greedy_texts(run, requests(2))
    assert_planned_in_turn(run)
    assert_drafted_as_anew(server, run["drafted"], drafted_anew)


def assert_drafted_as_anew(server, drafted, anew):
    """Hold a head's drafts, as (text, draft), against those of the same head without anything in its cache.

    `anew` runs requests one at a time in the engine's process, and returns the same of them.
    """
    contexts = {tuple(context): ids for context, ids in drafted if len(ids) > 1}
    assert len(contexts) > 8
    assert all(token >= 0 for ids in contexts.values() for token in ids)
    again = [
        {"id": str(i), "prompt": list(context), "at": 0, "params": {"max_tokens": 2}}
        for i, context in enumerate(contexts)
    ]
    fresh = {tuple(context): ids for context, ids in server.call(anew, requests=again)}
    compared = 0
    for context, ids in contexts.items():
        common = min(len(ids), len(fresh.get(context, ())))
        assert ids[:common] == list(fresh.get(context, ()))[:common]
        compared += common
    assert compared > 12


LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
THIRD_PARTY = "tests.engines.vllm.others.Repeats"


@pytest.mark.parametrize(
    ("kind", "drafter"),
    [
        ("v1", {"method": "ngram", **LOOKUP}),
        ("v1", {"method": "custom_class", "model": THIRD_PARTY}),
        ("v2", {"method": "ngram_gpu", **LOOKUP}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["method"],
)
def test_lookup_and_third_parties_drafts_are_cut_to_the_plan_and_the_caps(ladder, kind, drafter):
    run = ladder(kind, drafter, caps=(None, 2)).call(recorded_and_counted, requests=requests(3))
    assert_greedy_texts(run, requests(3))
    verified = [(name, count) for step in run["record"] for name, count in step["drafts"].items()]
    assert max(count for name, count in verified if name == "1") <= 2
    assert max(count for _, count in verified) > 2
    decided = sum(count for _, count in verified)
    at_ends = sum(dict(verified).values())  # drafts of the steps that ended a request count up to its end
    assert decided - at_ends <= run["counts"][drafter["method"]]["verified"] <= decided


@pytest.mark.parametrize(("cut", "verified"), [(None, 4), ({"other": 2}, 4), ({"r": 3}, 1), ({"r": 4}, 0)])
def test_what_vllm_pads_for_a_grammar_is_not_verified(cut, verified):
    scheduler = object.__new__(SpecplugAsyncScheduler)
    scheduler.log_stats = True
    scheduler.num_spec_tokens = LONGEST
    scheduler._results = []
    stats = scheduler.make_spec_decoding_stats(
        None, num_draft_tokens=4, num_accepted_tokens=0, num_invalid_spec_tokens=cut, request_id="r"
    )
    assert scheduler._results == [("r", verified, 0)]
    assert stats.num_draft_tokens == verified, "vLLM's own count"


def assert_planned_in_turn(run):
    planned = [step["requested"] for step in run["record"]]
    turns = list(DRAFT_LENGTHS) * len(planned)
    assert any(planned == turns[i : i + len(planned)] for i in range(len(DRAFT_LENGTHS)))


def recorded_and_counted(llm, requests):
    """Do as `steps.recorded`, and return further what the engine counted.

    Returns:
        What `steps.recorded` returns, "counts", the scheduler's by source, and "passes", of a draft model by step.
    """
    scheduler = inside.scheduler(llm)
    before = scheduler.counts.snapshot({})
    with passes_by_step(llm) as passes:
        run = steps.recorded(llm, requests)
    return {**run, "passes": passes, "counts": (scheduler.counts.snapshot({}) - before).as_dict()["by_source"]}


@contextmanager
def passes_by_step(llm):
    """Count the passes of the draft model in each step that calls vLLM's drafter."""
    runner = inside.runner(llm)
    drafter = getattr(runner, "speculator", None) or runner.drafter
    passes = []
    propose = drafter.propose

    def proposing(*args, **kwargs):
        passes.append(0)
        return propose(*args, **kwargs)

    def count(*_):
        passes[-1] += 1

    model = getattr(drafter, "model", None)
    counting = model.register_forward_pre_hook(count) if model is not None else nullcontext()
    drafter.propose = proposing
    try:
        with counting:
            yield passes
    finally:
        drafter.propose = propose


def recorded_with_drafts(llm, requests):
    """Do as `steps.recorded`, and return under "drafted" (text, draft) of every draft, as token ids."""
    with _drafts(llm) as drafted:
        return {**steps.recorded(llm, requests), "drafted": drafted}


def drafted_anew(llm, requests):
    """Run requests one at a time and return (text, draft) of their drafts."""
    with _drafts(llm) as drafted:
        for request in requests:
            inside.drive(llm, [request])
    return drafted


@contextmanager
def _drafts(llm):
    """Record (text, draft): on V1 as the scheduler gets them, on V2 in the runner, which keeps them on the device."""
    drafted = []
    scheduler = inside.scheduler(llm)
    runner = inside.runner(llm)
    owner = getattr(runner, "draft_tokens_handler", None) or scheduler
    name = "update_draft_token_ids" if owner is scheduler else "set_draft_tokens"
    original = getattr(owner, name)

    def of_v1(found):
        for request_id, ids in zip(found.req_ids, found.draft_token_ids, strict=True):
            if request_id in scheduler.requests:
                drafted.append((list(scheduler.requests[request_id].all_token_ids), list(ids)))
        return original(found)

    def of_v2(batch, draft_tokens):
        states = runner.req_states
        for slot, ids in zip(batch.idx_mapping.tolist(), draft_tokens.tolist(), strict=True):
            length = int(states.total_len.gpu[slot])
            drafted.append((states.all_token_ids.gpu[slot, :length].tolist(), ids))
        return original(batch, draft_tokens)

    setattr(owner, name, of_v1 if owner is scheduler else of_v2)
    try:
        yield drafted
    finally:
        setattr(owner, name, original)
