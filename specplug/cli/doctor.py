"""`specplug doctor` command: runs the registered checks and shows the settings in effect, or checks a pairing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from specplug.cli.launch import Raw, read_text
from specplug.cli.output import AsJson, console, show, table
from specplug.errors import SettingsError, describe
from specplug.plugins.registry import PluginEntry, Registry, default_registry
from specplug.plugins.specs import CheckResult, CheckSpec
from specplug.settings import ResolvedSettings, Settings, leaves, load_settings
from specplug.settings.mistakes import flatten

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
"""The colour of each status."""


class CheckReport(NamedTuple):
    """One result, with the check and package that produced it."""

    check: str
    owner: str
    result: CheckResult

    def as_dict(self) -> dict[str, Any]:
        """Return the result ready for JSON."""
        return {"check": self.check, "owner": self.owner, **asdict(self.result)}


def doctor(
    launch: Annotated[
        str, typer.Option(metavar="LINE", help="An engine's launch line, for the checks that examine one.")
    ] = "",
    target: Annotated[
        str | None, typer.Option(metavar="MODEL", help="With --draft, check the pairing of two models, nothing else.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The draft model: a folder, a model id, or a shipped one.")
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A prompt for a quick run of the pairing; repeat.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts for the quick run, one per line.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens per answer of the run.")] = 64,
    raw: Raw = False,
    gamma: Annotated[int, typer.Option(min=1, max=64, help="Draft tokens per step of the run.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Check this machine, the plug-ins and the settings, and name a remedy for every problem.

    Runs every check that the installed packages registered, then shows the settings in effect and the origin of each
    value: the default or SPECPLUG_CONFIG. The exit code is 1 if a check fails. Settings inside a launch line are shown
    by the check that examines it.

    With --target and --draft, checks instead whether the two models make a pair for the proposer `crosstok`:
    tokenizers, kinds, maximum lengths, sizes and memory, without loading weights.  With prompts it also generates a few
    tokens, without and with speculation, and predicts the speed-up.

    Example: `SPECPLUG_CONFIG=server.toml specplug doctor`

    Example: `specplug doctor --target ./8B --draft ./1B --prompts prompts.txt`
    """
    values = None
    if target or draft or prompt or prompts:
        target, draft = _two_models(target, draft, launch)
        texts = [*(prompt or []), *([] if prompts is None else _lines(prompts))]
        from specplug.cli.pairing import check_pairing

        with console(stderr=True).status("reading the configurations") as status:
            run = check_pairing(target, draft, texts, status.update, raw=raw, max_tokens=max_tokens, gamma=gamma)
            found = list(run)
        title, about = f"Pairing of {target} and {draft}", {"target": target, "draft": draft}
    else:
        found, values = _check_machine(launch)
        title, about = "Checks", {}
    failed = any(result.status == "fail" for *_, result in found)
    rows = [(check, Text(r.status, style=COLOURS[r.status]), r.summary, r.remedy) for check, _, r in found]
    tables = [table(title, ("check", "status", "found", "remedy"), rows)]
    if values:
        cells = [(v["key"], json.dumps(v["value"], default=str), v["origin"], v["description"]) for v in values]
        tables.append(table("Settings", ("setting", "value", "from", "meaning"), cells))
    shown = {} if values is None else {"settings": values}
    show({"ok": not failed, **about, "checks": [each.as_dict() for each in found], **shown}, *tables, as_json=as_json)
    if failed:
        raise typer.Exit(1)


def _two_models(target: str | None, draft: str | None, launch: str) -> tuple[str, str]:
    """Return the two models of a pairing."""
    if not target or not draft:
        raise SettingsError.build(
            "a pairing needs two models",
            who="specplug doctor",
            found="only --target" if target else "only --draft" if draft else "only prompts",
            expected="--target and --draft",
            remedy="Give both, or neither and no prompts to check this machine",
        )
    if launch:
        remedy = "Check it on its own: specplug doctor --launch LINE"
        raise SettingsError.build("a launch line is no part of a pairing", who="--launch", remedy=remedy)
    return target, draft


def _lines(file: Path) -> list[str]:
    """Return the lines of a file that are not blank."""
    found = [line for line in read_text(file, f"--prompts {file}").splitlines() if line.strip()]
    if not found:
        raise SettingsError.build("no prompts", who=f"--prompts {file}", expected="one prompt per line")
    return found


def _check_machine(launch: str) -> tuple[list[CheckReport], list[dict[str, Any]]]:
    """Return the results of all checks, and the settings in effect; none if they are wrong.

    The other checks then run with the defaults.
    """
    registry = default_registry()
    settings, values = Settings(), []
    try:
        resolved = load_settings(registry=registry, engine_drafts=True)  # a server decides whether its engine drafts
        settings, values = resolved.settings, _values(resolved)
        first = CheckResult("ok", "every setting is known and in range")
    except SettingsError as error:
        first = CheckResult("fail", str(error), "Correct what the message names")
    found = [CheckReport("settings", "specplug", first)]
    with console(stderr=True).status("checking") as status:  # on a terminal; some checks import an engine
        for entry in registry.entries(CheckSpec).values():
            status.update(f"checking: {entry.spec.name}")
            found += _run_check(entry, settings, launch)
    return found + _unknown_launch(registry, found, launch), values


def _run_check(entry: PluginEntry, settings: Settings, launch: str) -> list[CheckReport]:
    """Run one check; a check that raises, or returns anything but results, counts as failed."""
    owner = str(entry.owner)
    try:
        assert isinstance(entry.spec, CheckSpec)
        found = entry.spec.build(settings, launch=launch) if entry.spec.takes_launch else entry.spec.build(settings)
        results = found if isinstance(found, list) else [found]
        for result in results:
            if not isinstance(result, CheckResult) or result.status not in COLOURS:
                raise TypeError(f"found {result!r}; expected a CheckResult of status ok, warn or fail")
    except Exception as error:  # a broken check must not hide what the others found
        results = [CheckResult("fail", f"the check itself failed: {describe(error)}", f"Report this to {owner}")]
    return [CheckReport(entry.spec.name, owner, result) for result in results]


def _unknown_launch(registry: Registry, found: Sequence[CheckReport], launch: str) -> list[CheckReport]:
    """Return a failure if a launch line is given that no check recognises."""
    entries = registry.entries(CheckSpec).values()
    looking = [entry.spec.name for entry in entries if entry.spec.takes_launch]  # type: ignore[attr-defined]
    if not launch or any(each.check in looking for each in found):
        return []
    summary = f"no check knows the launch line {launch!r}; those that look at one: {', '.join(looking) or 'none'}"
    remedy = "Give an engine's own command, as it is typed into a shell"
    return [CheckReport("launch", "specplug", CheckResult("fail", summary, remedy))]


def _values(resolved: ResolvedSettings) -> list[dict[str, Any]]:
    """Return each setting in effect, its origin and meaning; plug-in options have the description of `options`."""
    meanings = {leaf.key: leaf.description for leaf in leaves()}
    found = [(key, value, resolved.origins[key]) for key, value in flatten(resolved.settings.model_dump())]
    return [
        {"key": key, "value": value, "origin": origin, "description": meanings.get(key, meanings["options"])}
        for key, value, origin in found
    ]
