"""Resolution of a launch line by vLLM itself, without starting an engine.

vLLM derives omitted arguments from device and model, so only vLLM knows which runner serves or how many tokens a step
may hold.  It runs in a separate process: ``python -m specplug_vllm.doctor.launch LINE``.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

from specplug.errors import EngineError
from specplug.operator import launches
from specplug_vllm import seams
from specplug_vllm.config import is_requested
from specplug_vllm.startup.advice import Launch, launch_of
from specplug_vllm.startup.engine_config import require_installed

_COMMAND, _MODULE = "serve", "api_server"
"""``vllm serve``, and the last part of the name of the module that starts the same server with ``python -m``."""


def ask(line: str, patience: float = launches.PATIENCE) -> Launch | None:
    """Return the resolved launch of a line; None if the line does not enable specplug.

    Args:
        line: a shell command, ``vllm serve MODEL --flag value ...``, optionally with variables set before it.
        patience: timeout in seconds.

    Raises:
        EngineError: the line starts no vLLM server, or vLLM does not accept it.
    """
    variables, arguments = parsed(line)
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", **variables}
    found = launches.ask(__spec__.name, arguments, quiet, engine="vLLM", patience=patience)
    if found is None:
        return None
    captured = tuple((length, requests) for length, requests in found["captured"])
    return Launch(**{**found, "awaited_proposers": tuple(found["awaited_proposers"]), "captured": captured})


def parsed(line: str) -> tuple[dict[str, str], list[str]]:
    """Split a line into environment variables and the arguments of ``vllm serve``.

    Raises:
        EngineError: the line starts no server.
    """
    variables, words = launches.split(line)
    for place, word in enumerate(words):
        if word == _COMMAND or word.rpartition(".")[2] == _MODULE:
            return variables, words[place + 1 :]
    raise EngineError.build("not a launch line", who="--launch", found=repr(line), expected="'vllm serve MODEL ...'")


def _configured(arguments: list[str]) -> dict[str, object] | None:
    """Parse a server's arguments and build its engine configuration, with vLLM's own code."""
    seams.require("cli")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.plugins import load_general_plugins
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    load_general_plugins()
    command, parser = ServeSubcommand(), FlexibleArgumentParser(prog="vllm")
    command.subparser_init(parser.add_subparsers())
    args = parser.parse_args(["serve", *arguments])
    command.validate(args)
    args.model = vars(args).get("model_tag") or args.model
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    if not is_requested(config):
        return None
    require_installed()
    return asdict(launch_of(config))


if __name__ == "__main__":
    launches.tell(_configured, sys.argv[1])
