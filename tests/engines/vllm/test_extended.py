"""Lookup after vLLM's own drafter: text as without speculation, caches in step, fields of requests, launches.

The draft model of most tests is the target itself, so every token of it is accepted as long as its key-value cache
holds every token.  `test_extended_sampling` has the distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engines.eagle import write_head
from tests.engines.launch import TINY
from tests.engines.plain import greedy, prompts, tokenizer
from tests.engines.vllm import inside, steps, watching
from tests.engines.vllm.launch import RUNNERS
from tests.engines.vllm.steps import assert_greedy_texts, requests
from tests.engines.vllm.test_engine_drafts import assert_drafted_as_anew, passes_by_step
from tests.engines.vllm.test_no_sync import GIVEN, steady_steps

LONGEST = 7
MODEL_TOKENS = 3
DRAFT_LENGTHS = (7, 2, 5, 0, 7, 1, 0, 3, 6)  # by step, in turn
CAPS = (None, 5)  # by request, in turn
DRAFT_MODEL = {"method": "draft_model", "model": str(TINY), "num_speculative_tokens": LONGEST}
ENGINE = "ngram/engine"
REFERENCE = "ngram/reference"


def extended(engine: Any, kind: str, drafter: dict[str, Any], **more: Any) -> Any:
    """Return an engine whose draft length changes at every step; lookup continues the drafts of its drafter."""
    options = {"ladder": {"draft_lengths": DRAFT_LENGTHS, "caps": CAPS}, "hybrid": {"model_tokens": MODEL_TOKENS}}
    settings = {"proposer": "hybrid", "policy": "fixed+ladder", "options": options}
    return engine(**RUNNERS[kind], specplug=settings, speculative_config=drafter, name=f"extended {kind}", **more)


@pytest.fixture
def server(kind, engine):
    """The target is its own draft model."""
    return extended(engine, kind, DRAFT_MODEL)


def test_a_draft_models_cache_stays_in_step_and_lookup_goes_on(server):
    requested = requests(4)
    requested[3]["params"]["specplug"] = {"num_speculative_tokens": 2}
    run = server.call(recorded, requests=requested)
    assert_greedy_texts(run, requested)
    longest = [max(step["drafts"].get(str(i), 0) for step in run["record"]) for i in range(4)]
    assert (max(longest), longest[3]) == (LONGEST, 2)
    assert {LONGEST, 5, 2} == {*longest}
    own = run["counts"].pop(ENGINE)
    assert own["accepted"] == own["verified"] > 20
    assert sum(own["verified_at"][MODEL_TOKENS:]) == 0
    assert sum(of["verified"] for of in run["counts"].values()) > 20
    most = [min(max(1, step["requested"]), MODEL_TOKENS) for step in run["record"]]
    assert all(passes in {1, own} for passes, own in zip(run["passes"], most, strict=True))
    assert max(run["passes"]) == MODEL_TOKENS
    assert {step["requested"] for step in run["record"]} == {*DRAFT_LENGTHS}


def recorded(llm: Any, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Do as `steps.recorded`, and return further the "counts" by source and the "passes" of the draft model by step."""
    with passes_by_step(llm) as passes, watching.counting(llm) as counts:
        run = steps.recorded(llm, requests)
    return {**run, "passes": passes, "counts": counts["by_source"]}


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_an_eagle_heads_cache_stays_in_step_under_any_pattern_of_tails(kind, engine, tmp_path):
    head = {"method": "eagle", "model": str(write_head(tmp_path / "eagle", "LlamaForCausalLM"))}
    server = extended(engine, kind, {**head, "num_speculative_tokens": LONGEST}, enable_prefix_caching=False)
    run = server.call(recorded_with_engine_drafts, requests=requests(3, tokens=48))
    assert_greedy_texts(run, requests(3, tokens=48))
    own = run["counts"].pop(ENGINE)
    assert own["verified"] > own["accepted"]
    verified, accepted = (sum(of[name] for of in run["counts"].values()) for name in ("verified", "accepted"))
    assert verified > accepted > 10
    assert_drafted_as_anew(server, run["drafted"], engine_drafts_anew)


def recorded_with_engine_drafts(llm: Any, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Do as `recorded`, and return under "drafted" (text, draft) of all that vLLM's drafter drafts, as token ids."""
    with _engine_drafts(llm) as drafted:
        return {**recorded(llm, requests), "drafted": drafted}


def engine_drafts_anew(llm: Any, requests: list[dict[str, Any]]) -> list[tuple[list[int], list[int]]]:
    """Run requests one at a time and return (text, draft) of what vLLM's drafter drafts."""
    with _engine_drafts(llm) as drafted:
        for request in requests:
            inside.drive(llm, [request])
    return drafted


@contextmanager
def _engine_drafts(llm: Any) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Let the drafter draft all its tokens, and record (text, draft) of these, as specplug receives them."""
    drafted: list[tuple[list[int], list[int]]] = []
    runner = inside.runner(llm)
    ours = watching.drafter(llm)
    owner, name = (runner.speculator, "propose") if hasattr(runner, "speculator") else (ours, "extend")
    original = getattr(owner, name)

    def extend(runner: Any, output: Any) -> None:
        newest = ours._newest
        batch = runner.input_batch
        original(runner, output)
        rows, count = (0, 0) if newest is None else newest.shape
        for row, ids in enumerate(ours._engine_ids[:rows, :count].tolist()):
            drafted.append((batch.token_ids_cpu[row, : batch.num_tokens_no_spec[row]].tolist(), ids))

    def propose(batch: Any, *args: Any, num_speculative_tokens: int, **kwargs: Any) -> Any:
        found = original(batch, *args, num_speculative_tokens=num_speculative_tokens, **kwargs)
        states = runner.req_states
        count = min(num_speculative_tokens, MODEL_TOKENS)
        for slot, ids in zip(batch.idx_mapping.tolist(), ours._drafted[:, :count].tolist(), strict=False):
            length = int(states.total_len.gpu[slot])
            drafted.append((states.all_token_ids.gpu[slot, :length].tolist(), ids))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, extend if name == "extend" else propose)
        if name == "extend":
            patch.setattr(ours, "_wanted", lambda: MODEL_TOKENS)
        else:
            patch.setattr(ours.steps, "engine_tokens", lambda: MODEL_TOKENS)
        yield drafted


# -- fields of requests ----------------------------------------------------------------------------------------------

PROMPT = prompts()[3]
FIELDS: dict[str, tuple[Callable[[], dict[str, Any]], int]] = {
    "references": (lambda: {"references": [{"token_ids": answer()}]}, LONGEST),
    "a text": (lambda: {"references": tokenizer().decode(answer())}, LONGEST),
    "off": (lambda: {"enabled": False}, 0),
    "one": (lambda: {"num_speculative_tokens": 1}, 1),
}


def answer() -> list[int]:
    """Return the plain model's answer; engines' processes, which import this file, load no plain model."""
    found: list[int] = greedy(PROMPT, 32)["token_ids"]
    return found


@pytest.mark.parametrize("name", FIELDS)
def test_fields_of_a_request_are_followed(server, name):
    make, most = FIELDS[name]
    given = make()
    params = {"max_tokens": 32, "specplug": {"store": False, **given}}
    found = server.call("served.counted", prompts=[list(PROMPT)], params=[params])
    assert found["answers"][0]["token_ids"] == answer()
    verified_at = found["total"]["verified_at"]
    assert sum(verified_at[most:]) == 0
    assert (verified_at[0] > 0, found["accepted_by_vllm"] > 0) == (most > 0, most > 0)
    assert (found["by_source"][REFERENCE]["accepted"] > 0) is ("references" in given)


def texts_of(run: dict[str, Any]) -> list[list[int]]:
    return [answer["token_ids"] for answer in run["answers"]]


def test_a_grammars_text_is_that_without_drafts(server):
    grammar = {"max_tokens": 32, "structured_outputs": {"regex": r"(foo|bar|baz){6,9}"}}

    def counted(**given: Any) -> dict[str, Any]:
        params = [{**grammar, "specplug": given}, {"max_tokens": 16}]
        return server.call("served.counted", prompts=[list(PROMPT)] * 2, params=params)

    plain = counted(enabled=False)
    own = counted(store=False)
    looked_up = counted(references=[{"token_ids": plain["answers"][0]["token_ids"]}])
    assert texts_of(own) == texts_of(looked_up) == texts_of(plain)
    assert looked_up["by_source"][REFERENCE]["accepted"] > 0


def test_a_seeds_text_is_that_without_drafts(kind, server):
    """V1's generators advance by as many numbers as a step draws, so that such requests have no drafts there."""
    params = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True}
    seeded = [{**params, "seed": seed} for seed in (1, 2)]
    (plain, drafted) = (
        server.call("served.counted", prompts=[list(PROMPT)] * 2, params=[{**own, "specplug": way} for own in seeded])
        for way in ({"enabled": False}, {"references": [{"token_ids": answer()}]})
    )
    assert texts_of(drafted) == texts_of(plain)
    assert plain["total"]["verified"] == 0
    assert (drafted["total"]["verified"] > 0) is (kind != "v1")


# -- launches and waits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["v2_async"])
def test_a_step_is_two_launches_and_lookups_own_more_than_the_drafters(server):
    """Nothing waits for them, and the drafter itself runs as before."""
    found = server.call(steady_steps, requested=GIVEN, tokens=64)
    assert found["steps"] > 5
    drafting = len(found["launched"]) // 2
    assert found["launched"] == ["begin", "finish"] * drafting
    assert 0 < drafting <= found["steps"]
    assert found["found"] == []
    assert found["launches"] == found["own"]
    assert found["proposed"] > 10
