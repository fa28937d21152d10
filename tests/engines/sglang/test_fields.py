"""The standing test of SGLang: each field of a request, with drafts and without; see `tests.engines.fields`.

A row runs in its situations on an engine with specplug, whose proposer `oracle` is told what to draft, and each answer
is compared with that of the same engine without specplug.  All rows run before the first is judged: those that are
beside each other in couples, so that they share steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.engines.fields import (
    Case,
    Row,
    Situation,
    assert_complete,
    difference,
    draft_of,
    named,
    pairs,
    product,
    stop_inside,
)
from tests.engines.sglang import field_answers
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.fields import (
    DETERMINISTIC,
    LENGTH,
    NEW,
    OPENAI,
    PREFIX,
    PROMPTS,
    READ_ELSEWHERE,
    REQUEST,
    ROWS,
    SAMPLING,
)
from tests.engines.sglang.launch import FEATURES
from tests.engines.suites.features import NGRAM
from tests.engines.suites.served import Served, drafts_of

DRAFTED = {**NGRAM, "extra_proposers": ["oracle"]}
MAX_TOKENS = 16


def cases_of(how: Callable[..., Iterable[Case]] = pairs) -> list[Case]:
    return list(how([row for row in ROWS if row.fate != "no text"]))


@dataclass(frozen=True)
class Found:
    """What is said to one case: on the control to the base and to the row's request, and with specplug."""

    base: dict[str, Any]
    control: dict[str, Any]
    drafted: dict[str, Any]


class Trial:
    """Runs cases on both engines."""

    def __init__(self, control: Engine, drafted: Engine) -> None:
        self.control, self.drafted = control, drafted
        self._known: dict[str, dict[str, Any]] = {}  # the control's answers by request

    def run(self, cases: Sequence[Case]) -> dict[str, Found]:
        """Return what was found by case."""
        found = {}
        for deterministic in (False, True):
            some = [case for case in cases if (case[0].name in DETERMINISTIC) is deterministic]
            found |= self._run(some, deterministic)
        return found

    def _run(self, cases: list[Case], deterministic: bool) -> dict[str, Found]:
        def ask(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
            """Return the control's answers; equal requests are answered once, but for those that draw by seeds."""
            if deterministic:
                return answers(self.control, cases, given, deterministic)
            keys = [json.dumps(one, sort_keys=True) for one in given]
            new = {key: n for n, key in enumerate(keys) if key not in self._known}
            some = [[cases[n], given[n]] for n in new.values()]
            found = answers(self.control, [case for case, _ in some], [one for _, one in some], deterministic)
            self._known |= zip(new, found, strict=True)
            return [self._known[key] for key in keys]

        whole = ask([request(case, case[0].given) for case in cases])
        stops = [stop_inside(case, text_of(answer), 3) for case, answer in zip(cases, whole, strict=True)]
        each = list(zip(cases, stops, whole, strict=True))
        bases = ask([request(case, {**case[0].base, **stop}) for case, stop, _ in each])
        controls = ask([request(case, {**case[0].given, **stop}) for case, stop, _ in each])
        own = [request(case, {**case[0].given, **stop}, drafts(case, answer)) for case, stop, answer in each]
        found = answers(self.drafted, cases, own, deterministic)
        return {named(case): Found(bases[n], controls[n], found[n]) for n, case in enumerate(cases)}


def answers(
    engine: Engine, cases: list[Case], requests: list[dict[str, Any]], deterministic: bool
) -> list[dict[str, Any]]:
    """Return what is said to each case's request, alone or in couples."""
    beside = [n for n, (row, where) in enumerate(cases) if where.company == "beside" and row.fate != "refused"]
    batches = [[n] for n in range(len(cases)) if n not in beside] + [
        beside[n : n + 2] for n in range(0, len(beside), 2)
    ]
    given = [[requests[n] for n in batch] for batch in batches]
    found = engine.call(field_answers.answered, batches=given, deterministic=deterministic)
    order = [n for batch in batches for n in batch]
    return [found[order.index(n)] for n in range(len(cases))]


OF_REQUESTS = {row.name for row in REQUEST}


def request(case: Case, given: Any, drafts: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a request as fields of `GenerateReqInput`."""
    row, situation = case
    prefix = PREFIX if situation.prompt == "chunks" else []
    fields = {name: value for name, value in given.items() if name in OF_REQUESTS}
    params = {name: value for name, value in given.items() if name not in OF_REQUESTS}
    params["custom_params"] = {**params.get("custom_params", {}), **(drafts or {})}
    fields["sampling_params"] = {"temperature": 0.0, "max_new_tokens": MAX_TOKENS, **params}
    return fields if "text" in fields else {**fields, "input_ids": [*prefix, *PROMPTS[row.prompt]]}


def text_of(answer: dict[str, Any]) -> list[int]:
    """Return the token ids of an answer; none if the request was refused."""
    return [] if "refused" in answer else answer["outputs"][0]["output_ids"]


def drafts(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
    """Return what makes the oracle draft the control's answer, or err at each second token."""
    drafted = draft_of(case[1], text_of(answer), LENGTH)
    return drafts_of(drafted)


@pytest.fixture(scope="session")
def trial(start: Callable[..., Served]) -> Trial:
    return Trial(start(None, name="plain", **FEATURES).engine, start(DRAFTED, name="fields", **FEATURES).engine)


@pytest.fixture(scope="session")
def found(trial: Trial) -> dict[str, Found]:
    return trial.run(cases_of())


def judge(row: Row, situation: Situation, found: Found) -> None:
    if row.fate == "refused":
        assert "outputs" in found.control
        assert "not supported with speculative decoding" in found.drafted["refused"]
        return
    differs = difference(found.control["outputs"], found.drafted.get("outputs", found.drafted))
    assert not differs, differs
    tokens = sum(len(output["output_ids"]) for output in found.drafted["outputs"])
    assert found.drafted["correct"] < tokens, "none behind the end; the first token is the prompt's"
    if row.fate == "undrafted":
        assert found.drafted["proposed"] == 0
    elif len(found.control["outputs"][0]["output_ids"]) > 2:
        assert found.drafted["proposed"] > 0
        assert found.drafted["correct"] > 0 or situation.draft == "wrong"


@pytest.mark.parametrize("case", cases_of(), ids=named)
def test_a_field_is_as_its_row_says(case, found):
    judge(*case, found[named(case)])


def test_each_row_changes_the_answer(found):
    """Otherwise nothing is tried: a row has to do so in one of its situations."""
    changed = dict.fromkeys([row.name for row, _ in cases_of()], False)
    for row, situation in cases_of():
        one = found[named((row, situation))]
        changed[row.name] |= bool(difference(one.base, one.control))
    assert [name for name, does in changed.items() if not does] == []


def test_each_field_has_a_row(trial):
    defined = trial.drafted.call(field_answers.defined)
    for rows, source in ((SAMPLING, "SamplingParams"), (REQUEST, "GenerateReqInput")):
        older = [row for row in rows if row.name in NEW and row.name not in defined[source]]
        assert_complete([row for row in rows if row not in older], defined[source], source)


def wrong_of(trial: Trial, cases: Sequence[Case]) -> dict[str, str]:
    """Return what is wrong with cases, by name."""
    found, wrong = trial.run(cases), {}
    for case in cases:
        try:
            judge(*case, found[named(case)])
        except AssertionError as error:
            wrong[named(case)] = str(error)
    return wrong


@pytest.mark.slow
def test_every_row_in_every_situation(trial):
    assert wrong_of(trial, cases_of(product)) == {}


@pytest.mark.slow  # an engine of its own
def test_pages(trial, start):
    """Chains are verified in whatever pages of 16 tokens they fall into."""
    paged = start(DRAFTED, name="pages", page_size=16, **FEATURES).engine
    assert wrong_of(Trial(trial.control, paged), cases_of()) == {}


def test_openais_fields_become_fields_with_a_row(trial):
    """Otherwise a field reaches SGLang in a way that no row tries."""
    rows, defined = {row.name for row in ROWS}, trial.drafted.call(field_answers.defined)
    for kind, found in trial.drafted.call(field_answers.converted, values=OPENAI).items():
        assert {*defined[kind]} <= {*OPENAI, *READ_ELSEWHERE}, kind
        assert [name for name, sets in found.items() if not {*sets} & rows] == [], kind
