"""Turns of two servers that answer at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.real_models.turns import STEPS, Pipes, Turns, turn_taking


def _run(name: str, steps: int, own: Pipes, ran: list[str]) -> None:
    turns = Turns(own)
    for _ in range(steps):
        turns.begin()
        ran.append(name)
        turns.end()
    turns.close()


@pytest.mark.parametrize(
    "steps", [(3 * STEPS, 3 * STEPS), (STEPS + 1, 4 * STEPS), (0, 2), (5 * STEPS, 1, 2 * STEPS - 1), (7,)]
)
def test_servers_take_turns_until_none_has_more_steps(steps):
    ran: list[str] = []
    names = "abc"[: len(steps)]
    with turn_taking(len(steps)) as turns, ThreadPoolExecutor(len(steps)) as threads:
        for place, each in enumerate(zip(names, steps, turns.pipes, strict=True)):
            call = threads.submit(_run, *each, ran)
            call.add_done_callback(lambda _, place=place: turns.ended(place))
        turns.run()
    left = dict(zip(names, steps, strict=True))
    expected: list[str] = []
    while any(left.values()):
        for name in names:
            turn = min(STEPS, left[name])
            expected += [name] * turn
            left[name] -= turn
    assert ran == expected


def test_a_server_alone_waits_for_nobody():
    turns = Turns()
    for _ in range(2 * STEPS):
        turns.begin()
        turns.end()
    turns.close()
