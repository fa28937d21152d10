"""What ``specplug doctor`` says about vLLM.  The installed vLLM is read, not imported: that takes seconds."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
from pathlib import Path

from specplug.errors import EngineError
from specplug.registry import default_registry
from specplug.seams.sources import moved_in
from specplug.settings.model import Settings
from specplug.specs import CheckResult
from specplug_vllm import advice
from specplug_vllm.seams import REMEDY, SUPPORTED, parse
from specplug_vllm.seams_table import NEWEST, OLDEST, SEAMS

GROUP, NAME, TARGET = "vllm.general_plugins", "specplug", "specplug_vllm.entry:register"


def installed(settings: Settings) -> list[CheckResult]:
    """Report whether the installed vLLM is supported, has every seam, and loads specplug."""
    folder = package_folder()
    if folder is None:
        return [CheckResult("warn", "vLLM is not installed: its adapter cannot run", f"Install {SUPPORTED}")]
    version = version_in(folder)
    return [_version(version), _seams(folder, version), _entry_point()]


def launch(settings: Settings, launch: str = "") -> list[CheckResult]:
    """Report what the server would be that a launch line starts."""
    if package_folder() is None:
        return [CheckResult("fail", "a launch line is given, but vLLM is not installed", REMEDY)] if launch else []
    if not launch:
        hint = "no launch line given; specplug doctor --launch 'vllm serve MODEL ...' looks at one. In general:"
        return [CheckResult("ok", hint), *_standing(settings)]
    from specplug_vllm.launch import ask

    try:
        found = ask(launch)
    except EngineError as error:
        return [CheckResult("fail", str(error), "Correct what the message names")]
    if found is None:
        return [CheckResult("warn", "the launch line does not ask for specplug", f"Add {ASKING}")]
    said = ", ".join(f"{key}: {value}" for key, value in found.settings.items()) or "all at their defaults"
    return [CheckResult("ok", f"settings of the launch: {said}"), *advice.advise(found)]


ASKING = (
    '--speculative-config \'{"method": "custom_class", "model": "specplug_vllm.Proposer", '
    '"num_speculative_tokens": 8}\''
)


def package_folder() -> Path | None:
    """Return the installed vLLM's package folder."""
    spec = importlib.util.find_spec("vllm")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def version_in(folder: Path) -> str:
    """Return the version that a package folder's own file names, "dev" without one."""
    file = folder / "_version.py"
    if file.is_file():
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id="__version__"), *_], value=ast.Constant(value=str(version))):
                    return version
    return "dev"


def _version(version: str) -> CheckResult:
    found = parse(version)
    if found is not None and found < OLDEST:
        return CheckResult("fail", f"vLLM {version} is too old; expected {SUPPORTED}", REMEDY)
    if found is None or found > NEWEST:
        summary = f"vLLM {version} is untested; tested: {SUPPORTED}"
        return CheckResult("warn", summary, f"{REMEDY}, or go on if every seam is found")
    return CheckResult("ok", f"vLLM {version} (supported: {SUPPORTED})")


def _seams(folder: Path, version: str) -> CheckResult:
    moved = moved_in(folder.parent, parse(version) or NEWEST, SEAMS)
    if moved:
        return CheckResult("fail", f"vLLM {version} has moved: {'; '.join(moved)}", REMEDY)
    return CheckResult("ok", f"all {len(SEAMS)} seams found")


def _entry_point() -> CheckResult:
    found = [entry.value for entry in importlib.metadata.entry_points(group=GROUP) if entry.name == NAME]
    if TARGET not in found:
        summary = f"vLLM does not load specplug: no entry point {NAME!r} in the group {GROUP!r}"
        return CheckResult("fail", summary, "Reinstall specplug into vLLM's environment")
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and NAME not in (name.strip() for name in allowed.split(",")):
        summary = f"VLLM_PLUGINS={allowed!r} keeps vLLM from loading specplug"
        return CheckResult("fail", summary, f"Add {NAME!r} to it, or unset it")
    return CheckResult("ok", f"vLLM loads specplug (entry point {NAME!r} of {GROUP!r})")


def _standing(settings: Settings) -> list[CheckResult]:
    """Say what holds whatever the launch line."""
    names = advice.host_proposers(settings, default_registry())
    results = [CheckResult("ok", advice.REFUSED_ON_V1)]
    if names:
        results.append(CheckResult("ok", advice.host_cost(names)))
    return [*results, CheckResult("ok", f"with data parallelism {advice.FIXED_WIDTH}")]
