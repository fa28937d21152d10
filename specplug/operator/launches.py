"""Launches of servers: advice on them, and launch lines, which the engine's own code resolves without starting.

An engine fills in unset options by device and model, so only the engine can tell what a line amounts to.  A server logs
the same line and advice at start-up that ``specplug doctor`` prints.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from specplug.errors import EngineError, SpecplugError, describe, own_error
from specplug.operator.contained import isolated_process, logged_messages
from specplug.plugins.registry import Registry
from specplug.plugins.specs import CheckResult, ProposerSpec
from specplug.settings.checks import proposers_of
from specplug.settings.model import Settings

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
        for text in self.warning_messages:
            _log_once(logging.WARNING, text)

    @property
    def warning_messages(self) -> list[str]:
        """The warnings as they are logged."""
        return [f"{result.summary}. {result.remedy}" for result in self.advice if result.status != "ok"]

    def results(self) -> list[CheckResult]:
        """Return the line, the settings and the advice as ``specplug doctor`` prints them."""
        described = ", ".join(f"{key}: {value}" for key, value in self.settings.items()) or "all at their defaults"
        settings = CheckResult("ok", f"settings of the launch: {described}")
        return [CheckResult("ok", self.line), settings, *self.advice]


@functools.cache
def _log_once(level: int, text: str) -> None:
    _log.log(level, "%s", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """The command lines that start an engine's server.

    Attributes:
        engine, package: the engine's name, and that of its package and command.
        resolved: resolves a server's arguments with the engine's code; None if they do not enable specplug.
        arguments_in: returns the server's arguments in the words of a line; None if they start no server.
        expected: such a line, for messages.
        enabling: the flag that enables specplug.
    """

    engine: str
    package: str
    resolved: Callable[[list[str]], Launch | None]
    arguments_in: Callable[[list[str]], list[str] | None]
    expected: str
    enabling: str

    def launch(self, line: str) -> Launch | None:
        """Return what a shell command amounts to, with what specplug would log meanwhile; None: without specplug.

        Raises:
            SpecplugError: the line starts no such server, or the server would refuse it with this message.
        """
        variables, words = split(line)
        arguments = self.arguments_in(words)
        if arguments is None:
            raise EngineError.build("not a launch line", who=_WHO, found=repr(line), expected=self.expected)
        with isolated_process(variables) as printed, logged_messages("specplug") as logged:
            try:
                found = self.resolved(arguments)
            except SystemExit as error:  # the engine's parser has printed the mistake last
                last = (printed.getvalue().strip().splitlines() or [f"exit code {error.code}"])[-1]
                raise self._refusal(last if error.code else "the line asks for help only") from None
            except Exception as error:
                raise own_error(error) or self._refusal(describe(error)) from error
        if found is None:
            return None
        more = [CheckResult("warn", text) for text in dict.fromkeys(logged) if text not in found.warning_messages]
        return replace(found, advice=(*found.advice, *more))

    def _refusal(self, found: str) -> SpecplugError:
        return EngineError.build(f"{self.engine} does not accept the line", who=_WHO, found=found)

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
            found = self.launch(line)
        except SpecplugError as error:
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


def corpora_advice(settings: Settings, registry: Registry) -> list[CheckResult]:
    """Warn if a proposer that drafts from corpora has none to draft from."""
    from specplug.corpus.store import STORE_FILE

    names = [spec.name for spec in proposers_of(settings, registry) if "corpora" in spec.sections]
    store = settings.corpora.store
    if not names or (store is not None and os.path.exists(Path(store) / STORE_FILE)):
        return []
    what = "the setting corpora.store names no corpus store" if store is None else f"{store}: no corpus store yet"
    remedy = f"`specplug corpus build {store or 'STORE'} FOLDER --tokenizer MODEL` makes one"
    return [CheckResult("warn", f"{what}, so {names[0]} drafts from no corpora", remedy)]


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
