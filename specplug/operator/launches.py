"""Launches of servers: advice on them, and launch lines, which the engine itself resolves in a separate process.

An engine fills in unset options by device and model, so only the engine can tell what a line amounts to.  A server logs
the same advice at start-up that ``specplug doctor`` prints.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any

from specplug.errors import EngineError, SpecplugError, describe
from specplug.plugins.registry import Registry
from specplug.plugins.specs import CheckResult, ProposerSpec
from specplug.settings.model import Settings

MARK = "specplug-launch:"
PATIENCE = 300.0
"""Timeout in seconds; importing an engine takes most of it."""

ENGINE_DRAFTS = "specplug's policy chooses how many tokens it drafts and the target verifies"

_WHO = "--launch"
_log = logging.getLogger("specplug")


@dataclass(frozen=True, slots=True)
class Launch:
    """What the launch of a server with specplug amounts to.

    Attributes:
        line: the start-up line of its log.
        settings: specplug's settings that differ from their defaults.
        advice: remarks for the operator, warnings included.
    """

    line: str
    settings: dict[str, Any]
    advice: tuple[CheckResult, ...]

    def announce(self) -> None:
        """Log the start-up line and the warnings, each once per process."""
        _log_once(logging.INFO, self.line)
        for result in self.advice:
            if result.status != "ok":
                _log_once(logging.WARNING, f"{result.summary}. {result.remedy}")

    def results(self) -> list[CheckResult]:
        """Return the settings and the advice as ``specplug doctor`` prints them."""
        described = ", ".join(f"{key}: {value}" for key, value in self.settings.items()) or "all at their defaults"
        return [CheckResult("ok", f"settings of the launch: {described}"), *self.advice]

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Launch:
        """Rebuild a launch from its JSON form."""
        return cls(plain["line"], plain["settings"], tuple(CheckResult(**result) for result in plain["advice"]))


@functools.cache
def _log_once(level: int, text: str) -> None:
    _log.log(level, "%s", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """The command lines that start an engine's server.

    Attributes:
        engine, package: the engine's name, and that of its package and command.
        module: the adapter's module that calls `tell`.
        arguments_in: returns the server's arguments in the words of a line; None if they start no server.
        expected: such a line, for messages.
        enabling: the flag that enables specplug.
        variables: further environment variables of the process that resolves a line.
    """

    engine: str
    package: str
    module: str
    arguments_in: Callable[[list[str]], list[str] | None]
    expected: str
    enabling: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def ask(self, line: str, patience: float = PATIENCE) -> Launch | None:
        """Return what a shell command amounts to, as told by `tell` in a process of its own.

        None: it does not enable specplug.

        Raises:
            EngineError: the line starts no such server, or the engine does not accept it within `patience` seconds.
        """
        variables, words = split(line)
        arguments = self.arguments_in(words)
        if arguments is None:
            raise EngineError.build("not a launch line", who=_WHO, found=repr(line), expected=self.expected)
        command = [sys.executable, "-m", self.module, json.dumps(arguments)]
        given = {**os.environ, **self.variables, **variables}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=given)
        except subprocess.TimeoutExpired as error:
            found = f"{patience:g} s of silence"
            raise EngineError.build(f"{self.engine} gave no answer", who=_WHO, found=found) from error
        answers = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        answer = json.loads(answers[-1]) if answers else last
        if isinstance(answer, str):
            raise EngineError.build(f"{self.engine} does not accept the line", who=_WHO, found=answer)
        return None if answer is None else Launch.from_plain(answer)

    def check(self, line: str, *, is_installed: bool, remedy: str, in_general: Sequence[str]) -> list[CheckResult]:
        """Report on the server that a line would start; return nothing for another engine's line.

        Without a line, return what holds `in_general`.  `remedy`: what to do if the engine is not installed.
        """
        if line and not names_engine(line, self.package):
            return []
        if not is_installed:
            missing = f"this line starts {self.engine}, which is not installed"
            return [CheckResult("fail", missing, remedy)] if line else []
        if not line:
            example = f"specplug doctor --launch '{self.package} serve MODEL ...'"
            hint = f"no launch line given; {example} checks one. In general:"
            return [CheckResult("ok", text) for text in (hint, *in_general)]
        try:
            found = self.ask(line)
        except EngineError as error:
            return [CheckResult("fail", str(error), "Correct what the message names")]
        if found is None:
            return [CheckResult("warn", "the launch line does not enable specplug", f"Add {self.enabling}")]
        return found.results()


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


def tell(found: Callable[[list[str]], Launch | None], arguments: str) -> None:
    """Print the result for arguments given as JSON, or why there is none; the counterpart of `ServerCommand.ask`."""
    answer: object
    try:
        launch = found(json.loads(arguments))
        answer = None if launch is None else asdict(launch)
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
    """Return the loaded proposers whose drafts a step waits for, made on the host; `device` is a type."""
    known = registry.entries(ProposerSpec)
    names = [name for name in (settings.proposer, *settings.extra_proposers) if name in known]
    caps = {name: registry.get(ProposerSpec, name).caps_for(device) for name in names}
    return tuple(name for name in names if caps[name].needs_host)


def continuation(lookup: Settings, tokens: int) -> str:
    """Describe a lookup after the engine's own drafter, which drafts `tokens`; see `after_engine`."""
    return (
        f"{lookup.proposer} continues the drafts of the engine's own drafter: of at most "
        f"{lookup.num_speculative_tokens} draft tokens the first {tokens} are the drafter's, unless lookup's are "
        "likelier to be accepted; the drafter runs in every step, so that its cache stays in step"
    )


def host_cost(names: Sequence[str], where: str) -> str:
    """Describe what `awaited_proposers` cost, `where` a step waits for them."""
    several = "draft" if len(names) > 1 else "drafts"
    waits = "every step then waits once for the device's new tokens"
    return f"{', '.join(names)} {several} on the host, on a thread: {where} {waits}"


def lossy_acceptance(by: str, consequence: str) -> CheckResult:
    """Warn of an engine's lossy verification: what enables it, and the rest of a sentence on what follows."""
    return CheckResult("warn", f"LOSSY by {by}: {consequence}", "Leave it out to serve every request losslessly")
