"""The benchmark of a policy's host time: the calls that it records are made again in their order, at later times."""

from __future__ import annotations

from benchmarks.host_time import _again, _record
from specplug.steps.step_planner import UNREPORTED


class Planner:
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def make(self, running):
        self.calls.append(("make", tuple(running)))

    def launch(self, began, requests):
        self.calls.append(("launch", began, requests))
        return f"step of {began:g}"

    def finish(self, step, results, ended, *, late=()):
        self.calls.append(("finish", step, ended, late))


def run(planner: Planner) -> None:
    """Run three steps; each is finished after the next one was launched, and the one before them was not timed."""
    step = UNREPORTED
    for number in range(3):
        launched = planner.launch(float(number), 2)
        planner.make(["a", "b"])
        planner.finish(step, [], number + 0.5, late=("c",))
        step = launched


def test_recorded_calls_are_made_again_at_later_times_and_steps_finish_in_order():
    planner = Planner()
    calls = _record(planner)
    run(planner)
    assert [name for name, _, _ in calls] == ["launch", "make", "finish"] * 3
    planner.calls.clear()
    spent = _again(Planner, planner, list(calls), ["x"], 6)
    assert len(spent) == 6
    assert min(spent) > 0
    again = planner.calls
    assert [call[1] for call in again if call[0] == "launch"] == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    finished = [call[1:] for call in again if call[0] == "finish"]
    assert finished[:3] == [(UNREPORTED, 3.5, ("c",)), ("step of 3", 4.5, ("c",)), ("step of 4", 5.5, ("c",))]
    assert finished[3:] == [(UNREPORTED, 6.5, ("c",)), ("step of 5", 7.5, ("c",))]
    assert {call[1] for call in again if call[0] == "make"} == {("x",)}
    assert "make" not in vars(planner)
