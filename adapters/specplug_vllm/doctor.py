"""vLLM checks of ``specplug doctor``.

vLLM derives omitted arguments from device and model, so only vLLM knows which runner serves or how many tokens a step
may hold.  It resolves a launch line without starting anything.
"""

from __future__ import annotations

from specplug.operator.launches import Launch, ServerCommand, awaited_proposers
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import CheckResult
from specplug.seams.support import InstalledEngine
from specplug.settings.model import Settings
from specplug_vllm.config import use_of
from specplug_vllm.seams import VERSIONS
from specplug_vllm.startup import advice, refusals
from specplug_vllm.startup.engine_config import require_installed

ENGINE = InstalledEngine(
    package="vllm",
    versions=VERSIONS,
    seams="specplug_vllm.seams",
    group="vllm.general_plugins",
    target="specplug_vllm.entry:register",
    allowing="VLLM_PLUGINS",
    empty_allows=False,
    statement="from vllm import LLM",
    remedy="Install what the message names, or vLLM's build for this machine",
)


def installed(settings: Settings) -> list[CheckResult]:
    """Report whether the installed vLLM is supported and loads specplug."""
    return ENGINE.check()


def imports(settings: Settings) -> list[CheckResult]:
    """Report whether the installed vLLM imports and has every seam; return nothing if there is none."""
    return ENGINE.check_import()


def launch(settings: Settings, launch: str = "") -> list[CheckResult]:
    """Report on the server that a launch line would start; return nothing for another engine's line."""
    names = awaited_proposers(settings, default_registry(), "cuda")
    in_general = [advice.REFUSED_ON_V1, *([advice.host_cost(names)] if names else [])]
    in_general.append(f"with data parallelism {advice.FIXED_DRAFT_LENGTH}")
    if lost := refusals.installed_processors():
        in_general.append(f"the V1 runner refuses to start beside the logits processors {', '.join(sorted(lost))}")
    is_installed = ENGINE.folder is not None
    return COMMAND.check(launch, is_installed=is_installed, remedy=VERSIONS.remedy, in_general=in_general)


def arguments_in(words: list[str]) -> list[str] | None:
    """Return the arguments of ``vllm serve``, or of the module that starts the same server with ``python -m``."""
    for place, word in enumerate(words):
        if word == "serve" or word.rpartition(".")[2] == "api_server":
            return words[place + 1 :]
    return None


def resolved_launch(arguments: list[str]) -> Launch | None:
    """Parse a server's arguments and build its engine configuration, with vLLM's own code."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.plugins import load_general_plugins
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    load_general_plugins()
    command = ServeSubcommand()
    parser = FlexibleArgumentParser(prog="vllm")
    command.subparser_init(parser.add_subparsers())
    args = parser.parse_args(["serve", *arguments])
    command.validate(args)
    args.model = vars(args).get("model_tag") or args.model
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    if not use_of(config):
        return None
    require_installed()
    return advice.launch_of(config)


COMMAND = ServerCommand(
    engine="vLLM",
    package="vllm",
    resolved=resolved_launch,
    arguments_in=arguments_in,
    expected="'vllm serve MODEL ...'",
    enabling="--additional-config.specplug.proposer ngram",
)
