"""Ctrl-C in a command's event loop: it also ends the main task in the middle of a call, as a write to a full pipe.

`asyncio.run` answers the first SIGINT by cancelling the main task, which takes effect at the task's next `await`.  A
call that blocks is resumed (PEP 475) and never comes to one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


async def run_interruptible(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call that is the main task of `asyncio.run`, or of `Runner.run`.

    SIGINT raises KeyboardInterrupt in this task if it runs; otherwise the task is cancelled, as by asyncio, and its
    children with it.  If SIGINT is ignored, as in a shell's background job, it stays so.
    """
    loop = asyncio.get_running_loop()
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()  # others get no signals
    if not in_main_thread or not callable(handler) or handler is signal.default_int_handler:
        return await call
    main = asyncio.current_task()
    cancel = handler

    def interrupt(number: int, frame: FrameType | None) -> None:
        if asyncio.current_task(loop) is main:
            raise KeyboardInterrupt
        cancel(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        return await call
    finally:
        signal.signal(signal.SIGINT, handler)


def discard_output() -> None:
    """Let what stdout still buffers go nowhere: writing it when Python ends would block again."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
