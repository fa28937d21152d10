"""What is of SGLang alone in the life of requests: retractions in any step, grammars, sessions.

See `tests.engines.suites.lifecycle` for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.plain import tokenizer
from tests.engines.sglang import trees, watching
from tests.engines.sglang.watching import TIGHT
from tests.engines.suites.lifecycle import (
    PROMPTS,
    RECORDING,
    UNENDING,
    assert_right,
    assert_sound,
    kinds_of,
    requested_for,
)
from tests.engines.suites.served import Served


@pytest.fixture(scope="session")
def tight(start: Callable[..., Served]) -> Served:
    return start(RECORDING, name="tight", **TIGHT)


def test_often_retracted(tight):
    """The youngest request is retracted every few steps, with and without drafts, and others take its slot."""
    places = (*UNENDING, 8, 21, 12, 14, 16, 20)
    with tight.engine.planted(watching.retract_often, trees.skip_drafts, every=5):
        found = tight.recorded(requested_for("often", places))
    assert_right(found, "often", places)
    assert sum(output["meta"]["num_retractions"] for output in found["outputs"].values()) > 5


def test_aborted_while_it_waits_to_resume(tight):
    tight.engine.inside(watching.abort_retracted)
    found = tight.recorded(requested_for("gone", UNENDING))
    (gone,) = (name for name, output in found["outputs"].items() if output["finish_reason"] == "abort")
    assert kinds_of(found, gone) in (["STARTED", "PREEMPTED"], ["STARTED", "ABORTED"])
    assert_right(found, "gone", [place for place in UNENDING if f"gone {place}" != gone])


def test_all_aborted(tight):
    found = tight.recorded(requested_for("all", range(14), 160), {"*": ["all 3", 6]})
    assert {output["finish_reason"] for output in found["outputs"].values()} >= {"abort"}
    assert_sound(found)
    assert kinds_of(found, "all 3") == ["STARTED", "ABORTED"]
    assert_right(tight.recorded(requested_for("then", [3, 4])), "then", [3, 4])


def test_grammars_end_in_the_middle(tight):
    """With grammars SGLang processes a step's results before the next one, which still contains ended requests."""
    pattern = "(ab|a,)*[0-9]{%d}"
    requested = [
        {**request, "params": {"structured_outputs": {"regex": pattern % (2 + index)}, "max_tokens": 30}}
        for index, request in enumerate(requested_for("regex", range(6)))
    ]
    found = tight.recorded(requested)
    assert_sound(found)
    for index, request in enumerate(requested):
        output = found["outputs"][request["id"]]
        text = tokenizer().decode(output["token_ids"], skip_special_tokens=True)
        assert output["finish_reason"] == "length" or re.fullmatch(pattern % (2 + index), text)
    assert "stop" in {output["finish_reason"] for output in found["outputs"].values()}


def session(engine: Any, parts: list[list[int]], most: int) -> list[list[int]]:
    """Ask one session after another part of its prompt; return the answers' ids."""
    name = engine.open_session(capacity_of_str_len=4096)
    answers, last = [], None
    try:
        for part in parts:
            output = engine.generate(
                input_ids=part,
                sampling_params={"temperature": 0.0, "max_new_tokens": most, "ignore_eos": True},
                session_params={"id": name, "rid": last},
            )
            last = output["meta_info"]["id"]
            answers.append(list(output["output_ids"]))
    finally:
        engine.close_session(name)
    return answers


def session_seen(engine: Any, parts: list[list[int]], most: int) -> dict[str, Any]:
    watching.call(engine, watching.begin)
    answers = session(engine, parts, most)
    left = watching.settled(engine)
    return {"answers": answers, "left": left, **watching.call(engine, watching.end)}


def test_sessions(tight, baseline):
    """Each turn is a request of its own, with the turns before it as its prompt."""
    parts = [PROMPTS[7], PROMPTS[3], PROMPTS[11]]
    given = {"parts": parts, "most": 12}
    found = tight.engine.call(session_seen, **given)
    assert found["answers"] == baseline.call(session, **given)
    assert_sound({**found, "wrong": [], "outputs": {}})
    before = [token for turn in zip(parts[:2], found["answers"], strict=False) for half in turn for token in half]
    whole = [*before, *parts[2], *found["answers"][2]]
    texts = [text for record in found["records"] if record["call"] == "ingest" for text in record["texts"]]
    longest = max(texts, key=len)
    assert longest[: len(whole)] == whole[: len(longest)]
    assert len(longest) > len(before) + len(parts[2])
