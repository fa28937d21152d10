"""The process that holds one `LLM` and runs on it the functions that tests name.

It is forked from a nursery, a process that has imported vLLM and does nothing else: importing takes most of an engine's
start.

    python -m tests.engines.vllm.host FD

FD is the nursery's socket: each packet on it, {"environment": {...}} with two open files, a channel and a log, is
answered by the process id of a new host.  The first line on the channel holds the arguments of `LLM(...)`; each further
one a call.  Answers are lines too: {"result": ...} or {"raised": {"type", "text", "trace"}}.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

PACKET = 1 << 18


def main() -> None:
    """Be a nursery; in each child, a host."""
    given = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(given.fileno(), False)
    serve(given if given.type == socket.SOCK_STREAM else nurse(given))


def nurse(control: socket.socket) -> socket.socket:
    """Fork hosts until the other side hangs up; return, in the child alone, the channel of a new host."""
    for module in ("vllm", "vllm.entrypoints.llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"):
        importlib.import_module(module)
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


def become_host(environment: dict[str, str], log: int) -> None:
    """Turn a fresh fork into a process of its own: session, environment, log."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    die_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def die_with_parent() -> None:
    """Let the kernel end this process when its parent is gone, however that ended (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def serve(channel: socket.socket) -> None:
    """Build the engine and answer calls until the other side hangs up."""
    lines = channel.makefile("r", encoding="utf-8")

    def answer(action: Callable[[], Any]) -> Any:
        result, message = None, {}
        try:
            result = action()
            message = {"result": result if plain(result) else None}
        except BaseException as error:
            message = {
                "raised": {"type": type(error).__name__, "text": str(error), "trace": traceback.format_exc()},
            }
        channel.sendall((json.dumps(message) + "\n").encode())
        return result

    arguments = json.loads(lines.readline())
    llm = answer(lambda: build(arguments))
    for line in lines:
        call = json.loads(line)
        answer(lambda call=call: find(call["function"])(llm, **call["arguments"]))


def plain(value: Any) -> bool:
    """Whether a value is JSON; an answer that is not fails as loudly as an exception, apart from the engine itself."""
    if type(value).__name__ == "LLM":
        return False
    json.dumps(value)
    return True


def build(arguments: dict[str, Any]) -> Any:
    from vllm import LLM

    return LLM(disable_log_stats=False, **arguments)


def find(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found


if __name__ == "__main__":
    main()
