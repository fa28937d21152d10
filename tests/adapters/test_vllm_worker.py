"""vLLM's runners and specplug: quick forms of V1's lists give what loops over rows give; what V2's outputs bring."""

from __future__ import annotations

import pickle
import random
from types import SimpleNamespace

import numpy as np
import pytest

from specplug.metrics import SpecMetrics
from specplug.seams.seam import hook
from specplug.steps.draft_report import DraftReport
from specplug_vllm import step_metadata
from specplug_vllm.requests import DraftRules, running_request
from specplug_vllm.worker import hooks
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.v1 import V1Proposer

SEEDS = pytest.mark.parametrize("seed", range(10))


@SEEDS
def test_figures_are_those_of_a_loop_over_rows(seed):
    draw = random.Random(seed)
    names = [f"r{row}" for row in range(6)]
    table = np.zeros((6, 8), np.int32)
    proposer = object.__new__(V1Proposer)
    for _ in range(5):
        scheduled = {name: [1] * draw.randint(1, 3) for name in names if draw.random() < draw.choice((0.0, 0.6))}
        most = [len(scheduled.get(name, ())) + 1 for name in names]
        sampled = [[7] * draw.randint(0, count) for count in most]
        num_tokens = np.array([draw.randint(1, 8) for _ in names], np.int32)
        proposer.drafting = SimpleNamespace(scheduled=scheduled)
        rows = proposer._tensors(names, sampled, num_tokens, table)
        assert rows.idx_mapping.tolist() == list(range(6))
        assert rows.total_len.tolist() == num_tokens.tolist()
        for row, ids in enumerate(sampled):
            assert rows.num_sampled[row] == len(ids)
            if ids:
                assert len(ids) - 1 + rows.num_rejected[row] == len(scheduled.get(names[row], ()))


@SEEDS
def test_idle_steps_count_the_rows_that_emitted(seed):
    draw = random.Random(seed)
    names = [f"r{row}" for row in range(6)]
    ignored = {name for name in names if seed % 2 and draw.random() < 0.5}
    metrics = SpecMetrics(["ngram"], 4)
    drafting = SimpleNamespace(allocator=SimpleNamespace(ignored=ignored), stage=SimpleNamespace(metrics=metrics))
    sampled = [draw.choice(([], [3])) for _ in names]
    Drafting.count(drafting, names, sampled)
    expected = sum(bool(ids) and name not in ignored for name, ids in zip(names, sampled, strict=True))
    assert (metrics.snapshot().total.target_steps, metrics.snapshot().total.emitted) == (expected, expected)


def test_the_end_of_a_text_that_is_not_in_the_batch_is_not_learnt():
    """A prompt chunk of another client may have filled the step in which a request was not scheduled."""
    proposer = object.__new__(V1Proposer)
    table = np.arange(8, dtype=np.int32).reshape(2, 4)
    proposer._runner = SimpleNamespace(input_batch=SimpleNamespace(token_ids_cpu=table, req_id_to_index={"other": 1}))
    rows, row = proposer.text_of("other")
    assert rows[row].tolist() == [4, 5, 6, 7]
    learnt = []
    finished = []
    drafting = SimpleNamespace(
        ingest_end=lambda *given: learnt.append(given[0]),
        allocator=SimpleNamespace(finish=lambda name, **_: finished.append(name)),
    )
    ended = SimpleNamespace(finished_req_ids={"other", "waiting"}, preempted_req_ids=())
    endings = dict.fromkeys(ended.finished_req_ids, step_metadata.Ending(aborted=False, visible=4))
    step_metadata.attach(ended, step_metadata.StepMetadata(endings=endings))
    Drafting.end_requests(drafting, ended, proposer.text_of)
    assert (learnt, finished) == (["other"], ["other", "waiting"])


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize(("schema", "budget"), [(None, None), (None, 0), ("{}", None)])
def test_requests_whose_drafts_are_cut_by_their_tokens_are_known(is_v2, schema, budget):
    """Such drafts are verified as if they were certain; V2 counts reasoning within drafts, and cuts nothing."""
    params = SimpleNamespace(
        **{"extra_args": None, "seed": None, "temperature": 1.0, "max_tokens": 5, "ignore_eos": True},
        **{"stop_token_ids": [], "structured_outputs": schema, "thinking_token_budget": budget},
    )
    facts = {"prompt_token_ids": [1, 2], "prompt_embeds": None, "prefill_token_ids": [1, 2]}
    new = SimpleNamespace(req_id="a", sampling_params=params, lora_request=None, mm_features=[], **facts)
    rules = DraftRules(SimpleNamespace(use_v2_model_runner=is_v2, reasoning_config=None))
    is_cut = schema is not None or (budget is not None and not is_v2)
    assert running_request(new, 100, rules=rules).request.grammar is is_cut


def test_an_output_brings_what_the_device_writes_later():
    sums = np.zeros(3, np.int64)

    class Runner:
        speculator = SimpleNamespace(verified_report=DraftReport(sums))

        def sample_tokens(self):
            return SimpleNamespace(model_runner_output=SimpleNamespace())

    def read(output):
        drafts = step_metadata.report_of(output).drafts
        return drafts.expected, drafts.expected_rows

    hook(Runner, "sample_tokens", hooks.sample_tokens)
    found = Runner().sample_tokens().model_runner_output
    assert read(found) == (None, 0)
    sums[:] = 1, 3 << 10, 1 << 11
    assert read(found) == read(pickle.loads(pickle.dumps(found))) == ([0.75, 0.5], 1)
    Runner.speculator.verified_report = None
    assert read(Runner().sample_tokens().model_runner_output) == (None, 0)
