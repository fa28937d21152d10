"""Ctrl-C in the event loop of a command."""

from __future__ import annotations

import asyncio
import signal

import pytest

from specplug.tools.client.interrupt import run_interruptible


@pytest.fixture(autouse=True)
def default_handler():
    """Start as in a terminal: a shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


class Command:
    """A command whose main task presses Ctrl-C itself, in a task of its own, or while it waits."""

    def __init__(self) -> None:
        self.went_on = self.cleaned_up = False

    async def run(self, where: str) -> None:
        try:
            if where == "while it waits":
                asyncio.get_running_loop().call_soon(press)
                await asyncio.Event().wait()
            elif where == "in another task":
                await asyncio.gather(self._press(), asyncio.Event().wait())
            else:
                await self._press()
        finally:
            await asyncio.sleep(0)
            self.cleaned_up = True

    async def _press(self) -> None:
        press()
        await asyncio.sleep(0)
        self.went_on = True


@pytest.mark.parametrize("where", ["in the main task", "in another task", "while it waits"])
def test_ctrl_c_ends_a_task_wherever_it_is(where):
    command = Command()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run_interruptible(command.run(where)))
    assert (command.went_on, command.cleaned_up) == (False, True)


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = Command()
    asyncio.run(run_interruptible(command._press()))
    assert command.went_on
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_afterwards_the_handler_is_pythons_own():
    asyncio.run(run_interruptible(asyncio.sleep(0)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_thread_waits_without_a_handler_of_its_own():
    """Only the main thread may set one; there a program's own event loop has one already."""
    assert asyncio.run(asyncio.to_thread(lambda: asyncio.run(run_interruptible(asyncio.sleep(0, "done"))))) == "done"
