"""Whatever changes logits with the history does so at every draft position, also where drafts are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specplug_transformers import GenerateRequest, SamplingParams
from tests.transformers.conftest import greedy, requests_of
from tests.transformers.toys import Recorder, prompts

PROMPTS = prompts(4, seed=3)
MAX_TOKENS = 24


SAMPLED: dict[str, dict[str, Any]] = {
    "all three": {"top_k": 12, "top_p": 0.9, "min_p": 0.05},
    "with a penalty": {"top_k": 12, "repetition_penalty": 1.4},
}


def test_plug_ins_hear_of_a_grammar(make_engine):
    engine = make_engine(proposer="recorder")
    engine.generate(
        requests_of([[5], [6]], max_tokens=2) + requests_of([[7]], max_tokens=2, allowed_tokens=lambda _row, _ids: [9])
    )
    assert Recorder.newest.grammars[0] == [False, False, True]


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_tokens_pass_the_filters(name, make_engine, llama):
    """Every emitted token has positive probability under Hugging Face's own processors and warpers."""
    params = SAMPLED[name]
    warpers = LogitsProcessorList()
    if "repetition_penalty" in params:
        warpers.append(RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
    by_name = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}
    warpers += [warper(params[name]) for name, warper in by_name.items() if name in params]
    engine = make_engine(proposer="garbage")
    outputs = engine.generate(requests_of(PROMPTS, max_tokens=8, temperature=1.0, ignore_eos=True, **params))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        text = list(prompt)
        for token in output.token_ids:
            ids = torch.tensor([text])
            scores = warpers(ids, llama(input_ids=ids).logits[:, -1].detach())
            assert scores[0, token] > -torch.inf
            text.append(token)


def test_a_processor_that_raises_names_its_request(make_engine, llama):
    def broken(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("mine")

    engine = make_engine()
    engine.add(GenerateRequest(prompt=[5, 6], request_id="good", params=SamplingParams(max_tokens=9)))
    engine.add(GenerateRequest(prompt=[5, 6], request_id="bad", processors=broken))
    with pytest.raises(ZeroDivisionError) as caught:
        list(engine.run())
    assert "'bad'" in caught.value.__notes__[0]
    engine.abort("bad")
    *_, last = engine.run()
    assert (last.request_id, list(last.token_ids)) == ("good", greedy(llama, [5, 6], 9))
