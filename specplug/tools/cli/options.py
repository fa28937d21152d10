"""Options that several commands have, alone and in groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from specplug.errors import SettingsError
from specplug.tools.cli.launch import find_model, flags
from specplug.tools.client.http import PATIENCE, ServerClient


def _refuse_servers(engine: str | None) -> str | None:
    """Refuse engines that the command line does not run, and name what to do instead."""
    launches = {"vllm": "vllm serve MODEL", "sglang": "python -m sglang.launch_server --model-path MODEL"}
    if engine not in (None, "transformers"):
        server = f"`{launches[engine]} ...`" if engine in launches else "the engine's server"
        remedy = f"Start {server} (docs/serving.md), and then `specplug audit URL` or `specplug bench URL`"
        what = "models are run by transformers only"
        raise SettingsError.build(what, who="--engine", found=repr(engine), remedy=remedy)
    return engine


EmbeddedOnly = Annotated[
    str | None,
    typer.Option("--engine", hidden=True, callback=_refuse_servers, help="Only transformers; others have servers."),
]
Proposer = Annotated[str | None, typer.Option("--proposer", help="The proposer that drafts; see `specplug list`.")]
Policy = Annotated[str | None, typer.Option("--policy", help="The policy that sets draft lengths; join several by +.")]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft", metavar="MODEL", help="Draft with this model: a folder, a model id, or a shipped one (`crosstok`)."
    ),
]
DraftLength = Annotated[
    int | None,
    typer.Option("--num-speculative-tokens", "-n", min=0, help="Most draft tokens per step; 0 drafts nothing."),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda, ...; by default a GPU if there is one.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="By default float32 on a CPU and bfloat16 on a GPU.")]

PluginOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="PLUGIN.KEY=VALUE", help="A plug-in's own setting; repeat.")
]

Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="CPU threads; by default 1 for shipped models, else torch's default."),
]

Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds within which a server must answer.")]
ApiKey = Annotated[str | None, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="The server's API key.")]
OperatorKey = Annotated[
    str | None, typer.Option("--operator-key", envvar="SPECPLUG_OPERATOR_KEY", help="The operator's key, if different.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Send plain prompts as they are, without the model's chat template.")]


@dataclass(frozen=True)
class Drafting:
    """What drafts in the embedded engine, and how far."""

    engine: EmbeddedOnly = None
    draft: DraftModel = None
    proposer: Proposer = None
    policy: Policy = None
    draft_length: DraftLength = None

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings that were named on the command line, and `more` that are not None.

        A model's proposer is `crosstok`; one that has it as a part, such as `hybrid`, may be named beside the model.
        """
        named = flags(proposer=self.proposer, policy=self.policy, num_speculative_tokens=self.draft_length, **more)
        if self.draft is None:
            return named
        return {"proposer": "crosstok", "options": {"crosstok": {"model": find_model(self.draft)}}, **named}


@dataclass(frozen=True)
class Place:
    """Where the embedded engine runs."""

    device: Device = None
    dtype: Dtype = None
    threads: Threads = None

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of `start_engine`."""
        return asdict(self)


@dataclass(frozen=True)
class Server:
    """How a server is reached."""

    api_key: ApiKey = None
    operator_key: OperatorKey = None
    timeout: Timeout = PATIENCE

    def client(self, url: str) -> ServerClient:
        """Return the client of a server."""
        return ServerClient(url, api_key=self.api_key, operator_key=self.operator_key, patience=self.timeout)
