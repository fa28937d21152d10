"""Grammars draft what they force, and cut what they forbid, before SGLang verifies anything."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.engines.matchers import KEYS, REGEX, allows, matcher, schema
from tests.engines.plain import ids
from tests.engines.sglang import trees
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_exact import EDIT, LOOP, SERVED, Requested, ask, assert_same

LOOKUP = {"proposer": "ngram-reference", "policy": "fixed", "options": {"ngram-reference": {"min_n": 1}}}
"""It remembers no other requests, so that each run of a test drafts alike."""

Steps = list[dict[str, Any]]


@functools.cache
def compact() -> str:
    """Return the schema as SGLang's engine compiles it when no whitespace is allowed."""
    import xgrammar

    return str(xgrammar.Grammar.from_json_schema(schema(), any_whitespace=False))


def requested(backend: str = "xgrammar") -> dict[str, Requested]:
    keys = {"ebnf": compact()} if backend == "xgrammar" else {"json_schema": schema()}
    return {
        "schema": (EDIT, {**keys, "max_new_tokens": 128}, {}),
        "schema in a loop": (LOOP, {**keys, "max_new_tokens": 128}, {"return_logprob": True}),
        "regex": (LOOP, {"regex": REGEX}, {}),
        "penalised": (LOOP, {"regex": REGEX, "frequency_penalty": 0.2}, {}),
        "plain": (LOOP, {"ignore_eos": True}, {}),
    }


NAMES = ["schema", "schema in a loop", "regex", "penalised", "plain"]
CONSTRAINED = ["schema", "schema in a loop", "regex"]

# -- in the scheduler's process -------------------------------------------------------------------------------------

SEEN: Steps = []


def watch(scheduler: Any) -> None:
    """Begin to fill `SEEN`: of each step of decoding, per request, what was offered, verified, and became of it."""

    def complete(batch: Any, reqs: Any, draft: Any, *args: Any) -> Any:
        offered = rows_of(draft)
        done = original(batch, reqs, draft, *args)
        named = zip([req.rid for req in reqs], rows_of(done), done.confidence.tolist(), strict=True)
        rows = [{"name": name, "verified": row, "levels": levels[: len(row)]} for name, row, levels in named]
        for row, req, own in zip(rows, reqs, offered, strict=True):
            row |= {"offered": own, "before": list(req.output_ids)}
        SEEN.extend(rows)
        newest[:] = rows
        return done

    def annotated(outcome: Any) -> Any:
        stated = reported(outcome)
        counted = zip(newest, outcome.accepted.tolist(), outcome.discarded().tolist(), strict=False)
        for row, accepted, is_discarded in counted:
            if not is_discarded:  # the request had ended before the step
                row["accepted"] = accepted
        newest.clear()
        return stated

    SEEN.clear()
    newest: list[dict[str, Any]] = []
    grammars = scheduler.draft_worker.drafting.grammars
    original, reported = trees.put(grammars, "of", complete), trees.put(grammars, "annotated", annotated)


def rows_of(draft: Any) -> list[list[int]]:
    return [row[:length] for row, length in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)]


def seen(scheduler: Any) -> Steps:
    return list(SEEN)


def leave_out(scheduler: Any) -> None:
    """Let grammars draft nothing and cut nothing."""
    trees.put(scheduler.draft_worker.drafting.grammars, "of", lambda batch, reqs, draft, *args: draft)


def offer(scheduler: Any, token: int) -> None:
    """Let the proposer draft one token over and over for the requests with a grammar."""

    def propose(batch: Any, draft_length: int, caps: Any = None) -> Any:
        draft = original(batch, draft_length, caps)
        lengths = batch.limits(draft_length, caps).tolist()
        for row, constrained in enumerate(batch.grammar.tolist()):
            if constrained:
                draft.set_row(row, [token] * lengths[row], 0.9)
        return draft

    original = trees.put(scheduler.draft_worker.drafting.stage, "propose", propose)


def counts(scheduler: Any) -> dict[str, dict[str, int]]:
    sources = scheduler.draft_worker.drafting.counts.read().as_dict()["by_source"]
    return {name: {key: count for key, count in own.items() if type(count) is int} for name, own in sources.items()}


# -- the tests ------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """SGLang without speculation, and specplug, with one of SGLang's grammar backends."""

    plain: Engine
    drafting: Engine
    backend: str = "xgrammar"


@pytest.fixture(
    scope="session",
    params=[
        pytest.param((False, "xgrammar"), id="sync"),
        pytest.param((True, "xgrammar"), id="overlap"),
        pytest.param((True, "llguidance"), id="llguidance", marks=pytest.mark.slow),  # two more engines
    ],
)
def pair(request: pytest.FixtureRequest, engine: Callable[..., Engine]) -> Pair:
    """The engines, a step at a time and overlapped."""
    overlap, backend = request.param
    own = {"grammar_backend": backend, "constrained_json_disable_any_whitespace": True}
    given = {**SERVED, "overlap": overlap, **(own if backend != "xgrammar" else {})}
    how = f"{backend}, {'overlapped' if overlap else 'sync'}"
    stated = {"SPECPLUG_CONFIG": json.dumps({**LOOKUP, "faults": {"host_deadline_ms": None}})}
    plain = engine(**given, name=f"plain, {how}")
    return Pair(plain, engine("SPECPLUG", environment=stated, **given, name=f"specplug, lookup, {how}"), backend)


@pytest.fixture(scope="session")
def expected(pair: Pair) -> dict[str, dict[str, Any]]:
    """The answers without speculation."""
    return ask(pair.plain, requested(pair.backend))


Watched = tuple[dict[str, dict[str, Any]], Steps, dict[str, dict[str, int]]]


def watched(pair: Pair, *plans: Callable[..., Any], **given: Any) -> Watched:
    """Ask with mistakes planted; return the answers, the steps, and what was counted in between."""
    engine = pair.drafting
    before = engine.inside(counts)
    for plan in plans:
        engine.inside(plan, **given)
    engine.inside(watch)
    try:
        answers = ask(engine, requested(pair.backend))
    finally:
        steps = engine.inside(seen)
        engine.inside(trees.restore)
    after = engine.inside(counts)
    grown = {
        name: {key: count - before.get(name, {}).get(key, 0) for key, count in of.items()} for name, of in after.items()
    }
    return answers, steps, grown


@pytest.fixture(scope="session")
def completed(pair: Pair) -> Watched:
    return watched(pair)


@pytest.fixture(scope="session")
def left_out(pair: Pair) -> Watched:
    return watched(pair, leave_out)


@pytest.fixture(scope="session")
def misled(pair: Pair) -> Watched:
    return watched(pair, offer, token=ids("a\nb")[1])


def of(steps: Steps, name: str) -> Iterator[dict[str, Any]]:
    return (step for step in steps if step["name"] == name and "accepted" in step)


@pytest.mark.parametrize("name", NAMES)
def test_as_without_speculation(name, expected, completed, misled):
    assert_same(expected[name], completed[0][name])
    assert_same(expected[name], misled[0][name])


def test_the_answers_are_what_the_grammar_says(expected):
    for name in CONSTRAINED[:2]:
        assert list(json.loads(expected[name]["text"])) == [*KEYS]


def test_forced_tokens_are_always_accepted(completed):
    """No token of confidence 1 is ever the first that is refused."""
    forced = 0
    for name in CONSTRAINED:
        for step in of(completed[1], name):
            kept = step["accepted"]
            assert kept == len(step["verified"]) or step["levels"][kept] < 1.0
            forced += sum(level == 1.0 for level in step["levels"][:kept])
    assert forced > 20


@pytest.mark.parametrize("name", CONSTRAINED[:2])
def test_they_save_steps(name, completed, left_out, expected):
    steps, without = (len(list(of(ran[1], name))) for ran in (completed, left_out))
    assert left_out[0][name]["token_ids"] == expected[name]["token_ids"]
    assert steps < without - 5


@pytest.mark.parametrize("name", CONSTRAINED)
def test_only_legal_tokens_are_verified(name, pair, completed, misled):
    """A matcher of this process checks that; it follows each text and its draft from the start."""
    separators = {"separators": (",", ":")} if pair.backend == "llguidance" else {}
    after, offered = matcher(REGEX) if name == "regex" else matcher(**separators), 0
    for steps in (completed[1], misled[1]):
        for step in of(steps, name):
            assert allows(after, step["before"] + step["verified"])
            offered += len(step["offered"])
    assert offered


@pytest.mark.parametrize("name", CONSTRAINED[:2])
def test_illegal_drafts_cost_nothing(name, misled):
    """A newline is illegal throughout; what grammars add stays."""
    newline = ids("a\nb")[1]
    assert sum(len(step["offered"]) for step in of(misled[1], name)) > 40
    assert not any(newline in step["verified"] for step in of(misled[1], name))
    assert sum(1.0 in step["levels"] for step in of(misled[1], name)) > 5


def test_counted_apart(completed, misled):
    for ran in (completed, misled):
        steps, grown = [step for step in ran[1] if "accepted" in step], ran[2]
        assert grown["grammar"]["proposed"] == grown["grammar"]["verified"]
        verified = sum(len(step["verified"]) for step in steps)
        proposers = [own for name, own in grown.items() if name != "grammar"]
        assert verified == grown["grammar"]["verified"] + sum(own["verified"] for own in proposers)
        offered = sum(len(step["offered"]) for step in steps)
        assert offered == sum(own["proposed"] for own in proposers)
        assert verified == offered - sum(own["cut_by_grammar"] for own in proposers) + grown["grammar"]["proposed"]
        accepted = sum(min(step["accepted"], len(step["verified"])) for step in steps)
        assert accepted == sum(own["accepted"] for own in grown.values())
        assert grown["grammar"]["accepted"] > 20
    assert sum(own["cut_by_grammar"] for own in misled[2].values()) > 80


def test_penalised_requests_get_none_of_it(completed):
    assert not any(step["verified"] for step in of(completed[1], "penalised"))


def test_a_grammar_that_raises_costs_its_drafts(pair, expected):
    """The fault is counted, and the engine continues with its own handling."""
    answers, steps, _ = watched(pair, raising)
    for name in NAMES:
        assert_same(expected[name], answers[name])
    assert any(step["verified"] for step in of(steps, "regex"))
    assert pair.drafting.inside(faults)["grammar"]["raised"] >= 1


def raising(scheduler: Any) -> None:
    def complete(*_: Any) -> Any:
        raise RuntimeError("planted")

    trees.put(scheduler.draft_worker.drafting.grammars, "_complete", complete)


def faults(scheduler: Any) -> dict[str, Any]:
    return scheduler.draft_worker.drafting.counts.read().as_dict()["faults"]
