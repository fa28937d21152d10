"""Requests start, are aborted, preempted and resumed: the events and texts of proposers, and the client's output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest

from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.suites.served import Records, Served

PROMPTS = [list(prompt) for prompt in prompts()]
UNENDING = (7, 15, 3, 11, 23, 19)  # prompts with answers of any length, of which the engine's memory holds less
RECORDING = {"proposer": "recorder", "extra_proposers": ["oracle"], "policy": "fixed"}


class LifecycleSuite:
    """The engine has room for some long answers only, and reads prompts in pieces.

    Attributes:
        tight: what launches it so.
        long: tokens of an answer that, six times, does not fit.
    """

    tight: ClassVar[dict[str, Any]]
    long: ClassVar[int] = 160

    @pytest.fixture(scope="class")
    def served(self, start: Callable[..., Served]) -> Served:
        return start(RECORDING, name="tight", **self.tight)

    def test_slots_change_hands(self, served):
        """There are more requests than an engine runs at once, and some end with their prompt's step."""
        places = [*range(0, 20, 2)]
        requested = [*requested_for("hands", places), *requested_for("one", [1, 5, 9], 1)]
        found = served.recorded(requested)
        assert_right(found, "hands", places)
        assert_right(found, "one", [1, 5, 9], 1)
        for place in places:
            assert kinds_of(found, f"hands {place}") in (
                ["STARTED", "FINISHED"],
                ["STARTED", "PREEMPTED", "RESUMED", "FINISHED"],
            )
        slots = {record["slot"] for record in found["records"] if record.get("kind") == "STARTED"}
        assert len(slots) <= 8 < len(requested), "slots were not reused"

    def test_preempted_and_resumed(self, served):
        """Preempted requests resume, get drafts again, and have the same answers."""
        self.before_all_come(served, len(UNENDING))
        found = served.recorded(requested_for("full", UNENDING, self.long))
        assert_right(found, "full", UNENDING, self.long)
        moved = [name for name in found["outputs"] if "PREEMPTED" in kinds_of(found, name)]
        assert moved
        for name in moved:
            assert kinds_of(found, name)[-2:] == ["RESUMED", "FINISHED"]
            assert accepted_after_resuming(found, name) > 0, f"{name} was not drafted for after it resumed"

    def before_all_come(self, served: Served, count: int) -> None:
        """Let the engine wait for so many requests, if that is needed for them to be preempted."""

    def test_aborted(self, served):
        """A running and a waiting request leave, and one whose prompt is half read; the others go on."""
        requested = requested_for("abort", range(14))
        aborts = {"abort 3": ["abort 3", 8], "abort 12": ["abort 3", 1], "late": ["abort 7", 4]}
        long = PROMPTS[0] + PROMPTS[1]
        requested.append({"id": "late", "prompt": long, "after": ["abort 7", 3]})
        found = served.recorded(requested, aborts)
        reasons = {name: output["finish_reason"] for name, output in found["outputs"].items()}
        rest = [place for place in range(14) if reasons[f"abort {place}"] != "abort"]
        assert reasons["abort 3"] == reasons["abort 12"] == "abort"
        assert len(rest) == 12
        assert_right(found, "abort", rest)
        first, *between, last = kinds_of(found, "abort 3")
        assert first == "STARTED"
        assert last in ("ABORTED", "PREEMPTED"), "it was running, or had been preempted when the abort came"
        assert set(between) <= {"PREEMPTED", "RESUMED"}
        assert kinds_of(found, "abort 12") == [], "it never ran"
        assert reasons["late"] == "abort"
        assert kinds_of(found, "late") in ([], ["STARTED", "ABORTED"])

    def test_the_same_id_again(self, served):
        """A later request is a new one, even if it reuses an id."""
        texts = []
        for place in (3, 8, 3):
            found = served.recorded([{"id": "again", "prompt": PROMPTS[place]}])
            assert_sound(found)
            assert kinds_of(found, "again") == ["STARTED", "FINISHED"]
            texts.append(found["outputs"]["again"]["token_ids"])
        assert texts == [greedy(tuple(PROMPTS[place]))["token_ids"] for place in (3, 8, 3)]

    def test_prompts_in_pieces(self, served):
        """Long prompts are read in pieces while others are drafted for; proposers get them whole."""
        long = [PROMPTS[0] + PROMPTS[1], PROMPTS[5] + PROMPTS[2]]
        requested = requested_for("piece", [7, 15])
        requested += [
            {"id": f"long {index}", "prompt": prompt, "after": ["piece 7", 2]} for index, prompt in enumerate(long)
        ]
        found = served.recorded(requested)
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
        assert len(lengths) == 1 + kinds_of(found, "long 0").count("RESUMED")
        assert lengths[0] >= len(long[0])


def requested_for(name: str, places: Sequence[int], most: int = 40) -> Records:
    """Return requests for some of the prompts, with ids that differ between tests."""
    return [{"id": f"{name} {place}", "prompt": PROMPTS[place], "params": {"max_tokens": most}} for place in places]


def assert_right(found: dict[str, Any], name: str, places: Sequence[int], most: int = 40) -> None:
    """Clients got the plain model's answers, and proposers saw these texts and no others."""
    truth = [greedy(tuple(PROMPTS[place]), most) for place in places]
    assert_greedy([PROMPTS[place] for place in places], truth, [found["outputs"][f"{name} {p}"] for p in places])
    assert_sound(found)


def assert_sound(found: dict[str, Any]) -> None:
    """Each row is the newest occupant of its slot, each token is ingested once per generation, and nothing is left."""
    assert found["wrong"] == []
    assert not any(found["left"].values()), found["left"]
    assert not found["counts"]["faults"]
    occupants: dict[int, tuple[str, int]] = {}
    taken: dict[tuple[int, int], int] = {}
    newest: dict[int, int] = {}
    reset: list[tuple[int, int]] = []
    begun: set[str] = set()
    for record in found["records"]:
        if record["call"] == "event" and "slot" in record:
            slot = record["slot"]
            generation = record["generation"]
            name = record["request_id"]
            if record["kind"] in ("STARTED", "RESUMED", "UPDATED"):
                if record["kind"] != "UPDATED":
                    assert slot not in occupants, f"slot {slot} is taken by {occupants[slot]}"
                assert generation > newest.get(slot, 0), "generations grow"
                occupants[slot] = (name, generation)
                newest[slot] = generation
                begun.add(name)
            elif name in begun:  # others began before the recording
                assert occupants.pop(slot) == (name, generation), f"{name} has left a place that was not its own"
        if record["call"] == "ingest" and not record["is_dummy"]:
            for name, slot, generation, length, new in rows_of(record):
                assert occupants[slot] == (name, generation)
                assert taken.get((slot, generation), 0) + new == length, f"{name} missed tokens or got some twice"
                taken[slot, generation] = length
            reset += [(slot, newest[slot]) for slot in record["reset_slots"]]
    assert not {name for name, _ in occupants.values()} & set(found["outputs"]), "somebody has left unheard"
    assert len(set(reset)) == len(reset), "a slot was reset twice in one generation"
    assert set(reset) >= set(taken), "a slot was not reset"


def rows_of(record: dict[str, Any]) -> Iterator[tuple[str, int, int, int, int]]:
    columns = ("request_ids", "slots", "generations", "lengths", "num_new")
    return zip(*(record[column] for column in columns), strict=True)


def kinds_of(found: dict[str, Any], name: str) -> list[str]:
    """Return the kinds of a request's events, in order."""
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
