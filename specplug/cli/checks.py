"""The checks of `specplug doctor` that come with the core: the environment, and whether every plug-in loads."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator

from specplug.errors import PluginError
from specplug.registry import Registry, default_registry
from specplug.settings import KINDS, Settings
from specplug.specs import CheckResult, CheckSpec, EngineSpec, PluginSpec, PolicySpec, resolve


def environment(settings: Settings) -> list[CheckResult]:
    """Report the interpreter, the libraries that specplug and the engines need, the devices and the cores."""
    return [
        CheckResult("ok", f"Python {platform.python_version()} on {platform.platform()}"),
        *_own_libraries(),
        *_engine_libraries(default_registry()),
        *_devices(),
    ]


def plugins(settings: Settings) -> list[CheckResult]:
    """Report what failed to load, and load the code behind everything that is registered."""
    registry = default_registry()
    results = [
        CheckResult(
            "fail",
            f"{failure.owner}: {failure.stage}: {failure.error}",
            f"Update or uninstall {failure.owner.package}, or report this to its authors",
        )
        for failure in registry.load_errors
    ]
    for kind, spec_type in KINDS.items():
        specs = [entry.spec for entry in registry.entries(spec_type).values()]
        problems = [problem for spec in specs if (problem := _problem(spec)) is not None]
        results += [CheckResult("fail", problem, "Update or reinstall its package") for problem in problems]
        if not problems:
            results.append(CheckResult("ok", f"{kind}: {', '.join(spec.name for spec in specs) or 'none'}"))
    return results


def _problem(spec: PluginSpec) -> str | None:
    """Return why a plug-in's code does not load.

    Checks are loaded when they run; an engine whose libraries are missing is the environment's matter.
    """
    if isinstance(spec, CheckSpec):
        return None
    if isinstance(spec, EngineSpec) and any(_installed(requirement) is None for requirement in spec.requires):
        return None
    factories = [spec.factory, spec.options, spec.trimmer if isinstance(spec, PolicySpec) else None]
    try:
        for factory in factories:
            if factory is not None:
                resolve(factory, f"{spec.kind} {spec.name!r}")
    except PluginError as error:
        return str(error)
    return None


def _own_libraries() -> Iterator[CheckResult]:
    """Compare what specplug's own metadata demands with what is installed, extras left out."""
    demanded = [text for text in importlib.metadata.requires("specplug") or () if "extra ==" not in text]
    for requirement in demanded:
        version = _installed(requirement)
        if version is None:
            yield CheckResult("fail", f"{requirement} is not installed", f"pip install '{requirement}'")
        else:
            yield CheckResult("ok", f"{_distribution(requirement)} {version} (declared: {requirement})")


def _engine_libraries(registry: Registry) -> Iterator[CheckResult]:
    """Report the libraries that registered engines need."""
    for name, entry in registry.entries(EngineSpec).items():
        assert isinstance(entry.spec, EngineSpec)
        for requirement in entry.spec.requires:
            version = _installed(requirement)
            if version is None:
                summary = f"{requirement} is not installed: the engine {name!r} cannot run"
                yield CheckResult("warn", summary, f"pip install '{requirement}'")
            else:
                summary = f"{_distribution(requirement)} {version} (engine {name!r} needs {requirement})"
                yield CheckResult("ok", summary)


def _devices() -> Iterator[CheckResult]:
    """Report accelerators and cores."""
    try:
        import torch
    except Exception as error:
        yield CheckResult("fail", f"torch does not import: {error}", "Reinstall torch for this machine")
        return
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    yield CheckResult("ok", f"devices: {', '.join(['cpu', *gpus])}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    if threads > cores:
        yield CheckResult("warn", f"{cores} cores, {threads} torch threads", f"Set OMP_NUM_THREADS={cores}")
    else:
        yield CheckResult("ok", f"{cores} cores, {threads} torch threads")


def _distribution(requirement: str) -> str:
    """Return the distribution's name out of a requirement such as ``torch>=2.9``."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return requirement if match is None else match.group()


def _installed(requirement: str) -> str | None:
    """Return the installed version of what a requirement names, whatever version it asks for; None without one."""
    try:
        return importlib.metadata.version(_distribution(requirement))
    except importlib.metadata.PackageNotFoundError:
        return None
