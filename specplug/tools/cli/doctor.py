"""`specplug doctor` command: runs the registered checks and shows the settings in effect, or checks a pairing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from specplug.errors import SettingsError, describe
from specplug.input_errors import flatten, leaves
from specplug.operator.launches import continuation
from specplug.plugins.registry import PluginEntry, Registry, default_registry
from specplug.plugins.specs import CheckResult, CheckSpec
from specplug.settings import ResolvedSettings, Settings, load_settings
from specplug.settings.sources import DEFAULT_ORIGIN, after_engine
from specplug.tools.cli.launch import read_text
from specplug.tools.cli.options import Raw, option, with_groups
from specplug.tools.cli.output import AsJson, console, printable_text, remark_text, show, table

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
"""The colour of each status."""

LAUNCH = "The launch"
"""The title of checks of a launch line alone."""


class CheckReport(NamedTuple):
    """One result, with the check and package that produced it."""

    check: str
    owner: str
    result: CheckResult

    def as_dict(self) -> dict[str, Any]:
        """Return the result ready for JSON."""
        return {"check": self.check, "owner": self.owner, **asdict(self.result)}


@dataclass(frozen=True)
class Pair:
    """The pairing of two models, and a quick run of both."""

    target: str | None = option(None, "With --draft, check the pairing of two models, nothing else.", metavar="MODEL")
    draft: str | None = option(None, "The draft model: a folder, a model id, or a shipped one.", metavar="MODEL")
    prompt: list[str] | None = option(None, "A prompt for a quick run; repeat.", metavar="TEXT")
    prompts: Path | None = option(None, "Prompts for it, one per line.", metavar="FILE")
    max_tokens: int = option(64, "Most tokens per answer of the run.", min=1)
    raw: Raw = False
    gamma: int = option(8, "Draft tokens per step of the run.", min=1, max=64)

    @property
    def is_named(self) -> bool:
        """True if any option asks for a pairing."""
        return bool(self.target or self.draft or self.prompt or self.prompts)

    def models(self) -> tuple[str, str]:
        """Return the target and the draft model."""
        if self.target and self.draft:
            return self.target, self.draft
        found = "only --target" if self.target else "only --draft" if self.draft else "only prompts"
        expected = "--target and --draft"
        remedy = "Give both, or neither and no prompts to check this machine"
        what = "a pairing needs two models"
        raise SettingsError.build(what, who="specplug doctor", found=found, expected=expected, remedy=remedy)

    def check(self) -> list[CheckReport]:
        """Return the results of the checks of the pairing."""
        target, draft = self.models()
        texts = [*(self.prompt or []), *([] if self.prompts is None else _lines(self.prompts))]
        from specplug.tools.cli.pairing import check_pairing

        how: dict[str, Any] = {"raw": self.raw, "max_tokens": self.max_tokens, "gamma": self.gamma}
        with console(stderr=True).status("reading the configurations") as status:
            run = check_pairing(target, draft, texts, status.update, **how)
            return [CheckReport(name, "specplug", result) for name, result in run]


@with_groups
def doctor(
    launch: Annotated[str, typer.Option(metavar="LINE", help="Check an engine's launch line, and nothing else.")] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Check the machine too, and show settings that are at their defaults.")
    ] = False,
    *,
    pair: Pair,
    as_json: AsJson = False,
) -> None:
    """Check this machine, the plug-ins and the settings, and name a remedy for every problem.

    Runs every check that the installed packages registered, then shows the settings in effect and the origin of each
    value, SPECPLUG_CONFIG or, with --all, the default. The exit code is 1 if a check fails.

    With --launch, the engine resolves its configuration from the line, without starting, by the defaults of this
    machine's device; shown is the line that the server will log, what it will do, its warnings, or why it will not
    start. With --all the machine is checked, too.

    With --target and --draft, checks instead whether the two models make a pair for the proposer `crosstok`:
    tokenizers, kinds, maximum lengths, sizes and memory, without loading weights.  With prompts it also generates a few
    tokens, without and with speculation, and predicts the speed-up.

    Example: `SPECPLUG_CONFIG=server.toml specplug doctor`

    Example: `specplug doctor --launch "vllm serve ./8B --additional-config.specplug.proposer ngram"`

    Example: `specplug doctor --target ./8B --draft ./1B --prompts prompts.txt`
    """
    values: list[dict[str, Any]] | None = None
    about: dict[str, Any] = {}
    if pair.is_named:
        if launch:
            remedy = "Check it on its own: specplug doctor --launch LINE"
            raise SettingsError.build("a launch line is no part of a pairing", who="--launch", remedy=remedy)
        found = pair.check()
        about = {"target": pair.target, "draft": pair.draft}
        title = f"Pairing of {pair.target} and {pair.draft}"
    elif launch and not everything:
        found = _run_checks(Settings(), launch, launch_alone=True)
        title = LAUNCH
    else:
        found, values = _check_machine(launch)
        title = "Checks"
    failed = any(each.result.status == "fail" for each in found)
    data = {"ok": not failed, **about, "checks": [each.as_dict() for each in found]}
    if values is not None:
        data["settings"] = values
    rows = [(check, Text(r.status, style=COLOURS[r.status]), r.summary, r.remedy) for check, _, r in found]
    verdict = _verdict(found, launch_alone=title == LAUNCH)
    checks = table(title, ("check", "status", "found", "remedy"), rows)
    show(data, verdict, checks, *_settings(values, everything), as_json=as_json)
    if failed:
        raise typer.Exit(1)


def _verdict(found: Sequence[CheckReport], *, launch_alone: bool) -> Text:
    """Return what the results come to, in a line; for a launch line alone, the line that the server will log."""
    failed = [each.result.summary for each in found if each.result.status == "fail"]
    warnings = sum(each.result.status == "warn" for each in found)
    counted = f", with {warnings} warning{'s' * (warnings > 1)}" * bool(warnings)
    if failed:
        more = f". {len(failed) - 1} more failed" * bool(failed[1:])
        return Text(
            printable_text(f"{'The server does not start' if launch_alone else 'Failed'}: {failed[0]}{more}"), "red"
        )
    passed = f"The server starts{counted}: {found[0].result.summary}" if launch_alone else f"Nothing failed{counted}."
    return Text(printable_text(passed), COLOURS["warn" if warnings else "ok"])


def _settings(values: Sequence[Mapping[str, Any]] | None, everything: bool) -> Iterator[Table | Text]:
    """Yield the table of settings in effect, without those at their defaults unless `everything` is asked for."""
    if not values:
        return
    shown = [each for each in values if everything or each["origin"] != DEFAULT_ORIGIN]
    cells = [(v["key"], json.dumps(v["value"], default=str), v["origin"], v["description"]) for v in shown]
    if cells:
        yield table("Settings", ("setting", "value", "from", "meaning"), cells)
    if len(shown) < len(values):
        yield remark_text(f"{len(values) - len(shown)} settings are at their defaults; --all shows them.")


def _lines(file: Path) -> list[str]:
    found = [line for line in read_text(file, f"--prompts {file}").splitlines() if line.strip()]
    if not found:
        raise SettingsError.build("no prompts", who=f"--prompts {file}", expected="one prompt per line")
    return found


def _check_machine(launch: str) -> tuple[list[CheckReport], list[dict[str, Any]]]:
    """Return the results of all checks, and the settings in effect; none if they are wrong.

    The other checks then run with the defaults.
    """
    registry = default_registry()
    settings = Settings()
    values = []
    try:
        resolved = load_settings(registry=registry, engine_drafts=True)  # a server decides whether its engine drafts
        settings = resolved.settings
        values = _values(resolved)
        first = CheckResult("ok", "every setting is known and in range")
        if settings.extends_engine:
            lookup, tokens = after_engine(resolved, registry)
            first = CheckResult("ok", continuation(lookup.settings, tokens))
    except SettingsError as error:
        first = CheckResult("fail", str(error), "Correct what the message names")
    return [CheckReport("settings", "specplug", first), *_run_checks(settings, launch)], values


def _run_checks(settings: Settings, launch: str, *, launch_alone: bool = False) -> list[CheckReport]:
    """Return the results of all checks, or of those alone that look at the launch line."""
    registry = default_registry()
    found: list[CheckReport] = []
    with console(stderr=True).status("checking") as status:  # on a terminal; some checks import an engine
        for entry in registry.entries(CheckSpec).values():
            if _takes_launch(entry) or not launch_alone:
                status.update(f"checking: {entry.spec.name}")
                found += _run_check(entry, settings, launch)
    return found + _unknown_launch(registry, found, launch)


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


def _takes_launch(entry: PluginEntry) -> bool:
    return isinstance(entry.spec, CheckSpec) and entry.spec.takes_launch


def _unknown_launch(registry: Registry, found: Sequence[CheckReport], launch: str) -> list[CheckReport]:
    """Return a failure if a launch line is given that no check recognises."""
    entries = registry.entries(CheckSpec).values()
    looking = [entry.spec.name for entry in entries if _takes_launch(entry)]
    if not launch or any(each.check in looking for each in found):
        return []
    summary = f"no check knows the launch line {launch!r}; those that look at one: {', '.join(looking) or 'none'}"
    remedy = "Give an engine's own command, as it is typed into a shell"
    return [CheckReport("launch", "specplug", CheckResult("fail", summary, remedy))]


def _values(resolved: ResolvedSettings) -> list[dict[str, Any]]:
    """Return each setting in effect, its origin and meaning; plug-in options have the description of `options`."""
    meanings = {leaf.key: leaf.description for leaf in leaves(Settings)}
    found = [(key, value, resolved.origins[key]) for key, value in flatten(resolved.settings.model_dump())]
    return [
        {"key": key, "value": value, "origin": origin, "description": meanings.get(key, meanings["options"])}
        for key, value, origin in found
    ]
