"""The standing test of vLLM: each field of `SamplingParams`, with drafts and without; see `tests.engines.fields`.

A row runs in its situations on an engine with specplug, whose proposer `oracle` is told what to draft, and each answer
is compared with that of the same engine without specplug.  All rows of a runner run before the first is judged: those
that are beside each other in couples, so that they share steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.fields import Row, Situation, assert_complete, pairs
from tests.engines.vllm.field_answers import answered
from tests.engines.vllm.fields import ENGINE, LENGTH, NOT, PREFIX, PROMPTS, ROWS, rows_of
from tests.engines.vllm.referee import RUNNERS

Case = tuple[Row, Situation]
DRAFTED = {"proposer": "ngram", "extra_proposers": ["oracle"], "policy": "fixed", "options": {"ngram": {"min_n": 1}}}
MAX_TOKENS = 16


def cases_of(kind: str, how: Callable[..., Iterable[Case]] = pairs) -> list[Case]:
    """Return the cases of a runner, without those that vLLM itself has no answer to."""
    rows = [row for row in rows_of(kind) if row.fate != "no text"]
    return [
        (row, situation)
        for row, situation in how(rows)
        if set(astuple(situation)).isdisjoint(NOT.get((kind, row.name), ()))
    ]


def named(case: Case) -> str:
    return f"{case[0].name}-{case[1]}"


@dataclass(frozen=True)
class Found:
    """The answers to one case, of the base, the control and the engine with specplug, and how much that drafted."""

    base: dict[str, Any]
    control: dict[str, Any]
    drafted: dict[str, Any]
    proposed: int


class Trial:
    """Runs cases on both engines."""

    def __init__(self, control: Engine, drafted: Engine) -> None:
        self.control, self.drafted = control, drafted

    def run(self, cases: list[Case]) -> dict[str, Found]:
        """Return what was found by case."""
        cached = [[{"prompt": prompt, "params": {"max_tokens": 1}}] for prompt in PROMPTS.values()]
        for engine in (self.control, self.drafted):
            engine.call(answered, batches=cached)
        whole = self.plain([request(case, case[0].given, "whole") for case in cases])
        stops = [stop_inside(case, answer) for case, answer in zip(cases, whole, strict=True)]
        each = list(zip(cases, stops, whole, strict=True))
        bases = self.plain([request(case, {**case[0].base, **stop}, "base") for case, stop, _ in each])
        controls = self.plain([request(case, {**case[0].given, **stop}, "control") for case, stop, _ in each])
        own = [{**case[0].given, **stop, **drafts(case, answer)} for case, stop, answer in each]
        found = self.batched(cases, [request(case, given, "drafted") for case, given in zip(cases, own, strict=True)])
        return {named(case): Found(bases[n], controls[n], *found[n]) for n, case in enumerate(cases)}

    def plain(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = self.control.call(answered, batches=[[one] for one in requests])
        return [one["answers"][0] for one in found]

    def batched(self, cases: list[Case], requests: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
        """Return each case's answer and how many draft tokens were proposed in its batch."""
        beside = [n for n, (row, where) in enumerate(cases) if where.company == "beside" and row.fate != "refused"]
        couples = [beside[n : n + 2] for n in range(0, len(beside), 2)]
        batches = [[n] for n in range(len(cases)) if n not in beside] + couples
        found = self.drafted.call(answered, batches=[[requests[n] for n in batch] for batch in batches])
        flat = {
            n: (answer, one["proposed"])
            for batch, one in zip(batches, found, strict=True)
            for n, answer in zip(batch, one["answers"], strict=True)
        }
        return [flat[n] for n in range(len(cases))]


def request(case: Case, params: Any, salt: str) -> dict[str, Any]:
    row, situation = case
    given = {"params": {"max_tokens": MAX_TOKENS, **params}, "prompt": PROMPTS[row.prompt]}
    if situation.prompt == "chunks":
        given |= {"prompt": [*PREFIX, *given["prompt"]], "salt": f"{named(case)} {salt}"}
    return given


def stop_inside(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
    """Return parameters that stop a row at a token of its answer that has drafts before and behind it."""
    row, situation = case
    if situation.stop == "end" or "refused" in answer:
        return {}
    text = answer["outputs"][0]["token_ids"]
    place = next((n for n in range(2, len(text)) if text[n] not in text[:n]), len(text) - 1)
    return {"stop_token_ids": [*row.given.get("stop_token_ids", ()), text[place]]}


def drafts(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
    """Return what makes the oracle draft the control's answer and go on behind it, or err at each second token."""
    text = [] if "refused" in answer else answer["outputs"][0]["token_ids"]
    drafted = [*text, *text[:LENGTH]]
    if case[1].draft == "wrong":
        drafted[1::2] = [(token + 1) % 1000 for token in drafted[1::2]]
    return {"extra_args": {"specplug": {"proposer": "oracle", "references": [{"token_ids": drafted}]}}}


@pytest.fixture(scope="session")
def trial(kind: str, engine: Callable[..., Engine]) -> Trial:
    runner = RUNNERS[kind]
    plain = engine(runner["runner"], installed=False, name=f"fields plain {kind}", **ENGINE)
    return Trial(plain, engine(**runner, specplug=DRAFTED, name=f"fields {kind}", draft_length=LENGTH, **ENGINE))


def difference(expected: Any, found: Any, place: str = "") -> str:
    """Return where two answers differ, numbers by more than 1e-3; "" where they are equal."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        return next(filter(None, (difference(expected[key], found[key], f"{place}.{key}") for key in expected)), "")
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        each = enumerate(zip(expected, found, strict=True))
        return next(filter(None, (difference(*two, f"{place}[{n}]") for n, two in each)), "")
    if isinstance(expected, float) and isinstance(found, float) and math.isclose(expected, found, abs_tol=1e-3):
        return ""
    return "" if expected == found else f"{place}: {expected} expected, {found} found"


def judged(row: Row, situation: Situation, found: Found) -> None:
    if row.fate == "refused":
        assert any(name in found.drafted["refused"] for name in row.given), found.drafted
        return
    differs = difference(found.control, found.drafted)
    assert not differs, differs
    if situation.company == "alone" and found.control["usage"][-1] > 2:
        assert bool(found.proposed) is (row.fate == "equal")


MARKS = {kind: [pytest.mark.slow] if kind == "v2" else [] for kind in RUNNERS}
CASES = [
    pytest.param(kind, case, id=f"{kind}-{named(case)}", marks=MARKS[kind])
    for kind in RUNNERS
    for case in cases_of(kind)
]


@pytest.fixture(scope="session")
def found(kind: str, trial: Trial) -> dict[str, Found]:
    return trial.run(cases_of(kind))


@pytest.mark.parametrize(("kind", "case"), CASES, indirect=["kind"], scope="session")
def test_a_field_is_as_its_row_says(case, found):
    judged(*case, found[named(case)])


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=MARKS[kind]) for kind in RUNNERS], indirect=True, scope="session"
)
def test_each_row_changes_the_answer(kind, found):
    """Otherwise nothing is tried: a row has to do so in one of its situations."""
    changed = {row.name: False for row, _ in cases_of(kind) if row.fate != "refused"}
    for row, situation in cases_of(kind):
        one = found[named((row, situation))]
        changed[row.name] = changed.get(row.name, True) or bool(difference(one.base, one.control))
    assert [name for name, does in changed.items() if not does] == []


@pytest.mark.parametrize("kind", ["v1"], indirect=True, scope="session")
def test_each_field_has_a_row(trial):
    assert_complete(ROWS, trial.drafted.call(defined), "vllm.SamplingParams")


def defined(llm: Any) -> list[str]:
    from vllm import SamplingParams

    return [name for name in SamplingParams.__struct_fields__ if not name.startswith("_")]
