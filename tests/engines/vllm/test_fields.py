"""The standing test of vLLM: each field of `SamplingParams`, with drafts and without; see `tests.engines.fields`.

A row runs in its situations on an engine with specplug, whose proposer `oracle` is told what to draft, and each answer
is compared with that of the same engine without specplug.  All rows of a runner run before the first is judged: those
that are beside each other in couples, on V2 in fours, so that they share steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import Any

import pytest

from tests.engines.engines import Engine
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
from tests.engines.suites.served import drafts_of
from tests.engines.vllm.field_answers import answered
from tests.engines.vllm.fields import ENGINE, GUARDS, LENGTH, NOT, PREFIX, PROMPTS, ROWS, rows_of
from tests.engines.vllm.launch import RUNNERS

DRAFTED = {"proposer": "ngram", "extra_proposers": ["oracle"], "policy": "fixed", "options": {"ngram": {"min_n": 1}}}
MAX_TOKENS = 12
AT_ONCE = {"v1": 1, "v2": 8, "v2_async": 8}
"""Requests that the control answers at once: V2 in Triton's interpreter takes its time; V1, also without drafts, gives
a request with `logprobs` padding for the likeliest tokens where one beside it has `logprob_token_ids`."""


def cases_of(kind: str, how: Callable[..., Iterable[Case]] = pairs) -> list[Case]:
    """Return the cases of a runner, without those that vLLM itself has no answer to.

    V2 takes its time in Triton's interpreter, so variants, of which V1 has its faults, have every situation or none.
    """
    rows = [row for row in rows_of(kind, variants=kind == "v1" or how is product) if row.fate != "no text"]
    left_out = [(name, {*values}) for of, name, *values in NOT if of == kind]
    return [
        (row, situation)
        for row, situation in how(rows)
        if not any(row.name.startswith(name) and values <= {*astuple(situation)} for name, values in left_out)
    ]


@dataclass(frozen=True)
class Found:
    """The answers to one case, of the base, the control and the engine with specplug, and how much that drafted."""

    base: dict[str, Any]
    control: dict[str, Any]
    drafted: dict[str, Any]
    proposed: int


class Trial:
    """Runs cases on both engines."""

    def __init__(self, control: Engine, drafted: Engine, at_once: int) -> None:
        self.control = control
        self.drafted = drafted
        self.at_once = at_once
        self.runs = 0
        self.known: dict[str, dict[str, Any]] = {}  # the control's answers by request

    def run(self, cases: list[Case], dropped: str = "") -> dict[str, Found]:
        """Return what was found by case, without the guard that is `dropped`."""
        cached = [[{"prompt": prompt, "params": {"max_tokens": 1}}] for prompt in PROMPTS.values()]
        for engine in (self.control, self.drafted):
            engine.call(answered, batches=cached)
        whole = self.plain([request(case, case[0].given) for case in cases])
        stops = [stop_inside(case, text_of(answer), 2) for case, answer in zip(cases, whole, strict=True)]
        each = list(zip(cases, stops, whole, strict=True))
        bases = self.plain([request(case, {**case[0].base, **stop}) for case, stop, _ in each])
        controls = self.plain([request(case, {**case[0].given, **stop}) for case, stop, _ in each])
        self.runs += 1
        own = [
            request(case, {**case[0].given, **stop, **drafts(case, answer)}, f"{named(case)} {self.runs}")
            for case, stop, answer in each
        ]
        found = self.batched(cases, own, dropped)
        return {named(case): Found(bases[n], controls[n], *found[n]) for n, case in enumerate(cases)}

    def plain(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the control's answers; equal requests are answered once, and as many at once as the engine takes."""
        each = {json.dumps(one, sort_keys=True): one for one in requests}
        known = self.known
        new = [key for key in each if key not in self.known]
        batches = [new[n : n + self.at_once] for n in range(0, len(new), self.at_once)]
        found = self.control.call(answered, batches=[[each[key] for key in batch] for batch in batches])
        for batch, one in zip(batches, found, strict=True):
            known |= zip(batch, one["answers"], strict=True)
        return [known[json.dumps(one, sort_keys=True)] for one in requests]

    def batched(
        self, cases: list[Case], requests: list[dict[str, Any]], dropped: str
    ) -> list[tuple[dict[str, Any], int]]:
        """Return each case's answer and how many draft tokens were proposed in its batch."""
        beside = [n for n, (row, where) in enumerate(cases) if where.company == "beside" and row.fate != "refused"]
        groups = max(1, len(beside) // max(2, self.at_once // 2))
        together = [beside[n::groups] for n in range(groups)]  # far apart, so of different rows
        batches = [[n] for n in range(len(cases)) if n not in beside] + together
        given = [[requests[n] for n in batch] for batch in batches]
        found = self.drafted.call(answered, batches=given, dropped=dropped)
        flat = {
            n: (answer, one["proposed"])
            for batch, one in zip(batches, found, strict=True)
            for n, answer in zip(batch, one["answers"], strict=True)
        }
        return [flat[n] for n in range(len(cases))]


def request(case: Case, params: Any, salt: str = "") -> dict[str, Any]:
    """Return a request; a prompt that comes in pieces is in no cache, unless the `salt` was there before."""
    row, situation = case
    given = {"params": {"max_tokens": MAX_TOKENS, **params}, "prompt": PROMPTS[row.prompt]}
    if situation.prompt == "chunks":
        given |= {"prompt": [*PREFIX, *given["prompt"]], "salt": json.dumps(params) + salt}
    return given


def text_of(answer: dict[str, Any]) -> list[int]:
    """Return the token ids of an answer; none if the request was refused."""
    return [] if "refused" in answer else answer["outputs"][0]["token_ids"]


def drafts(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
    """Return what makes the oracle draft the control's answer, or err at each second token."""
    drafted = draft_of(case[1], text_of(answer), LENGTH)
    return drafts_of(drafted)


@pytest.fixture(scope="session")
def trial(kind: str, engine: Callable[..., Engine]) -> Trial:
    runner = RUNNERS[kind]
    plain = engine(runner["runner"], installed=False, name=f"fields plain {kind}", **ENGINE)
    drafted = engine(**runner, specplug=DRAFTED, name=f"fields {kind}", draft_length=LENGTH, **ENGINE)
    return Trial(plain, drafted, AT_ONCE[kind])


def failure(row: Row, situation: Situation, found: Found) -> str:
    """Return what is not as the row says, "" for nothing."""
    if row.fate == "refused":
        refused = found.drafted.get("refused", "")
        return "" if any(name in refused for name in row.given) else f"not refused by name: {found.drafted}"
    differs = difference(found.control, found.drafted)
    if differs or situation.company == "beside" or found.control["usage"][-1] <= 2:
        return differs
    return "" if bool(found.proposed) is (row.fate == "equal") else f"{found.proposed} draft tokens"


MARKS = {kind: [pytest.mark.slow] if kind == "v2" else [] for kind in RUNNERS}
CASES = [
    pytest.param(kind, case, id=f"{kind}-{named(case)}", marks=MARKS[kind])
    for kind in RUNNERS
    for case in cases_of(kind)
]
on_each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=MARKS[kind]) for kind in RUNNERS], indirect=True, scope="session"
)


@pytest.fixture(scope="session")
def found(kind: str, trial: Trial) -> dict[str, Found]:
    return trial.run(cases_of(kind))


@pytest.mark.parametrize(("kind", "case"), CASES, indirect=["kind"], scope="session")
def test_a_field_is_as_its_row_says(case, found):
    wrong = failure(*case, found[named(case)])
    assert not wrong, wrong


@on_each_kind
def test_each_row_changes_the_answer(kind, found):
    """Otherwise nothing is tried: a row has to do so in one of its situations."""
    rows = {row.name for row, _ in cases_of(kind) if row.fate != "refused"}
    each = [(row, found[named((row, situation))]) for row, situation in cases_of(kind) if row.name in rows]
    assert rows == {row.name for row, one in each if difference(one.base, one.control)}


@pytest.mark.parametrize(
    "kind", ["v1", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("v2", "v2_async"))], indirect=True
)
def test_raw_log_probabilities(kind, baseline, zoo):
    """Without processed ones, as vLLM is launched when nothing else is said."""
    cases = [case for case in cases_of(kind) if "logprobs" in case[0].given]
    found = Trial(baseline, zoo, AT_ONCE[kind]).run(cases)
    wrong = [(named(case), failure(*case, found[named(case)])) for case in cases]
    assert [one for one in wrong if one[1]] == []


@pytest.mark.slow
@on_each_kind
def test_each_field_in_every_situation(kind, trial):
    cases = cases_of(kind, product)
    found = trial.run(cases)
    wrong = [(named(case), failure(*case, found[named(case)])) for case in cases]
    assert [one for one in wrong if one[1]] == []


@pytest.mark.parametrize("kind", ["v1"], indirect=True, scope="session")
@pytest.mark.parametrize("name", GUARDS)
def test_a_row_fails_without_its_guard(kind, name, trial):
    cases = [case for case in cases_of(kind, product) if case[0].name == name]
    found = trial.run(cases, dropped=GUARDS[name])
    assert any(failure(*case, found[named(case)]) for case in cases)


@pytest.mark.parametrize("kind", ["v1"], indirect=True, scope="session")
def test_each_field_has_a_row(trial):
    assert_complete(ROWS, trial.drafted.call(defined), "vllm.SamplingParams")


def defined(llm: Any) -> list[str]:
    from vllm import SamplingParams

    return [name for name in SamplingParams.__struct_fields__ if not name.startswith("_")]
