"""The standing test: each argument of `generate`, and each field of our own requests, beside plain `generate`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin

from specplug.errors import EngineError
from specplug_transformers import Engine, GenerateRequest, SamplingParams, arguments, custom_generate, decode, rows
from specplug_transformers.state import RequestState
from tests.engines.fields import SITUATIONS, Row, Situation, assert_complete, pairs
from tests.transformers import fields as table
from tests.transformers.field_answers import FORWARD, REGISTRY, check, check_request

# -- the fields --------------------------------------------------------------------------------------------------------


def test_every_field_has_a_row():
    defined = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert_complete(table.CONFIG, defined, "GenerationConfig")
    source = "".join(
        map(inspect.getsource, (GenerationMixin.generate, GenerationMixin._extract_generation_mode_kwargs))
    )
    named = [*re.findall(r"\bkwargs\.(?:pop|get)\(\s*\"(\w+)\"", source)]
    for function in (GenerationMixin.generate, *(model.forward for model in FORWARD)):
        named += [name for name in inspect.signature(function).parameters if name not in ("self", "kwargs")]
    assert_complete(table.ARGUMENTS, {*named} - defined, "generate")
    assert_complete(table.PARAMS, {field.name for field in fields(SamplingParams)}, "SamplingParams")
    assert_complete(table.REQUEST, {field.name for field in fields(GenerateRequest)} - {"params"}, "GenerateRequest")


# -- all rows ----------------------------------------------------------------------------------------------------------


GENERATE = [*table.CONFIG, *table.ARGUMENTS, *table.VARIANTS]
OURS = [*table.PARAMS, *table.REQUEST, *table.TOGETHER]


@pytest.fixture(autouse=True)
def _foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `speculative_generate` build engines that know the proposer."""
    monkeypatch.setattr(custom_generate, "Engine", functools.partial(Engine, registry=REGISTRY))


def by_row(rows: Sequence[Row]) -> list[Any]:
    """Return each row with its two situations."""
    found: dict[str, tuple[Row, list[Situation]]] = {}
    for row, situation in pairs(rows):
        found.setdefault(row.name, (row, []))[1].append(situation)
    return [pytest.param(row, situations, id=name) for name, (row, situations) in found.items()]


def assert_row(check_one: Callable[[Row, Situation], bool], row: Row, situations: Sequence[Situation]) -> None:
    """Check a row in situations; of the answers that must be equal, one must differ from those without the field."""
    changed = [check_one(row, situation) for situation in situations]
    assert any(changed) or row.fate == "no text", f"{row.name} changes nothing, so that nothing is tested"


@pytest.mark.parametrize(("row", "situations"), by_row(GENERATE))
def test_generate(row: Row, situations: list[Situation]) -> None:
    assert_row(check, row, situations)


@pytest.mark.parametrize(("row", "situations"), by_row(OURS))
def test_engine(row: Row, situations: list[Situation]) -> None:
    assert_row(check_request, row, situations)


CHECKS = ((check, GENERATE), (check_request, OURS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check_one", "row"), [pytest.param(one, row, id=f"{one.__name__}-{row.name}") for one, of in CHECKS for row in of]
)
def test_every_situation(check_one: Callable[[Row, Situation], bool], row: Row) -> None:
    assert_row(check_one, row, SITUATIONS)


# -- each guard dropped ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [row for row in GENERATE if row.fate == "refused"], ids=lambda row: row.name)
def test_what_is_refused_fails_without_the_refusal(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_generate, "check_arguments", lambda *_: None)
    monkeypatch.setattr(custom_generate, "_UNKNOWN_TO_CUSTOM_FUNCTIONS", ())
    monkeypatch.setattr(custom_generate, "_configured", lambda *_: None)
    monkeypatch.setattr(arguments, "_from_zero", lambda *_: True)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        check(row, SITUATIONS[0])
    assert not (isinstance(caught.value, EngineError) and row.name in str(caught.value))


class Anything:
    """A container of everything."""

    def __contains__(self, _: object) -> bool:
        return True


def first_position_alone(processors: Any, text: Sequence[int], _draft: Any, _ends: Any, logits: Tensor) -> None:
    logits[:1] = processors(torch.tensor([text]), logits[:1].clone())


def stop_at_the_end_of_a_step(self: RequestState, token_ids: list[int]) -> int:
    self.tokens += token_ids
    self.room -= len(token_ids)
    self._ends_with(token_ids[-1])
    return len(token_ids)


def ending_alone(self: rows.RowEnds, paddings: Any, criteria: Any) -> None:
    prepare(self, paddings, criteria)
    self._goes_on = False


prepare = rows.RowEnds.__init__
ONE, STOPPED, BATCH = SITUATIONS[0], SITUATIONS[1], SITUATIONS[4]  # drafts are right
GUARDS: dict[str, tuple[Any, str, Any, Situation, tuple[str, ...]]] = {
    "each row has its place in the batch": (
        rows,
        "_SAME_FOR_ALL_ROWS",
        Anything(),
        BATCH,
        ("logits_processor", "stopping_criteria", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size"),
    ),
    "each row has its grammar": (rows, "_bound", lambda _, it: it, BATCH, ("prefix_allowed_tokens_fn",)),
    "rows go on until all have stopped": (
        rows.RowEnds,
        "__init__",
        ending_alone,
        BATCH,
        ("stopping_criteria without an end of sequence",),
    ),
    "processors see the draft": (
        decode,
        "process_row",
        first_position_alone,
        ONE,
        (
            "repetition_penalty",
            "no_repeat_ngram_size",
            "forced_eos_token_id",
            "epsilon_cutoff",
            "bad_words",
            "allowed_tokens",
        ),
    ),
    "a stop in a draft ends the answer": (
        RequestState,
        "extend",
        stop_at_the_end_of_a_step,
        STOPPED,
        ("eos_token_id", "stop_strings", "max_time", "stop", "stop_token_ids", "stop_when"),
    ),
    "padding is cut off": (
        custom_generate,
        "remove_padding",
        lambda ids, _: list(ids),
        BATCH,
        ("attention_mask", "suppress_tokens"),
    ),
}


@pytest.mark.parametrize(
    ("guard", "name"), [(guard, name) for guard, (*_, names) in GUARDS.items() for name in names], ids="{}".format
)
def test_a_row_fails_without_its_guard(guard: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, wrong, situation, _ = GUARDS[guard]
    found = [(check_one, row) for check_one, of in CHECKS for row in of if row.name == name]
    for check_one, row in found:
        check_one(row, situation)
    monkeypatch.setattr(owner, attribute, wrong)
    for check_one, row in found:
        with pytest.raises((AssertionError, RuntimeError, ArithmeticError)):
            check_one(row, situation)
    assert found
