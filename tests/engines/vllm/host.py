"""A process that holds one `LLM` and runs on it the functions that tests name.

    python -m tests.engines.vllm.host FD

FD is a socket.  The first line that arrives holds the arguments of `LLM(...)`; each further one a call.  Answers are
lines too: {"result": ...} or {"raised": {"type", "text", "trace"}}.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(channel.fileno(), False)
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
