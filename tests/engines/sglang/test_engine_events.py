"""Proposers receive engine events: flushed caches, new weights, released memory; pauses change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.launch import TINY
from tests.engines.plain import assert_greedy, greedy, ids, prompts
from tests.engines.sglang import inside, watching
from tests.engines.suites.lifecycle import RECORDING
from tests.engines.suites.served import Served

PROMPTS = [list(prompt) for prompt in prompts()]


pytestmark = pytest.mark.parametrize("kind", ["overlap"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def recording(start: Callable[..., Served]) -> Engine:
    return start(RECORDING, name="tight", **watching.TIGHT).engine


def events_of(engine: Any, function: str, arguments: list[Any]) -> list[str]:
    """Call a function of this module; return the engine events that proposers received meanwhile."""
    watching.call(engine, watching.begin)
    globals()[function](engine, *arguments)
    records = watching.call(engine, watching.end)["records"]
    return [record["kind"] for record in records if record["call"] == "event" and "slot" not in record]


def flush(engine: Any) -> None:
    assert engine.flush_cache().success


def load_from_disk(engine: Any, path: str) -> None:
    success, message = engine.update_weights_from_disk(path)[:2]
    assert success == (path == str(TINY)), message


def load_tensors(engine: Any, selector: str, loads: int) -> None:
    """Write one of the model's weights as it is, and some more often."""
    import torch

    name = "model.norm.weight"
    assert engine.begin_weight_update(selector)[0]
    for _ in range(loads):
        weight = torch.tensor(engine.get_weights_by_name(name, truncate_size=1 << 20))
        success, message = engine.update_weights_from_tensor([(name, weight)], flush_cache=False)[:2]
        assert success, message
    assert engine.end_weight_update()[0]


def load_tensors_without_a_session(engine: Any) -> None:
    import torch

    assert not engine.update_weights_from_tensor([("model.norm.weight", torch.ones(1))])[0]


def load_from_others(engine: Any) -> None:
    """Do the last part of a transfer between processes; the transport itself needs GPUs."""
    watching.call(engine, receive)


def receive(scheduler: Any) -> None:
    updater = scheduler.tp_worker.model_runner.weight_updater
    assert updater.load_weights_from_distributed([])[0]
    try:
        updater.update_weights_from_ipc(None)
    except Exception:
        return


def release_and_resume(engine: Any, released: list[list[str] | None], resumed: list[list[str] | None]) -> None:
    for tags in released:
        engine.release_memory_occupation(tags)
    for tags in resumed:
        engine.resume_memory_occupation(tags)


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        ("flush", [], ["cache flushed"]),
        ("load_from_disk", [str(TINY)], ["weights changed", "cache flushed"]),
        ("load_from_disk", ["/nowhere"], ["weights changed"]),
        ("load_tensors", ["all", 2], ["weights changed"] * 2),
        ("load_tensors", ["target", 0], ["weights changed"]),
        ("load_tensors", ["draft", 0], []),
        ("load_tensors_without_a_session", [], []),
        ("load_from_others", [], ["weights changed"] * 2),
        ("release_and_resume", [[None], [None]], ["sleep", "cache flushed", "wake"]),
        (
            "release_and_resume",
            [[["weights"], ["kv_cache"]], [["kv_cache"], ["weights"]]],
            ["sleep", "cache flushed", "wake"],
        ),
    ],
)
def test_proposers_learn_what_happens_to_the_engine(function, arguments, expected, recording):
    given = ids("def area(r):\n    return 3.14 * r * r\n\ndef area(r):\n    return")
    before = recording.call(inside.generate, prompts=[given])
    watched = recording.call(watching.settled)
    assert not any(watched.values())
    assert recording.call(events_of, function=function, arguments=arguments) == expected
    assert recording.call(inside.generate, prompts=[given])[0]["token_ids"] == before[0]["token_ids"]


def test_ends_are_reported_before_what_comes_after_them(recording):
    """A flush follows the last answer at once."""
    recording.call(watching.settled)  # the end of the last test's request may still be on its way
    recording.inside(watching.begin)
    recording.call(inside.generate, prompts=PROMPTS[:1], params={"max_new_tokens": 1})
    assert recording.call(inside.flush)
    kinds = [record["kind"] for record in recording.inside(watching.end)["records"] if record["call"] == "event"]
    assert kinds == ["STARTED", "FINISHED", "cache flushed"]


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_pauses(mode, recording):
    most = {3: 160, 7: 40, 11: 40, 8: 40}  # the first one is still running when the pause comes
    places = list(most)
    requested = [
        {"id": f"{mode} {place}", "prompt": PROMPTS[place], "params": {"max_new_tokens": length}}
        for place, length in most.items()
    ]
    found = recording.call(watching.recorded, requests=requested, pause=[mode, f"{mode} 3", 4])
    truth = [greedy(tuple(PROMPTS[place]), most[place]) for place in places]
    assert_greedy([PROMPTS[place] for place in places], truth, [found["outputs"][f"{mode} {p}"] for p in places])
    assert found["wrong"] == []
    assert not any(found["left"].values())
    kinds = [record["kind"] for record in found["records"] if record.get("request_id") == f"{mode} 3"]
    expected = ["STARTED", "PREEMPTED", "RESUMED", "FINISHED"] if mode == "retract" else ["STARTED", "FINISHED"]
    assert kinds == expected
