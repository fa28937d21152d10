"""After vLLM's own drafter sampled text has the target's distribution: exact probabilities against observed counts.

The target is the toy model of 16 tokens, and its drafter another such model, so that drafts are accepted often but not
always.  Requests name references of the most frequent tokens, so that lookup goes on, and often drafts instead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.engines import Engine
from tests.engines.toy import PAIRS, PROMPT, VOCAB, by_frequency, model, p_value
from tests.engines.vllm import watching
from tests.engines.vllm.inside import generate
from tests.engines.vllm.launch import RUNNERS
from tests.engines.vllm.test_sampling import toy

__all__ = ["toy"]

DRAFT_LENGTH = 4
MODEL_TOKENS = 2
ANSWERS = {"v1": 512, "v2": 24}
"""How many answers of `PAIRS` pairs each are sampled."""


@pytest.fixture(scope="session")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model than the target, not too far from it."""
    path = tmp_path_factory.mktemp("toy-drafter")
    other = copy.deepcopy(model())
    torch.manual_seed(5)
    with torch.no_grad():
        other.lm_head.weight += 0.25 * torch.randn_like(other.lm_head.weight)
    other.save_pretrained(path)
    return path


@pytest.fixture
def server(kind, method, toy, drafter, engine) -> Engine:
    return hybrid(engine, kind, method, toy, drafter)


def hybrid(engine: Callable[..., Engine], kind: str, method: str, target: Path, drafter: Path) -> Engine:
    """Return an engine whose drafter drafts by `method`."""
    spec = {"method": "draft_model", "model": str(drafter), "num_speculative_tokens": DRAFT_LENGTH}
    return engine(
        **RUNNERS[kind],
        specplug={"proposer": "hybrid", "policy": "fixed", "options": {"hybrid": {"model_tokens": MODEL_TOKENS}}},
        speculative_config={**spec, "draft_sample_method": method},
        name=f"extended toy {kind} {method}",
        model=str(target),
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=64,
    )


def sampled(server: Engine, kind: str) -> tuple[float, dict[str, Any]]:
    """Sample at temperature 1; return the p-value of the counts of pairs, and what was counted by source."""
    common = {"temperature": 1.0, "max_tokens": 2 * PAIRS, "ignore_eos": True, "detokenize": False}
    likely = by_frequency()[:3]
    references = [[{"token_ids": [token] * 2 * PAIRS}] for token in likely] + [[]]
    ways = [{"specplug": {"references": given, "store": False}} for given in references]
    requested = [{**common, **ways[index % 4]} for index in range(ANSWERS[kind])]
    found = server.call("served.counted", prompts=[list(PROMPT)] * len(requested), params=requested)
    assert not found["faults"]
    return p_value([answer["token_ids"] for answer in found["answers"]]), found["by_source"]


SHIFTED = "shifted by one position"
METHODS = pytest.mark.parametrize("method", ["greedy", "probabilistic"])
KINDS = pytest.mark.parametrize("kind", ["v1", "v2"])


@KINDS
@METHODS
def test_the_distribution_is_the_targets(kind, method, server):
    p, by_source = sampled(server, kind)
    assert p > 1e-4
    own = by_source.pop("ngram/engine")
    tails = [sum(of["verified_at"][k] for of in by_source.values()) for k in range(DRAFT_LENGTH)]
    assert 20 < own["accepted"] < own["verified"]
    assert min(tails) > 50, "lookup's tokens stand after the drafter's, and in their place"
    assert 0 < sum(of["accepted"] for of in by_source.values()) < sum(tails)


@KINDS
@pytest.mark.parametrize("method", ["probabilistic"])
def test_tokens_that_a_policy_selects_are_verified_as_certain(kind, method, server):
    """What a draft is worth to a policy depends on how lookup goes on after the token that was drawn."""
    assert server.call(most_drawn, budget=3) == 0
    assert server.call(most_drawn, budget=None) > 0


def most_drawn(llm: Any, budget: int | None) -> int:
    """Return how many tokens of a draft were at most stated as drawn, if the policy keeps so many of a step."""
    from specplug_vllm.worker import extended_v1, extended_v2
    from specplug_vllm.worker.drafting import Drafting

    stated = [0]
    with pytest.MonkeyPatch.context() as patch:
        begin = Drafting.begin_step

        def limited(self: Drafting, scheduler_output: Any) -> None:
            begin(self, scheduler_output)
            self.plan = replace(self.plan, token_budget=budget)

        def noting(state: Callable[..., Any], *given: Any) -> Any:
            stated.append(int(torch.as_tensor(given[-2 if state is write else -1]).max()))
            return state(*given)

        write = extended_v2.write_one_hot
        patch.setattr(Drafting, "begin_step", limited)
        patch.setattr(extended_v1, "extend_probs", partial(noting, extended_v1.extend_probs))
        patch.setattr(extended_v2, "write_one_hot", partial(noting, write))
        params = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True, "detokenize": False}
        generate(llm, [list(PROMPT)] * 4, params)
    return max(stated)


@KINDS
@pytest.mark.parametrize("method", ["probabilistic"])
@pytest.mark.parametrize("mistake", ["a tail stated as drawn", SHIFTED])
def test_a_wrong_distribution_is_found_out(kind, method, mistake, server):
    server.call(plant, mistake=mistake)
    try:
        p, _ = sampled(server, kind)
    finally:
        server.call(plant, mistake=None)
    assert p < 1e-6


def plant(llm: Any, mistake: str | None) -> None:
    """State a wrong distribution of drafts from now on; None: the right one."""
    from specplug_vllm.worker import extended_v1, extended_v2

    module, name = (
        (extended_v2, "write_one_hot") if hasattr(watching.runner(llm), "speculator") else (extended_v1, "extend_probs")
    )
    right = vars(module).setdefault("right", getattr(module, name))

    def of_v1(probs: Tensor, drafts: list[list[int]], from_engine: list[int]) -> Tensor:
        if mistake == SHIFTED:
            return right(probs.roll(1, dims=1), drafts, from_engine)
        wide = right(probs, drafts, [*map(len, drafts)])
        wide[:, probs.shape[1] :] = 1 / VOCAB
        return wide

    def of_v2(logits: Tensor, slots: Tensor, *how: Tensor) -> None:
        if mistake == SHIFTED:
            right(logits, slots, *how)
            logits[slots] = logits[slots].roll(1, dims=1)
        else:
            logits[slots, MODEL_TOKENS:] = 0.0

    wrong = {"write_one_hot": of_v2, "extend_probs": of_v1}
    setattr(module, name, right if mistake is None else wrong[name])
