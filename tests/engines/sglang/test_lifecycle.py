"""What is of SGLang alone in the life of requests: retractions in any step, grammars, sessions.

See `tests.engines.suites.lifecycle` for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.plain import assert_greedy, greedy, tokenizer
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
from tests.engines.suites.served import Served, drafts_of


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


def taken_over(engine: Any, prompts: list[list[int]]) -> dict[str, Any]:
    """Let a request come with the id of one that still runs, as it may in servers with several tokenizer processes."""
    watching.call(engine, watching.begin)

    async def both() -> None:
        params = {"temperature": 0.0, "max_new_tokens": 40, "ignore_eos": True}
        first, second = prompts
        stream = await engine.async_generate(input_ids=first, sampling_params=params, rid="same", stream=True)
        await anext(stream)
        del engine.tokenizer_manager.rid_to_state["same"]  # another tokenizer's
        await engine.async_generate(input_ids=second, sampling_params=params, rid="same")

    engine.loop.run_until_complete(both())
    left = watching.settled(engine)
    return {"left": left, **watching.call(engine, watching.end)}


def test_an_id_taken_over_from_an_unfinished_request(tight):
    """The earlier request leaves its slot; it goes on without harm to those that follow."""
    found = tight.engine.call(taken_over, prompts=[PROMPTS[3], PROMPTS[7]])
    assert kinds_of(found, "same")[:3] == ["STARTED", "ABORTED", "STARTED"]
    assert kinds_of(found, "same")[-1] in ("FINISHED", "ABORTED")
    assert not any(found["left"].values())
    assert not found["counts"]["faults"]
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


def session(
    engine: Any, parts: list[list[int]], most: int = 12, params: list[dict[str, Any]] | None = None
) -> tuple[list[list[int]], list[int]]:
    """Ask one session after another part of its prompt, without ends or with parameters.

    Returns:
        the answers' ids, and the tokens of the prompts that the engine reports.
    """
    name = engine.open_session(capacity_of_str_len=4096)
    answers, lengths, last = [], [], None
    try:
        for part, own in zip(parts, params or [{"ignore_eos": True}] * len(parts), strict=True):
            output = engine.generate(
                input_ids=part,
                sampling_params={"temperature": 0.0, "max_new_tokens": most, **own},
                session_params={"id": name, "rid": last},
            )
            last = output["meta_info"]["id"]
            answers.append(list(output["output_ids"]))
            lengths.append(output["meta_info"]["prompt_tokens"])
    finally:
        engine.close_session(name)
    return answers, lengths


def session_seen(engine: Any, parts: list[list[int]], most: int) -> dict[str, Any]:
    watching.call(engine, watching.begin)
    answers, _ = session(engine, parts, most)
    left = watching.settled(engine)
    return {"answers": answers, "left": left, **watching.call(engine, watching.end)}


def test_sessions(tight, baseline):
    """Each turn is a request of its own, with the turns before it as its prompt."""
    parts = [PROMPTS[7], PROMPTS[3], PROMPTS[11]]
    given = {"parts": parts, "most": 12}
    found = tight.engine.call(session_seen, **given)
    assert found["answers"] == baseline.call(session, **given)[0]
    assert_sound({**found, "wrong": [], "outputs": {}})
    before = [token for turn in zip(parts[:2], found["answers"], strict=False) for half in turn for token in half]
    whole = [*before, *parts[2], *found["answers"][2]]
    texts = [text for record in found["records"] if record["call"] == "ingest" for text in record["texts"]]
    longest = max(texts, key=len)
    assert longest[: len(whole)] == whole[: len(longest)]
    assert len(longest) > len(before) + len(parts[2])


@pytest.mark.parametrize("place", [7, 1], ids=["stop token", "end of text"])
def test_sessions_go_on_behind_a_stop(place, tight):
    """Drafts reach past the end of the first turn, whose answer is all that the second one's prompt has of it."""
    first, second, plain = PROMPTS[place], PROMPTS[11], greedy(tuple(PROMPTS[place]))
    ends = plain["finish_reason"] == "stop"
    answer = plain["token_ids"] if ends else plain["token_ids"][:4]
    assert ends == (place == 1)
    assert answer[-1] not in answer[:-1]
    drafts = {"custom_params": drafts_of([*plain["token_ids"], *second])}
    params = [{**drafts, **({} if ends else {"stop_token_ids": answer[-1:]})}, {}]
    found, lengths = tight.engine.call(session, parts=[first, second], most=40, params=params)
    whole = (*first, *answer, *second)
    assert (found[0], lengths) == (answer, [len(first), len(whole)])
    assert_greedy([whole], [greedy(whole)], [{**greedy(whole), "token_ids": found[1]}])
