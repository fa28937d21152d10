"""`specplug doctor` command: runs the registered checks and shows the settings in effect, or checks a pairing.

The core's own checks are here, too.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from specplug.cores import usable_cores
from specplug.errors import PluginError, SettingsError, SpecplugError, describe
from specplug.mistakes import flatten, leaves
from specplug.operator.launches import continuation
from specplug.plugins.registry import KINDS, PluginEntry, Registry, default_registry
from specplug.plugins.specs import HYBRID, CheckResult, CheckSpec, PluginSpec, PolicySpec, ProposerSpec, resolve
from specplug.settings import ResolvedSettings, Settings, load_settings
from specplug.settings.sources import after_engine
from specplug.tools.cli.launch import Raw, read_text
from specplug.tools.cli.output import AsJson, console, show, table
from specplug.types.caps import EngineCaps, ProposerCaps

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
"""The colour of each status."""

TESTED = {"torch": "2.13"}
"""The newest versions, of what has no check of its own, that the tests run."""


class CheckReport(NamedTuple):
    """One result, with the check and package that produced it."""

    check: str
    owner: str
    result: CheckResult

    def as_dict(self) -> dict[str, Any]:
        """Return the result ready for JSON."""
        return {"check": self.check, "owner": self.owner, **asdict(self.result)}


def doctor(
    launch: Annotated[str, typer.Option(metavar="LINE", help="An engine's launch line, for checks of one.")] = "",
    target: Annotated[
        str | None, typer.Option(metavar="MODEL", help="With --draft, check the pairing of two models, nothing else.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The draft model: a folder, a model id, or a shipped one.")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="A prompt for a quick run; repeat.")] = None,
    prompts: Annotated[Path | None, typer.Option(metavar="FILE", help="Prompts for it, one per line.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens per answer of the run.")] = 64,
    raw: Raw = False,
    gamma: Annotated[int, typer.Option(min=1, max=64, help="Draft tokens per step of the run.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Check this machine, the plug-ins and the settings, and name a remedy for every problem.

    Runs every check that the installed packages registered, then shows the settings in effect and the origin of each
    value: the default or SPECPLUG_CONFIG. The exit code is 1 if a check fails. Settings inside a launch line are shown
    by the check that examines it.

    With --launch, the engine resolves its configuration from the line, without starting, by the defaults of this
    machine's device; shown is what the server will do, and the warnings that it will log.

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
        from specplug.tools.cli.pairing import check_pairing

        with console(stderr=True).status("reading the configurations") as status:
            run = check_pairing(target, draft, texts, status.update, raw=raw, max_tokens=max_tokens, gamma=gamma)
            found = [CheckReport(name, "specplug", result) for name, result in run]
        title = f"Pairing of {target} and {draft}"
        about = {"target": target, "draft": draft}
    else:
        found, values = _check_machine(launch)
        title = "Checks"
        about = {}
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
        found = "only --target" if target else "only --draft" if draft else "only prompts"
        expected = "--target and --draft"
        remedy = "Give both, or neither and no prompts to check this machine"
        what = "a pairing needs two models"
        who = "specplug doctor"
        raise SettingsError.build(what, who=who, found=found, expected=expected, remedy=remedy)
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
    meanings = {leaf.key: leaf.description for leaf in leaves(Settings)}
    found = [(key, value, resolved.origins[key]) for key, value in flatten(resolved.settings.model_dump())]
    return [
        {"key": key, "value": value, "origin": origin, "description": meanings.get(key, meanings["options"])}
        for key, value, origin in found
    ]


# -- the core checks: the environment, and the start of every plug-in --------------------------------------------------


def environment(settings: Settings) -> list[CheckResult]:
    """Report the interpreter, the libraries that specplug needs, the devices and the cores."""
    python = CheckResult("ok", f"Python {platform.python_version()} on {platform.platform()}")
    return [python, *_own_libraries(), *_devices()]


def plugins(settings: Settings) -> list[CheckResult]:
    """Report plug-ins that failed to load, and build every registered one with its options in the settings.

    A plug-in that does not start is a failure if the settings name it, otherwise a warning, unless it only lacks
    options that a server which uses it would set.
    """
    registry = default_registry()
    results = []
    for failure in registry.load_errors:
        remedy = f"Update or uninstall {failure.owner.package}, or report this to its authors"
        results.append(CheckResult("fail", f"{failure.owner}: {failure.stage}: {failure.error}", remedy))
    for kind, spec_type in KINDS.items():
        specs = [entry.spec for entry in registry.entries(spec_type).values()]
        problems = {spec.name: problem for spec in specs if (problem := _problem(spec, settings, registry)) is not None}
        results += problems.values()
        healthy = [spec.name for spec in specs if spec.name not in problems]
        if healthy or not problems:
            results.append(CheckResult("ok", f"{kind}: {', '.join(healthy) or 'none'}"))
        results += [
            CheckResult("ok", f"{kind} {spec.name!r}: {', '.join(spec.labels())}")
            for spec in specs
            if spec.name in healthy and isinstance(spec, ProposerSpec) and not isinstance(spec.caps, ProposerCaps)
        ]
    return results


def _problem(spec: PluginSpec, settings: Settings, registry: Registry) -> CheckResult | None:
    """Return the problem that keeps a plug-in from starting, or None if it starts."""
    from specplug.assembly import try_to_build
    from specplug.interfaces import PluginContext

    if isinstance(spec, CheckSpec):  # is loaded when it runs
        return None
    if spec.name == HYBRID and settings.extends_engine:  # no proposer of its own, but a lookup after the engine's
        return None
    factories = [spec.factory, spec.options, spec.trimmer if isinstance(spec, PolicySpec) else None]
    try:
        for factory in factories:
            if factory is not None:
                resolve(factory, f"{spec.kind} {spec.name!r}")
    except PluginError as error:
        return CheckResult("fail", str(error), "Update or reinstall its package")
    caps = EngineCaps(max_draft_length=settings.num_speculative_tokens, trees=True)
    small = PluginContext(caps=caps, vocab_size=1024, max_slots=1, max_length=256, seed=settings.seed)
    try:
        try_to_build(spec, settings, registry, small)
    except SpecplugError as error:
        in_force = {settings.proposer, *settings.extra_proposers, *settings.policies, settings.verifier}
        who = f"{spec.kind} {spec.name!r}"
        summary = str(error) if who in str(error) else f"{who}: {error}"  # the message may name only a part of it
        if spec.name in in_force:
            return CheckResult("fail", summary, f"Correct its options in the settings, or choose another {spec.kind}")
        remedy = f"Needed only to use this {spec.kind}: correct its options in the settings"
        unset = isinstance(error, SettingsError) and spec.name not in settings.options
        return CheckResult("ok" if unset else "warn", summary, remedy)
    return None


def _own_libraries() -> Iterator[CheckResult]:
    """Compare the requirements in specplug's own metadata, without extras and versions, with what is installed."""
    for requirement in importlib.metadata.requires("specplug") or ():
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        if "extra ==" in requirement:
            continue
        try:
            tested = f"; the tests run {TESTED[name]}" if name in TESTED else ""
            yield CheckResult("ok", f"{name} {importlib.metadata.version(name)} (declared: {requirement}{tested})")
        except importlib.metadata.PackageNotFoundError:
            yield CheckResult("fail", f"{requirement} is not installed", f"pip install '{requirement}'")


def _devices() -> Iterator[CheckResult]:
    """Report accelerators and cores."""
    try:
        import torch
    except Exception as error:
        yield CheckResult("fail", f"torch does not import: {error}", "Reinstall torch for this machine")
        return
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    yield CheckResult("ok", f"devices: {', '.join(['cpu', *gpus])}")
    cores = usable_cores()
    threads = torch.get_num_threads()
    status, remedy = ("warn", f"Set OMP_NUM_THREADS={cores}") if threads > cores else ("ok", "")
    yield CheckResult(status, f"{cores} cores, {threads} torch threads", remedy)
