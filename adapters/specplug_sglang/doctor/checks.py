"""SGLang checks of ``specplug doctor``.  Most read the installed sources, because importing SGLang takes seconds."""

from __future__ import annotations

from pathlib import Path

from specplug.errors import EngineError
from specplug.operator.launches import awaited_proposers
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import CheckResult
from specplug.seams import installed as installation
from specplug.settings.model import Settings
from specplug_sglang.doctor import launch as launching
from specplug_sglang.seams.table import OPTIONAL, SEAMS, VERSIONS

GROUP, NAME, TARGET = "sglang.srt.plugins", "specplug", "specplug_sglang.entry:register"
ASKING = "--speculative-algorithm SPECPLUG"


def installed(settings: Settings) -> list[CheckResult]:
    """Report whether the installed SGLang is supported, has every seam, and loads specplug."""
    folder = package_folder()
    if folder is None:
        return [CheckResult("warn", "SGLang is not installed: its adapter cannot run", f"Install {VERSIONS}")]
    version = installation.version_in(folder)
    return [
        installation.version_result(VERSIONS, version),
        installation.seams_result(VERSIONS, version, folder, SEAMS, OPTIONAL),
        installation.entry_point_result("SGLang", GROUP, NAME, TARGET, allowing="SGLANG_PLUGINS", empty_allows=True),
    ]


def imports(settings: Settings) -> list[CheckResult]:
    """Report whether the installed SGLang imports; return nothing if there is none."""
    if package_folder() is None:
        return []
    remedy = "Install what the message names. SGLang's wheels are for GPUs; for a CPU see docs/serving.md, On a CPU"
    return [installation.import_result("SGLang", "import sglang.srt.entrypoints.engine", remedy)]


def launch(settings: Settings, launch: str = "") -> list[CheckResult]:
    """Report on the server that a launch line would start; return nothing for another engine's line."""
    if launch and not launching.is_mine(launch):
        return []
    if package_folder() is None:
        remedy = VERSIONS.remedy
        return [CheckResult("fail", "this line starts SGLang, which is not installed", remedy)] if launch else []
    if not launch:
        return _any_launch(settings)
    from specplug_sglang.startup import advice

    try:
        found = launching.ask(launch)
    except EngineError as error:
        return [CheckResult("fail", str(error), "Correct what the message names")]
    if found is None:
        return [CheckResult("warn", "the launch line does not enable specplug", f"Add {ASKING}")]
    described = ", ".join(f"{key}: {value}" for key, value in found.settings.items()) or "all at their defaults"
    return [CheckResult("ok", f"settings of the launch: {described}"), *advice.advise(found)]


def package_folder() -> Path | None:
    """Return the installed SGLang's package folder."""
    return installation.package_folder("sglang")


def _any_launch(settings: Settings) -> list[CheckResult]:
    """Return the results that hold for any launch line."""
    from specplug_sglang.startup import advice

    hint = "no launch line given; specplug doctor --launch 'sglang serve MODEL ...' checks one. In general:"
    texts = [hint, advice.STEP_PLANNER, advice.GRAMMARS, advice.UNDRAFTED, advice.REFUSED]
    names = awaited_proposers(settings, default_registry(), "cuda")
    return [CheckResult("ok", text) for text in [*texts, *([advice.host_cost(names)] if names else [])]]
