"""Answers to the rows of the standing test, by plain `generate` and with drafts; see `test_fields`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2LMHeadModel, LlamaForCausalLM

import specplug_transformers
from specplug.errors import EngineError
from specplug.settings import Settings
from specplug_transformers import Engine, GenerateRequest, SamplingParams, custom_generate
from tests.engines.fields import Row, Situation
from tests.transformers.conftest import cached_model
from tests.transformers.fields import Batch, Made
from tests.transformers.test_stopping import byte_tokenizer
from tests.transformers.toys import EOS, Foretold, make_registry, prompts

PAD = 2
TOKENS = 9
DRAFTED = 6
SETTINGS = Settings(
    proposer="foretold", policy="fixed", num_speculative_tokens=DRAFTED, faults={"host_deadline_ms": None}
)
REGISTRY = make_registry()
FORWARD = (LlamaForCausalLM, GPT2LMHeadModel)
ALONE = {"bos_token_id", "streamer"}
"""Rows that make one prompt, or take one."""


@dataclass(frozen=True)
class Answer:
    """What a call gave: the new tokens of each row, and what it streamed."""

    tokens: list[list[int]]
    streamed: list[Any] | None


def model_of(row: Row) -> Any:
    """Return the first model that takes the row's argument, if the forward pass has to."""
    takes = [model.__name__ for model in FORWARD if row.name in inspect.signature(model.forward).parameters]
    return cached_model("gpt2" if takes == ["GPT2LMHeadModel"] else "llama")


@functools.cache
def plain_answers(model: Any, texts: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    """Return what the model answers to each text by itself, without an end."""
    found = []
    for text in texts:
        ids = torch.tensor([text])
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
        found.append(out[0, len(text) :].tolist())
    return found


def batch_of(row: Row, situation: Situation) -> Batch:
    """Return one prompt or three, padded on the left beyond the longest where it would be read in pieces."""
    texts = [[5], [9], [33]] if row.prompt == "one token" else prompts(3, seed=3)
    texts = texts[: 1 if situation.company == "alone" or row.name in ALONE else 3]
    length = max(map(len, texts)) + (3 if situation.prompt == "chunks" else 0)
    ids = torch.tensor([[PAD] * (length - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (length - len(text)) + [1] * len(text) for text in texts])
    return Batch(ids, mask, plain_answers(model_of(row), tuple(map(tuple, texts))))


def made(params: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
    return {name: value.make(batch) if isinstance(value, Made) else value for name, value in params.items()}


def arguments_of(row: Row, params: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
    """Return the arguments of `generate` for a row."""
    prompt = {} if row.prompt == "none" else {"input_ids": batch.ids, "attention_mask": batch.mask}
    default = {"max_new_tokens": TOKENS, "do_sample": False, **prompt}
    given = {**default, **made(params, batch)}
    return {name: value for name, value in given.items() if value is not None or name not in default}


def requested(generate: Callable[..., Any], given: dict[str, Any]) -> Answer:
    """Call `generate` and return its answer."""
    torch.manual_seed(0)
    found = generate(**given)
    sequences = found if isinstance(found, Tensor) else found.sequences
    ids, streamer = given.get("inputs", given.get("input_ids")), given.get("streamer")
    streamed = None if streamer is None else [*streamer.received, streamer.ended]
    return Answer(sequences[:, 1 if ids is None else ids.shape[1] :].tolist(), streamed)


def stopped(given: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """Return the arguments with ends at the third token of each answer, which a draft holds."""
    known = given.get("eos_token_id", EOS)
    known = [] if known is None else [known] if isinstance(known, int) else list(known)
    return {**given, "eos_token_id": [*known, *(tokens[2] for tokens in answer.tokens if len(tokens) > 3)]}


def foretell(given: dict[str, Any], answer: Answer, whole: Answer, situation: Situation) -> None:
    """Let the drafts be the answer, or be wrong at every second token.

    Args:
        given: the arguments of the call.
        whole: the answer without the stop, behind which drafts go on where the answer goes on likewise.
    """
    ids = given.get("inputs", given.get("input_ids", torch.tensor([[given.get("bos_token_id", 0)]])))
    kept = given.get("attention_mask", torch.ones_like(ids)).bool()
    texts = [tuple(row[mask].tolist()) for row, mask in zip(ids, kept, strict=True)]
    each = len(answer.tokens) // len(texts)
    Foretold.wrong = situation.draft == "wrong"
    Foretold.answers = {}
    for row, text in enumerate(texts):
        right, longer = answer.tokens[each * row], whole.tokens[each * row]
        same = next((at for at, pair in enumerate(zip(right, longer, strict=False)) if pair[0] != pair[1]), len(right))
        Foretold.answers[text] = longer if same == len(right) or right[same] == PAD else right


def drafts_of(engine: Engine | None) -> tuple[int, int]:
    """Return the draft tokens that an engine has verified, and those that it or a grammar has rejected."""
    if engine is None:
        return 0, 0
    total = engine.metrics.snapshot().total
    return total.verified, total.rejected + total.cut_by_grammar


def assert_drafted(answer: Answer, situation: Situation, verified: int, rejected: int) -> None:
    """Drafts were verified, and all right ones accepted, where an answer has room for them."""
    if max(map(len, answer.tokens)) > 2:
        assert verified > 0
        assert (rejected > 0) == (situation.draft == "wrong")


_ANSWERED: dict[tuple[Any, ...], Answer] = {}


def without_the_field(row: Row, params: Mapping[str, Any], batch: Batch) -> Answer:
    """Return the control's answer without the field, which is the same for many rows."""
    model = model_of(row)
    key = (model, row.prompt, tuple(batch.ids.shape), repr(made(params, batch)))
    if key not in _ANSWERED:
        _ANSWERED[key] = requested(model.generate, arguments_of(row, params, batch))
    return _ANSWERED[key]


def check(row: Row, situation: Situation) -> bool:
    """Compare a row's answer with plain `generate`; return whether it differs from the one without the field."""
    model, batch = model_of(row), batch_of(row, situation)
    ours = functools.partial(specplug_transformers.generate, model, specplug=SETTINGS)

    def given() -> dict[str, Any]:
        return arguments_of(row, row.given, batch)

    if row.fate == "refused":
        with pytest.raises(EngineError, match=row.name):
            ours(**given())
        return True
    whole = answer = requested(model.generate, given())
    without = without_the_field(row, row.base, batch)
    stop: Callable[[], dict[str, Any]] = given
    if situation.stop == "inside":
        stop = lambda: stopped(given(), whole)  # noqa: E731
        answer = requested(model.generate, stop())
    foretell(stop(), answer, whole, situation)
    engine = custom_generate._idle.get(model, (None,))[0]
    before = drafts_of(engine)
    found = requested(ours, stop())
    assert found == answer, f"{row.name}, {situation}: {found} for {answer}"
    after = drafts_of(custom_generate._idle[model][0])
    if custom_generate._idle[model][0] is not engine:
        before = 0, 0
    assert_drafted(answer, situation, after[0] - before[0], after[1] - before[1])
    assert (whole == without) >= (row.fate == "no text"), f"{row.name}: it changes the text"
    return whole != without


def check_request(row: Row, situation: Situation) -> bool:
    """Compare an answer of our engine, to one request or beside two others, with those of plain `generate`."""
    model, tokenizer = cached_model("llama"), byte_tokenizer()
    texts = prompts(3, seed=3)[: 1 if situation.company == "alone" else 3]
    plain = plain_answers(model, tuple(map(tuple, texts)))
    ids = torch.tensor(texts[:1])
    batch = Batch(ids, torch.ones_like(ids), plain[:1])
    theirs = arguments_of(row, row.given["theirs"], batch)
    whole = answer = requested(model.generate, theirs)
    without = without_the_field(row, row.base.get("theirs", {}), batch)
    ours = {"max_tokens": TOKENS, **made(row.given["ours"], batch)}
    if situation.stop == "inside" and len(whole.tokens[0]) > 3:
        ours["stop_token_ids"] = [*ours.get("stop_token_ids", ()), whole.tokens[0][2]]
        answer = requested(model.generate, stopped(theirs, whole))
    foretell(theirs, answer, whole, situation)
    names = {field.name for field in fields(SamplingParams)}
    mine = GenerateRequest(
        **{"prompt": texts[0], **{name: value for name, value in ours.items() if name not in names}},
        params=SamplingParams(**{name: value for name, value in ours.items() if name in names}),
    )
    others = [
        GenerateRequest(prompt=text, params=SamplingParams(max_tokens=TOKENS, ignore_eos=True)) for text in texts[1:]
    ]
    chunk = 4 if situation.prompt == "chunks" else 512
    engine = Engine(model, tokenizer, settings=SETTINGS, registry=REGISTRY, max_num_seqs=3, prefill_chunk=chunk)
    found = [list(output.token_ids) for output in engine.generate([mine, *others])]
    counts = drafts_of(engine)
    engine.close()
    assert found == [*answer.tokens, *plain[1:]], f"{row.name}, {situation}"
    assert_drafted(answer, situation, *counts)
    assert (whole == without) >= (row.fate == "no text"), f"{row.name}: it changes the text"
    return whole != without
