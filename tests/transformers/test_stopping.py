"""Ends of requests, and the text that is returned before them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specplug.types.request import Lifecycle
from specplug_transformers import GenerateRequest, SamplingParams
from specplug_transformers.state import TextStream
from tests.engines import plain
from tests.transformers.conftest import greedy, requests_of
from tests.transformers.toys import CONTEXT, EOS, VOCAB, Oracle, Recorder

SPECIAL = ["<bos>", "</s>", "<pad>"]
TEXT = "Grüße, 東京! naïve ½ 🙂 end. "
PROMPT = [5, 9, 33]


@functools.cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte that occurs in `TEXT`, so that most characters are several tokens; ids from 3 on."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    used = sorted({letter for piece, _ in _pieces(TEXT) for letter in piece})
    used += [letter for letter in letters if letter not in used]
    vocab = {name: index for index, name in enumerate([*SPECIAL, *used[: VOCAB - len(SPECIAL)]])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="</s>", pad_token="<pad>")


def _pieces(text):
    return pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)


def spell(text: str) -> list[int]:
    return byte_tokenizer()(text)["input_ids"]


@pytest.fixture
def say(make_engine):
    """Let the model say a text, all of it drafted: return the outputs of every step."""

    def run(text: str, *, draft_length: int = 8, after: list[int] | None = None, **params: object):
        answer = spell(text) + (after or [])
        settings = {"proposer": "oracle", "extra_proposers": ["recorder"], "num_speculative_tokens": draft_length}
        engine = make_engine(tokenizer=byte_tokenizer(), **settings)
        Oracle.answers = {"mine": answer}
        params = {"max_tokens": len(answer), "allowed_tokens": _only(answer), "ignore_eos": True, **params}
        engine.add(GenerateRequest(prompt=PROMPT, params=SamplingParams(**params), request_id="mine"))
        return list(engine.run())

    return run


def _only(answer: list[int]):
    """A grammar that allows one text."""
    return lambda _batch, ids: [answer[len(ids) - len(PROMPT)] if len(ids) - len(PROMPT) < len(answer) else EOS]


def assert_seen(count: int) -> None:
    """Proposers receive at the end alone how many tokens of prompt and output the client saw."""
    *others, last = Recorder.newest.events
    assert [event.visible for event in others] == [None] * len(others)
    assert (last.kind, last.visible) == (Lifecycle.FINISHED, len(PROMPT) + count)


@pytest.mark.parametrize("draft_length", [0, 2, 8])
def test_streamed_text_adds_up(say, draft_length):
    """Characters cut across tokens and steps are held back until they are whole."""
    outputs = say(TEXT * 2, draft_length=draft_length)
    assert "".join(output.new_text for output in outputs) == outputs[-1].text == TEXT * 2
    assert sum((output.new_token_ids for output in outputs), ()) == outputs[-1].token_ids
    assert not any("\ufffd" in output.new_text for output in outputs)


HALF = {"max_tokens": len(spell("Gr")) + 1}
BEFORE = TEXT[: TEXT.index("½")]
ENDS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "half a character at the end": (TEXT, HALF, "Gr\ufffd", "length"),
    "a stop string of it": (TEXT, {**HALF, "stop": ["r\ufffd"]}, "G", "stop"),
    "half a character that becomes whole": (TEXT, {"stop": ["Gr\ufffd", "\ufffd"]}, TEXT, "length"),
    "the earliest stop string": ("end. xyz", {"stop": [". ", "end"]}, "", "stop"),
    "a stop string that never completes": ("naïv end. naï", {"stop": ["naïve"]}, "naïv end. naï", "length"),
    "an end of sequence": ("end. ", {"after": [EOS, *spell("never")], "ignore_eos": False}, "end. ", "stop"),
    "one that is ignored": ("end. ", {"after": [EOS, *spell("a")]}, "end. a", "length"),
    "a stop string that would come next": (TEXT, {"stop": ["½"], "max_tokens": len(spell(BEFORE))}, BEFORE, "length"),
    "an id": (TEXT, {"stop_token_ids": spell("!")}, TEXT[: TEXT.index("!")], "stop"),
    # Stop strings that begin and end anywhere in an accepted block, also inside a character's bytes.
    **{
        f"the stop string {stop!r}": (TEXT, {"stop": ["never", stop]}, TEXT[: TEXT.index(stop)], "stop")
        for stop in ("naïve", "京!", "G", "\U0001f642 e")
    },
}


@pytest.mark.parametrize("draft_length", [0, 3, 8])
@pytest.mark.parametrize("end", ENDS)
def test_ends_and_the_text_before_them(say, end, draft_length):
    answer, params, text, reason = ENDS[end]
    outputs = say(answer, draft_length=draft_length, **params)
    assert "".join(output.new_text for output in outputs) == outputs[-1].text == text
    assert outputs[-1].finish_reason == reason
    last = {"an end of sequence": EOS, "an id": spell("!")[0]}
    assert outputs[-1].token_ids[-1] == last.get(end, outputs[-1].token_ids[-1])
    is_cut = "stop" in params and reason == "stop"
    if end.startswith("the stop string"):
        assert list(outputs[-1].token_ids) == spell(text + params["stop"][1])
    assert_seen(len(spell(text)) if is_cut else len(outputs[-1].token_ids))


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    strings=st.lists(st.sampled_from([" end", "d", "naï", "½ ", "\ufffd", "e, 東", "!", "京", "never"]), max_size=3),
    ids=st.lists(st.sampled_from(TEXT), max_size=2),
    most=st.integers(1, 50),
    end=st.booleans(),
)
def test_several_stops_are_those_of_plain_decoding(say, strings, ids, most, end):
    """Stops of every sort in one draft: the first that the text completes ends it, in whatever order."""
    params = {"stop": strings, "stop_token_ids": [spell(one)[-1] for one in ids], "max_tokens": most}
    answers = [say(TEXT, draft_length=length, after=[EOS], ignore_eos=not end, **params)[-1] for length in (0, 8)]
    plain, drafted = ((answer.token_ids, answer.text, answer.finish_reason) for answer in answers)
    assert drafted == plain
    assert answers[1].verified or most < 3 or len(plain[0]) < 2


def test_the_stop_string_that_completes_first_cuts():
    """As on vLLM and SGLang: not the one that begins first, even if one token completes both."""
    stream = TextStream(plain.tokenizer(), ["x =", " "])
    assert [(stream.add_token(token), stream.text) for token in plain.ids("x =")] == [(False, ""), (True, "x")]


def test_without_an_end_in_the_generation_config_nothing_ends(make_engine, llama, monkeypatch):
    """The model's config still has one, which `generate` does not look at."""
    monkeypatch.setattr(llama.generation_config, "eos_token_id", None)
    assert llama.config.eos_token_id == EOS
    biased = {"max_tokens": 8, "logit_bias": {EOS: 9.0}}
    [output] = make_engine().generate(requests_of([PROMPT], **biased))
    assert list(output.token_ids) == greedy(llama, PROMPT, 8, sequence_bias=[[[EOS], 9.0]])
    assert EOS in output.token_ids[:-1]


def test_the_context_is_a_limit(make_engine):
    prompt = [5, 9, 33, 40] * 46
    [output] = make_engine().generate(requests_of([prompt], max_tokens=500, ignore_eos=True))
    assert len(output.token_ids) == CONTEXT - len(prompt)
    assert output.finish_reason == "length"


def test_tokens_behind_a_stop_are_counted_and_dropped(make_engine):
    """The stop is in the middle of a draft: no client sees the token that the target emits after it."""
    answer = [10, 11, 12, 13, 14, 15, 16, 17]
    engine = make_engine(proposer="oracle", extra_proposers=["recorder"], num_speculative_tokens=6)
    Oracle.answers = {"mine": answer}
    params = SamplingParams(max_tokens=8, allowed_tokens=_only(answer), stop_token_ids=[12], ignore_eos=True)
    [output] = engine.generate([GenerateRequest(prompt=PROMPT, params=params, request_id="mine")])
    assert output.token_ids == (10, 11, 12)
    total = engine.metrics.snapshot().total
    assert (total.proposed, total.accepted, total.emitted, total.after_stop) == (6, 2, 3, 1)
    assert total.tau == len(output.token_ids) / output.steps == 3
    assert (output.verified, output.accepted) == (2, 2)
    assert Recorder.newest.after_stop == 1


def test_tau_is_what_clients_receive_by_steps(make_engine, monkeypatch):
    """Answers of 3 tokens and the end of sequence, drafted with 12 further tokens; policies learn from the same."""
    answer, reports = [10, 11, 12, EOS], []
    monkeypatch.setattr("specplug_fixed.policy.ConstantGamma.observe", lambda _, report: reports.append(report))
    engine = make_engine(proposer="oracle", num_speculative_tokens=16, policy="fixed")
    Oracle.answers = {f"request-{index}": [*answer, *range(20, 32)] for index in range(50)}
    params = {"max_tokens": 40, "allowed_tokens": _only([*answer, *range(20, 32)])}
    outputs = engine.generate(requests_of([PROMPT] * 50, **params))
    assert {output.token_ids for output in outputs} == {tuple(answer)}
    total = engine.metrics.snapshot().total
    assert total.tau == sum(len(output.token_ids) for output in outputs) / sum(output.steps for output in outputs)
    assert (total.emitted, total.after_stop > 0, total.rejected) == (50 * 4, True, 0)
    received = sum(report.requests + report.accepted for report in reports)
    assert received == total.emitted


def test_skipped_tokens_do_not_stall_the_stream():
    """Special tokens have no text; what follows them is handed out."""
    stream = TextStream(byte_tokenizer())
    assert not any(stream.add_token(token) for token in (0, *spell("end"), EOS, 0, *spell(". ")))
    stream.finish()
    assert stream.text == "end. "
