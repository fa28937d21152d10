"""Launch lines of engines, split as a shell does and resolved by the engine itself in a separate process.

An engine fills in unset options by device and model, so only the engine can tell what a line amounts to.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from specplug.errors import EngineError, SpecplugError, describe
from specplug.plugins.registry import Registry
from specplug.plugins.specs import ProposerSpec
from specplug.settings.model import Settings

MARK = "specplug-launch:"
PATIENCE = 300.0
"""Timeout in seconds; importing an engine takes most of it."""

_WHO = "--launch"


def split(line: str) -> tuple[dict[str, str], list[str]]:
    """Split a line into the variables set before the command, with or without `env`, and its words.

    Raises:
        EngineError: a quote is not closed.
    """
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise EngineError.build("not a launch line", who=_WHO, found=str(error)) from error
    variables: dict[str, str] = {}
    if words and PurePath(words[0]).name == "env":
        del words[0]
    while words and (match := re.fullmatch(r"(\w+)=(.*)", words[0], flags=re.DOTALL)):
        variables[match[1]] = match[2]
        del words[0]
    return variables, words


def names_engine(line: str, package: str) -> bool:
    """Return whether a line runs an engine: its command with a subcommand, or a module of it with ``python -m``."""
    try:
        _, words = split(line)
    except EngineError:
        words = line.split()
    for word, after in itertools.pairwise([*words, ""]):
        if PurePath(word).name == package and after and not after.startswith("-"):
            return True
        if word == "-m" and after.partition(".")[0] == package:
            return True
    return False


def ask(
    module: str, arguments: Sequence[str], variables: Mapping[str, str], *, engine: str, patience: float = PATIENCE
) -> Any:
    """Run ``python -m module ARGUMENTS`` in a separate process and return its answer; see `tell`.

    Args:
        module: the adapter's module that calls `tell`.
        arguments: the engine's arguments, passed as JSON.
        variables: environment variables to add to this process's own.
        engine: the engine's name, for messages.
        patience: timeout in seconds.

    Raises:
        EngineError: the engine does not accept the arguments, or does not answer.
    """
    command = [sys.executable, "-m", module, json.dumps(list(arguments))]
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=environment)
    except subprocess.TimeoutExpired as error:
        raise EngineError.build(f"{engine} gave no answer", who=_WHO, found=f"{patience:g} s of silence") from error
    return answer_of(done, engine)


def answer_of(done: subprocess.CompletedProcess[str], engine: str) -> Any:
    """Return the answer of the finished process.

    Raises:
        EngineError: the engine does not accept the line.
    """
    answers = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    what = f"{engine} does not accept the line"
    if not answers:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EngineError.build(what, who=_WHO, found=last)
    answer = json.loads(answers[-1])
    if isinstance(answer, str):
        raise EngineError.build(what, who=_WHO, found=answer)
    return answer


def tell(found: Callable[[list[str]], dict[str, Any] | None], arguments: str) -> None:
    """Print the result for arguments given as JSON, or the reason why there is none; the counterpart of `ask`."""
    answer: object
    try:
        answer = found(json.loads(arguments))
    except SystemExit as error:  # the engine's parser has printed the mistake last on standard error
        if error.code:
            raise
        answer = "the line asks for help only"
    except SpecplugError as error:
        answer = str(error)
    except Exception as error:
        answer = describe(error)
    print(f"\n{MARK}{json.dumps(answer)}", flush=True)


def differing(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    defaults = Settings().model_dump(mode="json")
    return {key: value for key, value in settings.model_dump(mode="json").items() if value != defaults[key]}


def awaited_proposers(settings: Settings, registry: Registry, device: str) -> tuple[str, ...]:
    """Return the loaded proposers whose drafts a step waits for, because they are made on the host.

    Nothing waits for a single proposer with a host step; see `specplug.runtime.stream_steps`.

    Args:
        settings: the server's.
        registry: the registered proposers.
        device: the type of the batches' device.
    """
    known = registry.entries(ProposerSpec)
    names = [name for name in (settings.proposer, *settings.extra_proposers) if name in known]
    caps = {name: registry.get(ProposerSpec, name).caps_for(device) for name in names}
    if len(names) == 1 and all(it.host_step for it in caps.values()):
        return ()
    return tuple(name for name in names if caps[name].needs_host)
