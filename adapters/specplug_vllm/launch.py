"""What vLLM makes of a launch line, found out by vLLM itself without starting an engine.

vLLM fills in what the line leaves open by device and model, so nobody else can say which runner serves or how many
tokens a step may hold.  It is asked in a process of its own: ``python -m specplug_vllm.launch LINE``.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

from specplug.errors import EngineError
from specplug.serving import launches
from specplug_vllm import seams
from specplug_vllm.advice import Launch, launch_of


def ask(line: str, patience: float = launches.PATIENCE) -> Launch | None:
    """Return what a launch line comes to; None when it does not ask for specplug.

    Args:
        line: as it is typed into a shell: ``vllm serve MODEL --flag value ...``, with variables set in front of it.
        patience: seconds.

    Raises:
        EngineError: it is no such line, or vLLM does not accept it.
    """
    variables, arguments = parsed(line)
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", **variables}
    found = launches.ask(__spec__.name, arguments, quiet, engine="vLLM", patience=patience)
    if found is None:
        return None
    captured = tuple((length, requests) for length, requests in found["captured"])
    return Launch(**{**found, "host_proposers": tuple(found["host_proposers"]), "captured": captured})


def parsed(line: str) -> tuple[dict[str, str], list[str]]:
    """Split a line into variables and the engine's arguments, the model as a flag.

    Raises:
        EngineError: it starts no server.
    """
    variables, words = launches.split(line)
    if "serve" not in words:
        raise EngineError.build(
            "not a launch line", who="--launch", found=repr(line), expected="'vllm serve MODEL ...'"
        )
    arguments = words[words.index("serve") + 1 :]
    if arguments and not arguments[0].startswith("-"):
        arguments.insert(0, "--model")
    return variables, arguments


def _configured(arguments: list[str]) -> dict[str, object] | None:
    """Let vLLM configure an engine."""
    seams.require("cli")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from specplug_vllm.asked import is_asked

    load_general_plugins()
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed, _ = parser.parse_known_args(arguments)  # flags of the HTTP server are left over
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    return asdict(launch_of(config)) if is_asked(config) else None


if __name__ == "__main__":
    launches.tell(_configured, sys.argv[1])
