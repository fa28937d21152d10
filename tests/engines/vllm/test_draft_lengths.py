"""Steps and requests have their own draft lengths, and the scheduler uses the room that they leave.

`record` holds what vLLM's scheduler gave out, step by step; see `steps.recorded`.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from specplug_vllm.scheduler.row_lengths import fit_placeholders
from tests.engines.vllm import graphs, steps, watching
from tests.engines.vllm.launch import RUNNERS
from tests.engines.vllm.steps import assert_greedy_texts, requests

DRAFT_LENGTHS = (0, 1, 3, 8, 2)  # by step, in turn
CAPS = (None, 1, 6)  # by request, in turn


def drafting_rows(record):
    """Yield (requested draft length, request id, scheduled drafts) of rows that had sampled in the step before."""
    for before, step in pairwise(record):
        for name, count in step["drafts"].items():
            if name not in step["prefill"] and name in before["drafts"]:
                yield before["requested"], name, count


def test_another_draft_length_at_every_step_and_caps(engine, kind):
    settings = {
        "proposer": "ngram",
        "policy": "ladder",
        "options": {"ladder": {"draft_lengths": DRAFT_LENGTHS, "caps": CAPS}},
    }
    requested = requests(4)
    run = engine(**RUNNERS[kind], specplug=settings, name="ladder").call(steps.recorded, requests=requested)
    assert_greedy_texts(run, requested)
    record = run["record"]
    turns = [DRAFT_LENGTHS[i % len(DRAFT_LENGTHS)] for i in range(2 * len(record))]
    planned = [step["requested"] for step in record]
    assert any(planned == turns[i : i + len(planned)] for i in range(len(DRAFT_LENGTHS)))
    caps = {"0": 8, "1": 1, "2": 6, "3": 8}
    rows = [(min(draft_length, caps[name]), name, count) for draft_length, name, count in drafting_rows(record)]
    assert all(count <= limit for limit, _, count in rows)
    if kind != "v1":  # V2 pads to the limit, short of where a request ends
        assert sum(count == limit for limit, _, count in rows) > 0.8 * len(rows)
        assert {(name, count) for _, name, count in rows} >= {("0", 8), ("0", 3), ("1", 1), ("2", 6), ("2", 3)}
    assert {count for _, _, count in rows} >= {0, 1, 3, 8}


CAPTURED = {
    **{"method": "custom_class", "model": "specplug_vllm.Proposer", "num_speculative_tokens": 8},
    "num_speculative_tokens_per_batch_size": [[1, 2, 7], [3, 4, 3], [5, 8, 0], [9, 16, 1]],
}


@pytest.fixture
def captured(engine):
    """An engine whose launch names the lengths that are captured, in the order in which the policy plans others."""
    settings = {"proposer": "recorder", "policy": "ladder", "options": {"ladder": {"draft_lengths": (3, 8, 2, 5, 7)}}}
    return engine("v2", settings, speculative_config=CAPTURED, asynchronous=True, name="captured")


def test_draft_lengths_are_fitted_to_the_ladder_that_the_launch_names(captured):
    run = captured.call(steps.recorded, requests=requests(3))
    assert_greedy_texts(run, requests(3))
    planned = [step["requested"] for step in run["record"]]
    turns = [3, 7, 0, 3, 7] * len(planned)  # no 1: the server never holds 9 requests, so it has no graphs for it
    assert any(planned == turns[i : i + len(planned)] for i in range(5))


def test_capped_requests_cost_no_step_its_full_graph(captured, monkeypatch):
    requested = requests(3, tokens=24, apart=1)
    gammas = {"0": 2, "1": 8, "2": 0}
    for request in requested:
        request["params"]["specplug"] = {"num_speculative_tokens": gammas[request["id"]]}
    run = captured.call(recorded_and_watched, requests=requested)
    assert_greedy_texts(run, requested)
    found = graphs.vllm_config(8, 8, CAPTURED["num_speculative_tokens_per_batch_size"])
    found._set_cudagraph_sizes()
    manager = graphs.dispatcher(monkeypatch, found)
    decoding = [list(step["drafts"].values()) for step in run["record"] if not step["prefill"]]
    assert {graphs.mode_of(manager, lengths) for lengths in decoding} == {"FULL"}
    assert {(7, 7, 7), (3, 3, 3)} <= set(map(tuple, decoding))
    proposed = dict.fromkeys(gammas, 0)
    for record in run["records"]:
        if record["call"] == "observe":
            for name, count in zip(record["request_ids"], record["verdict"]["proposed"], strict=True):
                if name in gammas:
                    proposed[name] = max(proposed[name], count)
    assert proposed == {name: min(gamma, 7) for name, gamma in gammas.items()}


def recorded_and_watched(llm, requests):
    """Do as `steps.recorded`, and return under "records" those of the proposer `recorder`."""
    with watching.recording(llm) as records:
        found = steps.recorded(llm, requests)
    return {**found, "records": records}


# -- what wide servers leave to others -------------------------------------------------------------------------------

CHUNK = 32  # a row advances by at most so many tokens, drafts included
CROWD = {"max_num_batched_tokens": 64, "long_prefill_token_threshold": CHUNK, "num_gpu_blocks_override": 256}
REJECTED = {"proposer": "uniform", "policy": "fixed"}  # drafts that fill the draft length and are hardly ever accepted


@pytest.mark.parametrize("gamma", [0, 2, None])
def test_a_prompt_that_is_cached_but_for_one_token_is_padded_to_the_plan(engine, gamma):
    wide = engine("v2", REJECTED, draft_length=CHUNK, asynchronous=True, name="wide", **CROWD)
    run = wide.call(cached_but_for_one_token, gamma=gamma)
    (first,) = [step for step in run["record"] if "again" in step["prefill"]]
    assert first["prefill"]["again"] == 1
    assert first["drafts"]["again"] == (CHUNK - 1 if gamma is None else gamma)
    assert run["outputs"]["again"] == run["outputs"]["first"]


@pytest.mark.parametrize(
    ("chunk", "batched", "scheduled", "reserved", "expected"),
    [(0, 512, None, 0, 511), (32, 64, 64, 0, 31), (0, 64, 16, 0, 15), (0, 16, 16, 1, 14), (32, 8, 8, 0, 7)],
)
def test_padding_fits_a_prompts_chunk_and_a_steps_budget(chunk, batched, scheduled, reserved, expected):
    limits = SimpleNamespace(
        long_prefill_token_threshold=chunk, max_num_batched_tokens=batched, max_num_scheduled_tokens=scheduled
    )
    assert fit_placeholders(limits, reserved) == expected


def cached_but_for_one_token(llm, gamma):
    """Run, beside a request that decodes, a prompt whose blocks are all cached and that has one token more."""
    block = llm.llm_engine.vllm_config.cache_config.block_size
    text = [token % 1000 + 3 for token in range(block + 1)]
    params = {"max_tokens": 4, "ignore_eos": True}
    requested = [
        {"id": "first", "prompt": text, "at": 0, "params": params},
        {"id": "beside", "prompt": text[:5], "at": 8, "params": {**params, "max_tokens": 20}},
        {"id": "again", "prompt": text, "at": 12, "params": params},
    ]
    return steps.recorded(llm, requested, gamma=gamma)
