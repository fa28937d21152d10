"""Process that holds one engine and runs the functions that tests name on it.

It is forked from a nursery, a process that has imported the engine, loaded specplug's kernels and does nothing else:
these take most of an engine's start.

    python -m tests.engines.<engine>.host FD

FD is the nursery's socket: each packet on it, {"environment": {...}} with two open files, a channel and a log, is
answered by the process id of a new host.  The first line on the channel holds the arguments of the engine's class; each
further one a call.  Answers are lines too: {"result": ...} or {"raised": {"type", "text", "trace"}}.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tests.engines import signatures

PACKET = 1 << 18


class RaisingReported(Exception):
    """Stands for an exception in another process; its one argument is the message that the tests get."""


def main(modules: Sequence[str], build: Callable[[dict[str, Any]], Any]) -> None:
    """Be a nursery; in each child, a host.

    Args:
        modules: what the nursery imports.
        build: makes the engine of its arguments.
    """
    given = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(given.fileno(), False)
    serve(nurse(given, modules), build)
    atexit._run_exitfuncs()  # they end the engine's own processes
    os._exit(0)  # freeing all that was imported takes seconds in a fork, which shares its pages


def nurse(control: socket.socket, modules: Sequence[str]) -> socket.socket:
    """Fork hosts until the other side hangs up; return, in the child alone, the channel of a new host."""
    for module in modules:
        importlib.import_module(module)
    signatures.watch()
    load_kernels()
    gc.freeze()  # hosts collect their own garbage, and leave what they share alone
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for hosts
    while True:
        packet, files, _, _ = socket.recv_fds(control, PACKET, 2)
        if not packet:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            control.close()
            become_host(json.loads(packet)["environment"], files[1])
            return socket.socket(fileno=files[0])
        for file in files:
            os.close(file)
        control.send(str(pid).encode())


def load_kernels() -> None:
    """Load the code of lookup, which each engine would do anew; no threads start."""
    import torch

    from specplug.lookup.steps import LookupSteps

    for trees in (False, True):
        LookupSteps(1, 64, 4, 256, torch.device("cpu"), trees=trees).warm_up()


def become_host(environment: dict[str, str], log: int) -> None:
    """Turn a fresh fork into a process of its own: session, environment, log."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    die_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    sys.path += [folder for folder in environment["PYTHONPATH"].split(os.pathsep) if folder not in sys.path]
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if signatures.COLD in os.environ:
        signatures.forget()


def die_with_parent(how: int = signal.SIGTERM) -> None:
    """Let the kernel end this process when its parent is gone, however that ended (Linux)."""
    ctypes.CDLL(None).prctl(1, how)  # PR_SET_PDEATHSIG


def serve(channel: socket.socket, build: Callable[[dict[str, Any]], Any]) -> None:
    """Build the engine and answer calls until the other side hangs up."""
    lines = channel.makefile("r", encoding="utf-8")

    def answer(action: Callable[[], Any]) -> None:
        channel.sendall((json.dumps(message_of(action)) + "\n").encode())

    held: list[Any] = []
    arguments = json.loads(lines.readline())
    answer(lambda: held.append(build(arguments)))
    for line in lines:
        call = json.loads(line)
        answer(lambda call=call: find(call["function"])(held[0], **call["arguments"]))


def message_of(action: Callable[[], Any]) -> dict[str, Any]:
    """Return the result of an action, which has to be JSON, or the message of the exception that it raised."""
    try:
        message = {"result": action()}
        json.dumps(message)
        return message
    except RaisingReported as error:
        return {"raised": error.args[0]}
    except BaseException as error:
        return {"raised": {"type": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}}


def find(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found
