"""The core's own checks of `specplug doctor`: the environment, and the start of every plug-in."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from math import ceil
from pathlib import Path, PurePosixPath

from specplug.errors import PluginError, SettingsError, SpecplugError
from specplug.plugins.registry import KINDS, Registry, default_registry
from specplug.plugins.specs import HYBRID, CheckResult, CheckSpec, PluginSpec, PolicySpec, ProposerSpec, resolve
from specplug.settings import Settings
from specplug.types.caps import EngineCaps, ProposerCaps

_MOUNT = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")

TESTED = {"torch": "2.13"}
"""The newest versions, of what has no check of its own, that the tests run."""


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


def usable_cores() -> int:
    """Return how many cores this process may keep busy, by its affinity and by quotas, of control groups 1 or 2."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(ceil, _quotas())]))


def _quotas() -> Iterator[float]:
    """Yield the cores that the quotas of this process's control groups allow."""
    try:
        groups = _GROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            for folder in _folders(_MOUNT, path):
                yield from _quota(_words(folder / "cpu.max"))
        elif "cpu" in controllers.split(","):
            for folder in _folders(_MOUNT / "cpu", path):
                yield from _quota([*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")])


def _folders(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group's folder and those above it, whose quotas hold as well; a container sees its own as the mount."""
    below = PurePosixPath(path.lstrip("/"))
    return (mount / each for each in (below, *below.parents) if ".." not in each.parts)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:  # the root group has no quota, and an outer group may be out of sight
        return []


def _quota(words: list[str]) -> Iterator[float]:
    """Yield the cores that a quota and its period, in microseconds, allow; nothing for none, "max" or -1."""
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        yield int(words[0]) / int(words[1])
