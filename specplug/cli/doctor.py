"""`specplug doctor` command: runs the registered checks and shows the settings in effect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from specplug.cli.chat import Raw
from specplug.cli.output import AsJson, console, print_json, print_table
from specplug.errors import SettingsError, describe
from specplug.plugins.registry import PluginEntry, Registry, default_registry
from specplug.plugins.specs import CheckResult, CheckSpec
from specplug.settings import ResolvedSettings, Settings, leaves, load_settings
from specplug.settings.mistakes import flatten

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
"""The colour of each status."""

Launch = Annotated[
    str, typer.Option("--launch", metavar="LINE", help="An engine's launch line, for the checks that examine one.")
]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="MODEL", help="With --draft, check the pairing of two models and nothing else."),
]
DraftModelName = Annotated[
    str | None,
    typer.Option("--draft", metavar="MODEL", help="The draft model: a folder, a model id, or a shipped one."),
]
Prompt = Annotated[
    list[str] | None, typer.Option("--prompt", metavar="TEXT", help="A prompt for a quick run of the pairing; repeat.")
]
Prompts = Annotated[
    Path | None, typer.Option("--prompts", metavar="FILE", help="Prompts for the quick run, one per line.")
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result, with the check and package that produced it."""

    check: str
    owner: str
    status: str
    summary: str
    remedy: str


def doctor(
    launch: Launch = "",
    target: Target = None,
    draft: DraftModelName = None,
    prompt: Prompt = None,
    prompts: Prompts = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens per answer of the run.")] = 64,
    raw: Raw = False,
    gamma: Annotated[int, typer.Option("--gamma", min=1, max=64, help="Draft tokens per step of the run.")] = 8,
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
    if target or draft or prompt or prompts:
        target, draft = _two_models(target, draft, launch)
        texts = [*(prompt or []), *([] if prompts is None else _lines(prompts))]
        from specplug.cli.pairing import check_pairing

        with console(stderr=True).status("reading the configurations") as status:
            run = check_pairing(target, draft, texts, status.update, raw=raw, max_tokens=max_tokens, gamma=gamma)
            pairing = list(run)
        about = {"target": target, "draft": draft}
        _report(f"Pairing of {target} and {draft}", pairing, about, None, as_json=as_json)
        return
    registry = default_registry()
    resolved, findings = _settings(registry)
    settings = Settings() if resolved is None else resolved.settings
    with console(stderr=True).status("checking") as status:  # on a terminal; some checks import an engine
        for entry in registry.entries(CheckSpec).values():
            status.update(f"checking: {entry.spec.name}")
            findings += run_check(entry, settings, launch)
    findings += _unknown_launch(registry, findings, launch)
    values = [] if resolved is None else _values(resolved)
    _report("Checks", findings, {}, values, as_json=as_json)


def _report(
    title: str,
    findings: Sequence[Finding],
    about: dict[str, str],
    values: list[dict[str, Any]] | None,
    *,
    as_json: bool,
) -> None:
    """Print results, and settings unless they are None; exit with 1 if a check failed."""
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        shown = {} if values is None else {"settings": values}
        print_json({"ok": not failed, **about, "checks": [asdict(finding) for finding in findings], **shown})
    else:
        columns = ("check", "status", "found", "remedy")
        found = ((f.check, Text(f.status, style=COLOURS[f.status]), f.summary, f.remedy) for f in findings)
        print_table(title, columns, found)
    if values and not as_json:
        rows = ((v["key"], json.dumps(v["value"], default=str), v["origin"], v["description"]) for v in values)
        print_table("Settings", ("setting", "value", "from", "meaning"), rows)
    if failed:
        raise typer.Exit(1)


def _two_models(target: str | None, draft: str | None, launch: str) -> tuple[str, str]:
    """Return the two models of a pairing.

    Raises:
        SettingsError: one of the two is missing, or there is a launch line, which belongs to the other checks.
    """
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
    """Return the lines of a file that are not blank.

    Raises:
        SettingsError: it cannot be read, or has none.
    """
    try:
        found = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError.build("cannot read the prompts", who=f"--prompts {file}", found=error) from error
    if not found:
        raise SettingsError.build("no prompts", who=f"--prompts {file}", expected="one prompt per line")
    return found


def run_check(entry: PluginEntry, settings: Settings, launch: str = "") -> list[Finding]:
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
        summary = f"the check itself failed: {describe(error)}"
        results = [CheckResult("fail", summary, f"Report this to {owner}")]
    return [Finding(entry.spec.name, owner, r.status, r.summary, r.remedy) for r in results]


def _unknown_launch(registry: Registry, findings: list[Finding], launch: str) -> list[Finding]:
    """Return a failure if a launch line is given that no check recognises."""
    entries = registry.entries(CheckSpec).values()
    looking = [entry.spec.name for entry in entries if entry.spec.takes_launch]  # type: ignore[attr-defined]
    if not launch or any(finding.check in looking for finding in findings):
        return []
    summary = f"no check knows the launch line {launch!r}; those that look at one: {', '.join(looking) or 'none'}"
    return [Finding("launch", "specplug", "fail", summary, "Give an engine's own command, as it is typed into a shell")]


def _settings(registry: Registry) -> tuple[ResolvedSettings | None, list[Finding]]:
    """Resolve the settings; if they are wrong, the other checks run with the defaults."""
    try:
        resolved = load_settings(registry=registry, engine_drafts=True)  # a server decides whether its engine drafts
    except SettingsError as error:
        return None, [Finding("settings", "specplug", "fail", str(error), "Correct what the message names")]
    return resolved, [Finding("settings", "specplug", "ok", "every setting is known and in range", "")]


def _values(resolved: ResolvedSettings) -> list[dict[str, Any]]:
    """Return each setting in effect, its origin and meaning; plug-in options have the description of `options`."""
    meanings = {leaf.key: leaf.description for leaf in leaves()}
    return [
        {
            "key": key,
            "value": value,
            "origin": resolved.origins[key],
            "description": meanings.get(key, meanings["options"]),
        }
        for key, value in flatten(resolved.settings.model_dump())
    ]
