"""What vLLM makes of a launch line, found out by vLLM itself without starting an engine.

vLLM fills in what the line leaves open by device and model, so nobody else can say which runner serves or how many
tokens a step may hold.  It is asked in a process of its own: ``python -m specplug_vllm.launch LINE``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict

from specplug.errors import EngineError
from specplug_vllm import seams
from specplug_vllm.advice import Launch, launch_of

MARK = "specplug-launch:"
PATIENCE = 300.0
"""Seconds: importing vLLM takes most of it."""


def ask(line: str, patience: float = PATIENCE) -> Launch | None:
    """Return what a launch line comes to; None when it does not ask for specplug.

    Args:
        line: as it is typed into a shell: ``vllm serve MODEL --flag value ...``, with variables set in front of it.

    Raises:
        EngineError: it is no such line, or vLLM does not accept it.
    """
    variables, arguments = _parsed(line)
    command = [sys.executable, "-m", __spec__.name, json.dumps(arguments)]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", **variables}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=environment)
    except subprocess.TimeoutExpired as error:
        raise EngineError.build("vLLM gave no answer", who="--launch", found=f"{patience:g} s of silence") from error
    return read(done)


def read(done: subprocess.CompletedProcess[str]) -> Launch | None:
    """Return what the other process has found out.

    Raises:
        EngineError: vLLM does not accept the line.
    """
    told = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not told:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EngineError.build("vLLM does not accept the line", who="--launch", found=last)
    answer = json.loads(told[-1])
    if isinstance(answer, str):
        raise EngineError.build("vLLM does not accept the line", who="--launch", found=answer)
    return None if answer is None else Launch(**{**answer, "host_proposers": tuple(answer["host_proposers"])})


def _parsed(line: str) -> tuple[dict[str, str], list[str]]:
    """Split a line into variables and the engine's arguments, the model as a flag."""
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise EngineError.build("not a launch line", who="--launch", found=str(error)) from error
    variables: dict[str, str] = {}
    while words and (match := re.fullmatch(r"(\w+)=(.*)", words[0], flags=re.DOTALL)):
        variables[match[1]] = match[2]
        del words[0]
    if "serve" not in words:
        raise EngineError.build(
            "not a launch line", who="--launch", found=repr(line), expected="'vllm serve MODEL ...'"
        )
    arguments = words[words.index("serve") + 1 :]
    if arguments and not arguments[0].startswith("-"):
        arguments.insert(0, "--model")
    return variables, arguments


def _main(arguments: list[str]) -> None:
    """Print what came of the arguments: an object, null when they do not ask for specplug, a string when they fail."""
    answer: object
    try:
        answer = _configured(arguments)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(MARK + json.dumps(answer), flush=True)


def _configured(arguments: list[str]) -> dict[str, object] | None:
    """Let vLLM configure an engine."""
    seams.require("cli")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from specplug_vllm.asked import is_asked

    load_general_plugins()
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed, _ = parser.parse_known_args(arguments)  # flags of the HTTP server are left over
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    return asdict(launch_of(config)) if is_asked(config) else None


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
