"""vLLM checks of ``specplug doctor``.  Most read the installed vLLM's sources, because importing it takes seconds."""

from __future__ import annotations

from pathlib import Path

from specplug.errors import EngineError
from specplug.operator.launches import awaited_proposers, names_engine
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import CheckResult
from specplug.seams import installed as installation
from specplug.settings.model import Settings
from specplug_vllm.seams import REMEDY, SUPPORTED, VERSIONS
from specplug_vllm.seams.table import OPTIONAL, SEAMS
from specplug_vllm.startup import advice

GROUP, NAME, TARGET = "vllm.general_plugins", "specplug", "specplug_vllm.entry:register"


def installed(settings: Settings) -> list[CheckResult]:
    """Report whether the installed vLLM is supported, has every seam, and loads specplug."""
    folder = package_folder()
    if folder is None:
        return [CheckResult("warn", "vLLM is not installed: its adapter cannot run", f"Install {SUPPORTED}")]
    version = installation.version_in(folder)
    return [
        installation.version_result(VERSIONS, version),
        installation.seams_result(VERSIONS, version, folder, SEAMS, OPTIONAL),
        installation.entry_point_result("vLLM", GROUP, NAME, TARGET, allowing="VLLM_PLUGINS", empty_allows=False),
    ]


def imports(settings: Settings) -> list[CheckResult]:
    """Report whether the installed vLLM imports; return nothing if there is none."""
    if package_folder() is None:
        return []
    remedy = "Install what the message names, or vLLM's build for this machine"
    return [installation.import_result("vLLM", "from vllm import LLM", remedy)]


def launch(settings: Settings, launch: str = "") -> list[CheckResult]:
    """Report on the server that a launch line would start; return nothing for another engine's line."""
    if launch and not names_engine(launch, "vllm"):
        return []
    if package_folder() is None:
        return [CheckResult("fail", "this line starts vLLM, which is not installed", REMEDY)] if launch else []
    if not launch:
        hint = "no launch line given; specplug doctor --launch 'vllm serve MODEL ...' checks one. In general:"
        return [CheckResult("ok", hint), *_standing(settings)]
    from specplug_vllm.doctor.launch import ask

    try:
        found = ask(launch)
    except EngineError as error:
        return [CheckResult("fail", str(error), "Correct what the message names")]
    if found is None:
        return [CheckResult("warn", "the launch line does not enable specplug", f"Add {ASKING}")]
    described = ", ".join(f"{key}: {value}" for key, value in found.settings.items()) or "all at their defaults"
    return [CheckResult("ok", f"settings of the launch: {described}"), *advice.advise(found)]


ASKING = "--additional-config.specplug.proposer ngram"


def package_folder() -> Path | None:
    """Return the installed vLLM's package folder."""
    return installation.package_folder("vllm")


def _standing(settings: Settings) -> list[CheckResult]:
    """Return the results that hold for any launch line."""
    names = awaited_proposers(settings, default_registry(), "cuda")
    results = [CheckResult("ok", advice.REFUSED_ON_V1)]
    if names:
        results.append(CheckResult("ok", advice.host_cost(names)))
    return [*results, CheckResult("ok", f"with data parallelism {advice.FIXED_DRAFT_LENGTH}")]
