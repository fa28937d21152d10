"""Turns of two servers that answer at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.real_models.turns import STEPS, Turns, pipes


def _serve(name: str, steps: int, arguments: tuple[str, str], ran: list[str]) -> None:
    turns = Turns(*arguments)
    for _ in range(steps):
        turns.begin()
        ran.append(name)
        turns.end()
    turns.leave()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(("steps", "others"), [(3 * STEPS, 3 * STEPS), (STEPS + 1, 4 * STEPS), (0, 2), (5 * STEPS, 1)])
def test_servers_take_turns_until_one_has_no_more_steps(first, steps, others):
    ran: list[str] = []
    with pipes(first) as arguments, ThreadPoolExecutor(2) as threads:
        served = zip("ab", (steps, others), arguments, strict=True)
        for call in [threads.submit(_serve, *each, ran) for each in served]:
            call.result()
    left = {"a": steps, "b": others}
    expected: list[str] = []
    name = "ab"[first]
    while left["a"] or left["b"]:
        turn = min(STEPS, left[name])
        expected += [name] * turn
        left[name] -= turn
        name = {"a": "b", "b": "a"}[name]
    assert ran == expected


def test_a_server_alone_waits_for_nobody():
    turns = Turns()
    for _ in range(2 * STEPS):
        turns.begin()
        turns.end()
    turns.leave()
