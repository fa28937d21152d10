"""On V1 grammars draft what they force, and drafts are cut at what they forbid, before anything is verified."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from specplug.testing.statistics import g_test
from tests.engines.engines import Engine
from tests.engines.matchers import KEYS, REGEX, allows, matcher, schema
from tests.engines.plain import forward, ids, prompts, tokenizer
from tests.engines.vllm import inside, watching

EDIT = list(prompts()[0])
LOOP = ids("x = 1\ny = 2\nx = 1\ny = 2\nx = 1\ny = 2\nx = 1\n")
NEWLINE = ids("a\nb")[1]
LOOKUP = {"proposer": "ngram-reference", "policy": "fixed", "options": {"ngram-reference": {"min_n": 1}}}
"""It remembers no other requests, so that each run of a test drafts alike."""

COMPACT = {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}}

Steps = list[dict[str, Any]]


REQUESTED: dict[str, tuple[list[int], dict[str, Any]]] = {
    "schema": (EDIT, {"structured_outputs": {"json": schema()}, "max_tokens": 128}),
    "schema in a loop": (LOOP, {"structured_outputs": {"json": schema()}, "max_tokens": 128, "logprobs": 1}),
    "regex": (LOOP, {"structured_outputs": {"regex": REGEX}, "max_tokens": 40}),
    "plain": (LOOP, {"ignore_eos": True}),
}
CONSTRAINED = ["schema", "schema in a loop", "regex"]


def ask(llm: Any, how: str = "", token: int = 0, without: bool = False) -> dict[str, Any]:
    """Answer all requests in one batch.

    Args:
        how: "watch" to return what each step verified; "offer" to have proposers draft a token over and over;
            "leave out" to let grammars add nothing; "raise" to let them raise.
        token: that is offered.
        without: the engine has no specplug.

    Returns:
        "answers"; per step and request under "steps" what was verified, after which text, how much was accepted and
        what was told of it; and "counts" by source.
    """
    scheduler = inside.scheduler(llm)
    steps: Steps = []
    given = [(list(prompt), params) for prompt, params in REQUESTED.values()]
    if without:
        return {"answers": inside.generate(llm, [p for p, _ in given], [params for _, params in given])}
    stage, grammars = watching.drafting(llm).stage, scheduler._grammars
    before, update = stage.metrics.snapshot(), scheduler.update_from_output

    def update_from_output(output: Any, result: Any) -> Any:
        for name, drafted in output.scheduled_spec_decode_tokens.items():
            request = scheduler.requests[name]
            emitted = result.sampled_token_ids[result.req_id_to_index[name]]
            text = list(request.output_token_ids)
            stated = output.specplug_metadata.grammars.get(name) if hasattr(output, "specplug_metadata") else None
            row = {"row": int(name.split("-")[0]), "before": text, "verified": list(drafted)}
            steps.append({**row, "accepted": len(emitted) - 1, "stated": None if stated is None else list(stated)})
        return update(output, result)

    def propose(batch: Any, draft_length: int, caps: Any = None) -> Any:
        draft = type(stage).propose(stage, batch, draft_length, caps)
        lengths = batch.limits(draft_length, caps).tolist()
        for row, constrained in enumerate(batch.grammar.tolist()):
            if constrained:
                draft.set_row(row, [token] * lengths[row], 0.9)
        return draft

    def broken(*_: Any) -> None:
        raise RuntimeError("planted")

    scheduler.update_from_output = update_from_output
    adds = grammars.adds
    if how == "offer":
        stage.propose = propose
    grammars.adds = adds and how != "leave out"
    if how == "raise":
        grammars._add = broken
    try:
        answers = inside.generate(llm, [p for p, _ in given], [params for _, params in given])
    finally:
        del scheduler.update_from_output
        grammars.adds = adds
        for what, name in ((stage, "propose"), (grammars, "_add")):
            what.__dict__.pop(name, None)
    counts = (stage.metrics.snapshot() - before).as_dict()["by_source"]
    faults = {kind: count for (name, kind), count in scheduler.step_planner.faults.items() if name == "grammar"}
    leftover = len(grammars.constrained)
    return {"answers": answers, "steps": steps, "counts": counts, "faults": faults, "leftover": leftover}


Reported = dict[str, Any]


@pytest.fixture(scope="session")
def expected(engine: Callable[..., Engine]) -> dict[str, dict[str, Any]]:
    baseline = engine("v1", name="baseline v1, compact", installed=False, **COMPACT)
    return dict(zip(REQUESTED, baseline.call(ask, without=True)["answers"], strict=True))


@pytest.fixture(scope="session")
def ours(engine: Callable[..., Engine]) -> Engine:
    return engine("v1", LOOKUP, name="v1, compact", **COMPACT)


def reported(engine: Engine, how: str, token: int = 0) -> Reported:
    found: Reported = engine.call(ask, how=how, token=token)
    first = min((step["row"] for step in found["steps"]), default=0)
    names = list(REQUESTED)
    return {
        **found,
        "answers": dict(zip(REQUESTED, found["answers"], strict=True)),
        "steps": [{**step, "name": names[step["row"] - first]} for step in found["steps"]],
    }


@pytest.fixture(scope="session")
def completed(ours: Engine) -> Reported:
    return reported(ours, "watch")


@pytest.fixture(scope="session")
def left_out(ours: Engine) -> Reported:
    return reported(ours, "leave out")


@pytest.fixture(scope="session")
def misled(ours: Engine) -> Reported:
    return reported(ours, "offer", NEWLINE)


def of(ran: Reported, name: str) -> Iterator[dict[str, Any]]:
    return (step for step in ran["steps"] if step["name"] == name)


@pytest.mark.parametrize("name", REQUESTED)
def test_as_without_speculation(name, expected, completed, misled, left_out):
    for ran in (completed, misled, left_out):
        for key in ("token_ids", "text", "finish_reason", "stop_reason"):
            assert ran["answers"][name][key] == expected[name][key]


def test_the_answers_are_what_the_grammar_says(expected):
    for name in CONSTRAINED[:2]:
        assert list(json.loads(expected[name]["text"])) == [*KEYS]


def test_forced_tokens_are_always_accepted(completed):
    """No token of confidence 1 is ever the first that is refused."""
    forced = 0
    for step in completed["steps"]:
        if step["stated"] is not None:
            kept, _, levels = step["stated"]
            whole = [0.0] * kept + levels
            assert step["accepted"] == len(step["verified"]) or whole[step["accepted"]] < 1.0
            forced += sum(level == 1.0 for level in whole[: step["accepted"]])
    assert forced > 20


@pytest.mark.parametrize("name", CONSTRAINED[:2])
def test_they_save_steps(name, completed, left_out):
    """A step emits its accepted tokens and one more; steps that verify nothing are left out."""
    tokens = len(completed["answers"][name]["token_ids"])
    saved = [sum(step["accepted"] for step in of(ran, name)) for ran in (completed, left_out)]
    assert saved[0] > saved[1] + 5
    assert saved[0] < tokens


@pytest.mark.parametrize("name", CONSTRAINED)
def test_only_legal_tokens_are_verified(name, completed, misled):
    """A matcher of this process checks that; it follows each text and its draft from the start."""
    after = matcher(REGEX) if name == "regex" else matcher(separators=(",", ":"))
    verified = 0
    for ran in (completed, misled):
        for step in of(ran, name):
            assert allows(after, step["before"] + step["verified"])
            verified += len(step["verified"])
    assert verified > 20


@pytest.mark.parametrize("name", CONSTRAINED[:2])
def test_illegal_drafts_cost_nothing(name, misled):
    """A newline is illegal throughout; what grammars add stays."""
    assert not any(NEWLINE in step["verified"] for step in of(misled, name))
    assert sum(step["stated"][1] for step in of(misled, name)) > 40
    assert sum(1.0 in step["stated"][2] for step in of(misled, name)) > 5


def test_counted_apart(completed, misled, left_out):
    for ran in (completed, misled):
        counts = ran["counts"]
        proposers = [own for name, own in counts.items() if name != "grammar"]
        assert counts["grammar"]["proposed"] == counts["grammar"]["verified"] > 0
        verified = sum(len(step["verified"]) for step in ran["steps"])
        assert verified == sum(own["verified"] for own in counts.values())
        assert sum(step["accepted"] for step in ran["steps"]) == sum(own["accepted"] for own in counts.values())
        assert counts["grammar"]["accepted"] > 20
        assert not any(own["never_verified"] for own in proposers)
    assert sum(own["cut_by_grammar"] for own in misled["counts"].values()) > 80
    assert not left_out["counts"]["grammar"]["proposed"]
    assert not completed["leftover"] + misled["leftover"]


def test_a_grammar_that_raises_costs_what_it_would_add(ours, expected):
    found = reported(ours, "raise")
    for name in REQUESTED:
        assert found["answers"][name]["token_ids"] == expected[name]["token_ids"]
    assert found["faults"]["raised"] >= 1
    assert not found["counts"]["grammar"]["proposed"]


LETTERS = [tokenizer().convert_tokens_to_ids(letter) for letter in "QZXJ"]
"""No two of them are one token."""

AFTER = ids("x = 1\ny = 2\nx = 1\ny = 2\n")
"""What they are sampled after: the second of them is likely there."""


@pytest.fixture(scope="session")
def drawing(engine: Callable[..., Engine]) -> Engine:
    """Drafts from a distribution that it states, half of which the grammar forbids."""
    drawn = {"tokens": [LETTERS[1], NEWLINE]}
    settings = {"proposer": "uniform-probs", "policy": "fixed", "options": {"uniform-probs": drawn}}
    return engine("v1", settings, name="v1, drawn under a grammar", max_num_seqs=32, draft_length=2)


def pairs(llm: Any, count: int) -> dict[str, Any]:
    """Return the first two tokens of sampled answers, the second of which was drafted; and what was counted."""
    stage = watching.drafting(llm).stage
    before = stage.metrics.snapshot()
    given = {"structured_outputs": {"regex": "[QZXJ]{4}"}, "temperature": 1.0, "max_tokens": 4}
    answers = inside.generate(llm, [AFTER] * count, given)
    total = (stage.metrics.snapshot() - before).as_dict()["total"]
    return {"pairs": [answer["token_ids"][:2] for answer in answers], "total": total}


def test_drawn_drafts_keep_the_distribution(drawing):
    """The cut depends on the drawn tokens, so verifying by the stated distribution would bias the output."""
    count = 800
    found = drawing.call(pairs, count=count)
    counts = torch.zeros(len(LETTERS), len(LETTERS))
    for one, other in found["pairs"]:
        counts[LETTERS.index(one), LETTERS.index(other)] += 1
    first = forward(AFTER)[LETTERS].double().softmax(-1)
    after = torch.stack([forward([*AFTER, letter])[LETTERS].double().softmax(-1) for letter in LETTERS])
    assert g_test(counts.flatten().numpy(), (first[:, None] * after).flatten().numpy()) > 1e-4
    assert found["total"]["cut_by_grammar"] > count / 2
    assert found["total"]["accepted"] > count / 5


def test_nothing_is_added_to_drafts_that_state_a_distribution(drawing):
    """A token that is added has none."""
    found = drawing.call(pairs, count=4)
    assert found["total"]["verified"] == found["total"]["proposed"] - found["total"]["cut_by_grammar"]
    assert not drawing.call(adds)


def adds(llm: Any) -> bool:
    return bool(inside.scheduler(llm)._grammars.adds)
