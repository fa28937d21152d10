"""Requests start, are aborted, preempted and resumed: the events and texts of proposers, and the client's output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.plain import Answers, assert_greedy, greedy, prompts, tokenizer
from tests.engines.sglang import watching

PROMPTS = [list(prompt) for prompt in prompts()]
UNENDING = (7, 15, 3, 11, 23, 19)  # prompts with answers of any length, of which the tight engine's memory holds less
LONG = 160

Records = list[dict[str, Any]]


@pytest.fixture(scope="session", params=[True, False], ids=["overlap", "sync"])
def tight(request: pytest.FixtureRequest, engine: Callable[..., Engine]) -> Engine:
    name = f"tight {'overlapped' if request.param else 'sync'}"
    return engine("SPECPLUG", overlap=request.param, name=name, **watching.RECORDING)


def requested_for(name: str, places: Sequence[int], most: int = 40) -> Records:
    """Return requests for some of the prompts, with ids that differ between tests."""
    return [{"id": f"{name} {place}", "prompt": PROMPTS[place], "params": {"max_new_tokens": most}} for place in places]


def assert_right(found: dict[str, Any], name: str, places: Sequence[int], most: int = 40) -> None:
    """Clients got the plain model's answers, and proposers saw these texts and no others."""
    truth: Answers = [greedy(tuple(PROMPTS[place]), most) for place in places]
    assert_greedy([PROMPTS[place] for place in places], truth, [found["outputs"][f"{name} {p}"] for p in places])
    assert_sound(found)


def assert_sound(found: dict[str, Any]) -> None:
    """Each row is the newest occupant of its slot, each token is ingested once per generation, and nothing is left."""
    assert found["wrong"] == []
    assert not any(found["left"].values()), found["left"]
    assert not found["counts"]["faults"]
    tenants: dict[int, tuple[str, int]] = {}
    taken: dict[tuple[int, int], int] = {}
    newest: dict[int, int] = {}
    reset: list[tuple[int, int]] = []
    for record in found["records"]:
        if record["call"] == "event" and "slot" in record:
            slot, generation, name = record["slot"], record["generation"], record["request_id"]
            if record["kind"] in ("STARTED", "RESUMED"):
                assert slot not in tenants, f"slot {slot} is taken by {tenants[slot]}"
                assert generation > newest.get(slot, 0), "generations grow"
                tenants[slot], newest[slot] = (name, generation), generation
            else:
                assert tenants.pop(slot) == (name, generation), f"{name} has left a place that was not its own"
        if record["call"] == "ingest" and not record["is_dummy"]:
            for name, slot, generation, length, new in rows_of(record):
                assert tenants[slot] == (name, generation)
                assert taken.get((slot, generation), 0) + new == length, f"{name} missed tokens or got some twice"
                taken[slot, generation] = length
            reset += [(slot, newest[slot]) for slot in record["reset_slots"]]
    assert not tenants, "somebody has left unheard"
    assert len(set(reset)) == len(reset), "a slot was reset twice in one generation"
    assert set(reset) >= set(taken), "a slot was not reset"


def rows_of(record: dict[str, Any]) -> Iterator[tuple[str, int, int, int, int]]:
    columns = ("request_ids", "slots", "generations", "lengths", "num_new")
    return zip(*(record[column] for column in columns), strict=True)


def kinds_of(found: dict[str, Any], name: str) -> list[str]:
    return [record["kind"] for record in found["records"] if record.get("request_id") == name]


def accepted_after_resuming(found: dict[str, Any], name: str) -> int:
    """Return how many drafts were accepted of a request's newest generation."""
    rows = [
        (generation, accepted)
        for record in found["records"]
        if record["call"] == "observe"
        for owner, generation, accepted in zip(
            record["request_ids"], record["generations"], record["verdict"]["accepted"], strict=True
        )
        if owner == name
    ]
    newest = max(generation for generation, _ in rows)
    return sum(accepted for generation, accepted in rows if generation == newest)


def test_slots_change_hands(tight):
    """There are more requests than an engine runs at once, and some end with their prompt's step."""
    places = [*range(0, 20, 2)]
    requested = [*requested_for("hands", places), *requested_for("one", [1, 5, 9], 1)]
    found = tight.call(watching.recorded, requests=requested)
    assert_right(found, "hands", places)
    assert_right(found, "one", [1, 5, 9], 1)
    for request in requested:
        assert kinds_of(found, request["id"]) in (
            ["STARTED", "FINISHED"],
            ["STARTED", "PREEMPTED", "RESUMED", "FINISHED"],
        )
    slots = {record["slot"] for record in found["records"] if record.get("kind") == "STARTED"}
    assert len(slots) <= 8 < len(requested), "slots were not reused"


def test_full_memory(tight):
    """Retracted requests resume, get drafts again, and have the same answers."""
    tight.inside(watching.gather, count=len(UNENDING))
    found = tight.call(watching.recorded, requests=requested_for("full", UNENDING, LONG))
    assert_right(found, "full", UNENDING, LONG)
    moved = [name for name in found["outputs"] if "PREEMPTED" in kinds_of(found, name)]
    assert moved
    for name in moved:
        assert found["outputs"][name]["meta"]["num_retractions"] == kinds_of(found, name).count("RESUMED")
        assert kinds_of(found, name)[-2:] == ["RESUMED", "FINISHED"]
        assert accepted_after_resuming(found, name) > 0, f"{name} was not drafted for after it resumed"


def test_often_retracted(tight):
    """The youngest request is retracted every few steps, with a step in flight, and others take its slot."""
    places = (*UNENDING, 8, 21, 12, 14, 16, 20)
    tight.inside(watching.retract_often, every=5)
    try:
        found = tight.call(watching.recorded, requests=requested_for("often", places))
    finally:
        tight.inside(watching.retract_often, every=0)
    assert_right(found, "often", places)
    assert sum(output["meta"]["num_retractions"] for output in found["outputs"].values()) > 5


def test_aborted(tight):
    """A running and a waiting request leave, and one whose prompt is half read; the others go on."""
    requested = requested_for("abort", range(14))
    aborts = {"abort 3": ["abort 3", 8], "abort 12": ["abort 3", 1], "late": ["abort 7", 4]}
    long = [token for prompt in PROMPTS[:4] for token in prompt]
    requested.append({"id": "late", "prompt": long, "after": ["abort 7", 3]})
    found = tight.call(watching.recorded, requests=requested, aborts=aborts)
    reasons = {name: output["finish_reason"] for name, output in found["outputs"].items()}
    rest = [place for place in range(14) if reasons[f"abort {place}"] != "abort"]
    assert reasons["abort 3"] == reasons["abort 12"] == "abort"
    assert len(rest) == 12
    assert_right(found, "abort", rest)
    first, *between, last = kinds_of(found, "abort 3")
    assert first == "STARTED"
    assert last in ("ABORTED", "PREEMPTED"), "it was running, or had been retracted when the abort came"
    assert set(between) <= {"PREEMPTED", "RESUMED"}  # it may have been retracted
    assert kinds_of(found, "abort 12") == [], "it never ran"
    assert reasons["late"] == "abort"
    assert kinds_of(found, "late") in ([], ["STARTED", "ABORTED"])


def test_aborted_while_it_waits_to_resume(tight):
    tight.inside(watching.abort_retracted)
    found = tight.call(watching.recorded, requests=requested_for("gone", UNENDING))
    (gone,) = (name for name, output in found["outputs"].items() if output["finish_reason"] == "abort")
    assert kinds_of(found, gone) in (["STARTED", "PREEMPTED"], ["STARTED", "ABORTED"])
    rest = [place for place in UNENDING if f"gone {place}" != gone]
    assert_right(found, "gone", rest)


def test_all_aborted(tight):
    found = tight.call(watching.recorded, requests=requested_for("all", range(14), LONG), aborts={"*": ["all 3", 6]})
    assert {output["finish_reason"] for output in found["outputs"].values()} >= {"abort"}
    assert_sound(found)
    assert kinds_of(found, "all 3") == ["STARTED", "ABORTED"]
    assert_right(tight.call(watching.recorded, requests=requested_for("then", [3, 4])), "then", [3, 4])


def test_the_same_id_again(tight):
    """A later request is a new one, even if it reuses an id."""
    texts = []
    for place in (3, 8, 3):
        requested = [{"id": "again", "prompt": PROMPTS[place]}]
        found = tight.call(watching.recorded, requests=requested)
        assert_sound(found)
        assert kinds_of(found, "again") == ["STARTED", "FINISHED"]
        texts.append(found["outputs"]["again"]["token_ids"])
    assert texts == [greedy(tuple(PROMPTS[place]))["token_ids"] for place in (3, 8, 3)]


def test_prompts_in_pieces(tight):
    """Long prompts are read in pieces while others are drafted for; proposers get them whole."""
    long = [PROMPTS[0] + PROMPTS[1], PROMPTS[5] + PROMPTS[2]]
    requested = requested_for("piece", [7, 15])
    requested += [
        {"id": f"long {index}", "prompt": prompt, "after": ["piece 7", 2]} for index, prompt in enumerate(long)
    ]
    found = tight.call(watching.recorded, requests=requested)
    assert_right(found, "piece", [7, 15])
    truth = [greedy(tuple(prompt)) for prompt in long]
    assert_greedy(long, truth, [found["outputs"][f"long {index}"] for index in range(2)])
    lengths = [
        length
        for record in found["records"]
        if record["call"] == "ingest"
        for name, _, _, length, new in rows_of(record)
        if name == "long 0" and new == length
    ]
    assert lengths == [len(long[0]) + 1]  # the whole prompt and the first token, at the first step that drafts


def test_grammars_end_in_the_middle(tight):
    """With grammars SGLang processes a step's results before the next one, which still contains ended requests."""
    pattern = "(ab|a,)*[0-9]{%d}"
    requested = [
        {**request, "params": {"regex": pattern % (2 + index), "max_new_tokens": 30}}
        for index, request in enumerate(requested_for("regex", range(6)))
    ]
    found = tight.call(watching.recorded, requests=requested)
    assert_sound(found)
    for index, request in enumerate(requested):
        text = tokenizer().decode(found["outputs"][request["id"]]["token_ids"], skip_special_tokens=True)
        assert found["outputs"][request["id"]]["finish_reason"] == "length" or re.fullmatch(pattern % (2 + index), text)
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
    found = tight.call(session_seen, **given)
    assert found["answers"] == baseline.call(session, **given)
    assert_sound({**found, "wrong": []})
    before = [token for turn in zip(parts[:2], found["answers"], strict=False) for half in turn for token in half]
    whole = [*before, *parts[2], *found["answers"][2]]
    texts = [text for record in found["records"] if record["call"] == "ingest" for text in record["texts"]]
    longest = max(texts, key=len)
    assert longest[: len(whole)] == whole[: len(longest)]
    assert len(longest) > len(before) + len(parts[2])
