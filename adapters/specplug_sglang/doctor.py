"""SGLang checks of ``specplug doctor``.

SGLang derives omitted arguments from device and model.  It resolves a launch line in a separate process:
``python -m specplug_sglang.doctor ARGUMENTS``.
"""

from __future__ import annotations

import os
import sys
from pathlib import PurePath

from specplug.errors import EngineError, describe
from specplug.operator import launches
from specplug.operator.launches import Launch, ServerCommand, awaited_proposers
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import CheckResult
from specplug.seams.support import InstalledEngine
from specplug.settings.model import Settings
from specplug_sglang.config import ALGORITHM, is_requested
from specplug_sglang.seams import VERSIONS
from specplug_sglang.startup import advice

MODULE = "sglang.launch_server"

ENGINE = InstalledEngine(
    package="sglang",
    versions=VERSIONS,
    seams="specplug_sglang.seams",
    group="sglang.srt.plugins",
    target="specplug_sglang.entry:register",
    allowing="SGLANG_PLUGINS",
    empty_allows=True,
    statement="import sglang.srt.entrypoints.engine",
    remedy="Install what the message names. SGLang's wheels are for GPUs; for a CPU see docs/serving.md, On a CPU",
)


def installed(settings: Settings) -> list[CheckResult]:
    """Report whether the installed SGLang is supported and loads specplug."""
    return ENGINE.check()


def imports(settings: Settings) -> list[CheckResult]:
    """Report whether the installed SGLang imports and has every seam; return nothing if there is none."""
    return ENGINE.check_import()


def launch(settings: Settings, launch: str = "") -> list[CheckResult]:
    """Report on the server that a launch line would start; return nothing for another engine's line."""
    names = awaited_proposers(settings, default_registry(), "cuda")
    in_general = [advice.STEP_PLANNER, advice.GRAMMARS, advice.UNDRAFTED, advice.REFUSED]
    in_general += [advice.host_cost(names)] if names else []
    is_installed = ENGINE.folder is not None
    return COMMAND.check(launch, is_installed=is_installed, remedy=VERSIONS.remedy, in_general=in_general)


def arguments_in(words: list[str]) -> list[str] | None:
    """Return the server's arguments in a line's words, with the model as a flag; None if they start no server."""
    for place, word in enumerate(words):
        if word == MODULE:
            return words[place + 1 :]
        if word == "serve" and place and PurePath(words[place - 1]).name == "sglang":
            arguments = words[place + 1 :]
            if "--model-type" in arguments:  # a flag of the command, not of the server
                at = arguments.index("--model-type")
                del arguments[at : at + 2]
            arguments = [each for each in arguments if not each.startswith("--model-type=")]
            is_flag = not arguments or arguments[0].startswith("-")
            return arguments if is_flag else ["--model-path", *arguments]
    return None


COMMAND = ServerCommand(
    engine="SGLang",
    package="sglang",
    module="specplug_sglang.doctor",
    arguments_in=arguments_in,
    expected=f"'python -m {MODULE} --model-path MODEL ...' or 'sglang serve MODEL ...'",
    enabling=f"--speculative-algorithm {ALGORITHM}",
)


def resolved_launch(arguments: list[str]) -> Launch | None:
    """Parse and resolve a server's arguments with SGLang's own code."""
    try:
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import prepare_server_args
    except ImportError as error:
        raise EngineError.build(
            "SGLang does not import on this machine",
            who="specplug_sglang",
            found=describe(error),
            remedy="Run specplug doctor on the machine that will serve, in SGLang's environment",
        ) from error
    load_plugins()
    server_args = prepare_server_args(arguments)
    if not is_requested(server_args):
        return None
    _require_loaded()
    server_args.resolve_once()
    return advice.launch_of(server_args)


def _require_loaded() -> None:
    """Refuse a line that keeps SGLang from loading specplug.

    Raises:
        EngineError: SGLang did not load specplug.
    """
    from sglang.srt.speculative.spec_registry import get_spec

    if get_spec(ALGORITHM) is None:
        raise EngineError.build(
            "SGLang does not load specplug, which --speculative-algorithm names",
            who="specplug_sglang",
            found=f"SGLANG_PLUGINS={os.environ.get('SGLANG_PLUGINS')!r}",
            expected="'specplug' in it, or no such variable",
            remedy="Add 'specplug' to it, or unset it; if it is not set, reinstall specplug in SGLang's environment",
        )


if __name__ == "__main__":
    launches.tell(resolved_launch, sys.argv[1])
