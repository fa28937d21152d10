"""Resolution of a launch line by SGLang itself, without starting an engine.

SGLang derives omitted arguments from device and model.  It runs in a separate process:
``python -m specplug_sglang.doctor.launch ARGUMENTS``.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from specplug.errors import EngineError, describe
from specplug.operator import launches
from specplug_sglang import seams
from specplug_sglang.config import ALGORITHM, is_requested
from specplug_sglang.startup.advice import Launch, launch_of

MODULE = "sglang.launch_server"
EXPECTED = f"'python -m {MODULE} --model-path MODEL ...' or 'sglang serve MODEL ...'"


def is_mine(line: str) -> bool:
    """Return whether a launch line starts SGLang."""
    return launches.names_engine(line, "sglang")


def ask(line: str, patience: float = launches.PATIENCE) -> Launch | None:
    """Return the resolved launch of a line; None if the line does not enable specplug.

    Args:
        line: a shell command, optionally with variables set before it.
        patience: timeout in seconds.

    Raises:
        EngineError: the line starts no SGLang server, or SGLang does not accept it.
    """
    variables, words = launches.split(line)
    arguments = arguments_in(words)
    if arguments is None:
        raise EngineError.build("not a launch line", who="--launch", found=repr(line), expected=EXPECTED)
    found = launches.ask(__spec__.name, arguments, variables, engine="SGLang", patience=patience)
    return None if found is None else Launch.from_plain(found)


def arguments_in(words: list[str]) -> list[str] | None:
    """Return the server's arguments in a line's words, with the model as a flag; None if they start no server."""
    for place, word in enumerate(words):
        if word == MODULE:
            return words[place + 1 :]
        if word == "serve" and place and PurePath(words[place - 1]).name == "sglang":
            arguments = words[place + 1 :]
            if "--model-type" in arguments:  # a flag of the command, not of the server
                at = arguments.index("--model-type")
                del arguments[at : at + 2]
            arguments = [each for each in arguments if not each.startswith("--model-type=")]
            is_flag = not arguments or arguments[0].startswith("-")
            return arguments if is_flag else ["--model-path", *arguments]
    return None


def _resolved(arguments: list[str]) -> dict[str, Any] | None:
    """Parse and resolve a server's arguments with SGLang's own code."""
    try:
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import prepare_server_args
    except ImportError as error:
        raise EngineError.build(
            "SGLang does not import on this machine",
            who="specplug_sglang",
            found=describe(error),
            remedy="Run specplug doctor on the machine that will serve, in SGLang's environment",
        ) from error
    seams.require("cli")
    load_plugins()
    server_args = prepare_server_args(arguments)
    if not is_requested(server_args):
        return None
    _require_loaded()
    server_args.resolve_once()
    return asdict(launch_of(server_args))


def _require_loaded() -> None:
    """Refuse a line that keeps SGLang from loading specplug.

    Raises:
        EngineError: SGLang did not load specplug.
    """
    from sglang.srt.speculative.spec_registry import get_spec

    if get_spec(ALGORITHM) is None:
        raise EngineError.build(
            "SGLang does not load specplug, which --speculative-algorithm names",
            who="specplug_sglang",
            found=f"SGLANG_PLUGINS={os.environ.get('SGLANG_PLUGINS')!r}",
            expected="'specplug' in it, or no such variable",
            remedy="Add 'specplug' to it, or unset it; if it is not set, reinstall specplug in SGLang's environment",
        )


if __name__ == "__main__":
    launches.tell(_resolved, sys.argv[1])
