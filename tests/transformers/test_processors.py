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

from specplug.errors import RequestError
from specplug_transformers import GenerateRequest, SamplingParams
from tests.transformers.conftest import greedy, requests_of
from tests.transformers.toys import EOS, VOCAB, Oracle, Recorder, prompts

PROMPTS = prompts(4, seed=3)
MAX_TOKENS = 24


def grammar(_batch: int, ids: torch.Tensor) -> list[int]:
    """Allow ids of the other parity than the last one's; be furious about a text that breaks this rule."""
    output = ids[1:] - ids[:-1]
    if len(ids) > grammar.prompt_length and bool((output[grammar.prompt_length - 1 :] % 2 == 0).any()):
        raise KeyError("asked about a text that the grammar does not allow")
    return [token for token in range(3, VOCAB) if (token - int(ids[-1])) % 2]


# parameter set -> (ours, Hugging Face's options)
WITH_TWIN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "repetition penalty": ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    "logit bias": (
        {"logit_bias": {9: 4.0, 14: -100.0}},
        {"sequence_bias": [[[9], 4.0], [[14], -100.0]]},
    ),
    "bad words": ({"bad_words": [[30], [45, 49]]}, {"bad_words_ids": [[30], [45, 49]]}),
    "min tokens": (
        {"min_tokens": 10, "logit_bias": {EOS: 6.0}},
        {"min_new_tokens": 10, "sequence_bias": [[[EOS], 6.0]]},
    ),
    "several at once": (
        {"repetition_penalty": 0.8, "logit_bias": {EOS: 2.0}, "bad_words": [[30]], "min_tokens": 5},
        {
            "repetition_penalty": 0.8,
            "sequence_bias": [[[EOS], 2.0]],
            "bad_words_ids": [[30]],
            "min_new_tokens": 5,
        },
    ),
}
WITHOUT_TWIN: dict[str, dict[str, Any]] = {
    "presence penalty": {"presence_penalty": 2.5},
    "frequency penalty": {"frequency_penalty": 1.5},
    "both": {"presence_penalty": -1.0, "frequency_penalty": 2.0, "repetition_penalty": 1.1},
}
SAMPLED: dict[str, dict[str, Any]] = {
    "top k": {"top_k": 3},
    "top p": {"top_p": 0.7},
    "min p": {"min_p": 0.2},
    "all three": {"top_k": 12, "top_p": 0.9, "min_p": 0.05},
    "with a penalty": {"top_k": 12, "repetition_penalty": 1.4},
}


def both_ways(make_engine: Any, expected: list[list[int]], **params: Any) -> None:
    """Serve with garbage drafts and with right ones; both must give the expected texts."""
    for proposer in ("garbage", "oracle"):
        engine = make_engine(proposer=proposer, max_num_seqs=3)
        Oracle.answers = {f"request-{index}": answer for index, answer in enumerate(expected)}
        outputs = engine.generate(requests_of(PROMPTS, max_tokens=MAX_TOKENS, **params))
        assert [list(output.token_ids) for output in outputs] == expected
        total = engine.metrics.snapshot().total
        if proposer == "oracle":
            assert total.accepted > 0 == total.rejected, "right drafts must pass every processor"
        else:
            assert total.proposed > 0


@pytest.mark.parametrize("name", WITH_TWIN)
def test_equals_generate(name, make_engine, llama):
    ours, theirs = WITH_TWIN[name]
    expected = [greedy(llama, prompt, MAX_TOKENS, **theirs) for prompt in PROMPTS]
    plain = [greedy(llama, prompt, MAX_TOKENS) for prompt in PROMPTS]
    assert expected != plain, "the parameters change nothing, so nothing is tested"
    both_ways(make_engine, expected, **ours)


@pytest.mark.parametrize("name", WITHOUT_TWIN)
def test_equals_the_engine_without_speculation(name, make_engine, llama):
    engine = make_engine(mode="off")
    outputs = engine.generate(requests_of(PROMPTS, max_tokens=MAX_TOKENS, **WITHOUT_TWIN[name]))
    expected = [list(output.token_ids) for output in outputs]
    assert expected != [greedy(llama, prompt, MAX_TOKENS) for prompt in PROMPTS]
    both_ways(make_engine, expected, **WITHOUT_TWIN[name])


def test_penalties_by_hand(make_engine, llama):
    """Presence and frequency penalties count the output only, whatever the prompt holds."""
    prompt, text = PROMPTS[1], []
    for _ in range(MAX_TOKENS):
        logits = llama(input_ids=torch.tensor([prompt + text])).logits[0, -1].detach()
        for token in set(text):
            logits[token] -= 0.9 + 0.6 * text.count(token)
        text.append(int(logits.argmax()))
    engine = make_engine()
    params = {"presence_penalty": 0.9, "frequency_penalty": 0.6, "ignore_eos": True}
    [output] = engine.generate(requests_of([prompt], max_tokens=MAX_TOKENS, **params))
    assert list(output.token_ids) == text


def test_a_grammar_is_requested_about_allowed_texts_only(make_engine, llama):
    """Garbage drafts violate the grammar, which must not be queried after them."""
    prompt = PROMPTS[2]
    grammar.prompt_length = len(prompt)
    expected = greedy(llama, prompt, MAX_TOKENS, prefix_allowed_tokens_fn=grammar)
    for proposer in ("garbage", "oracle"):
        engine = make_engine(proposer=proposer)
        Oracle.answers = {"request-0": expected}
        [output] = engine.generate(requests_of([prompt], max_tokens=MAX_TOKENS, allowed_tokens=grammar))
        assert list(output.token_ids) == expected
        assert engine.metrics.snapshot().total.proposed > 0


def test_plug_ins_hear_of_a_grammar(make_engine):
    engine = make_engine(proposer="recorder")
    grammar.prompt_length = 1
    engine.generate(requests_of([[5], [6]], max_tokens=2) + requests_of([[7]], max_tokens=2, allowed_tokens=grammar))
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


def test_generate_leaves_nothing_behind_when_it_raises(make_engine):
    engine = make_engine()
    with pytest.raises(RequestError):
        engine.generate([GenerateRequest(prompt=[5]), GenerateRequest(prompt=[])])
    assert not engine.has_work
