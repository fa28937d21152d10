"""Options that several commands have, and groups of options.

A command's parameter whose type is a dataclass is a group: it stands for an option for each of the dataclass's fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from specplug.errors import SettingsError
from specplug.tools.cli.launch import find_model, flags
from specplug.tools.client.http import PATIENCE, ServerClient


def option(default: Any, help: str, *names: str, **about: Any) -> Any:
    """Return a group's field with its default, its help, and further arguments of `typer.Option`."""
    return field(default=default, metadata={"option": typer.Option(*names, help=help, **about)})


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer that takes the options of its groups in their places, and makes the groups of them."""
    parameters = signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        command(**values)

    flat: list[Parameter] = []
    for each in parameters:
        flat += _options(groups[each.name]) if each.name in groups else [each]
    run.__signature__ = Signature([each.replace(kind=Parameter.KEYWORD_ONLY) for each in flat])  # type: ignore[attr-defined]
    return run


def _options(group: Any) -> list[Parameter]:
    """Return the fields of a group as parameters of a command."""
    hints = get_type_hints(group, include_extras=True)
    found = []
    for each in fields(group):
        hint = Annotated[hints[each.name], each.metadata["option"]] if each.metadata else hints[each.name]
        default = Parameter.empty if each.default is MISSING else each.default
        found.append(Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    return found


def _refuse_servers(engine: str | None) -> str | None:
    """Refuse engines that the command line does not run, and name what to do instead."""
    launches = {"vllm": "vllm serve MODEL", "sglang": "python -m sglang.launch_server --model-path MODEL"}
    if engine not in (None, "transformers"):
        server = f"`{launches[engine]} ...`" if engine in launches else "the engine's server"
        remedy = f"Start {server} (docs/serving.md), and then `specplug audit URL` or `specplug bench URL`"
        what = "models are run by transformers only"
        raise SettingsError.build(what, who="--engine", found=repr(engine), remedy=remedy)
    return engine


Policy = Annotated[str | None, typer.Option("--policy", help="The policy that sets draft lengths; join several by +.")]
PluginOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="PLUGIN.KEY=VALUE", help="A plug-in's own setting; repeat.")
]
OperatorKey = Annotated[
    str | None, typer.Option("--operator-key", envvar="SPECPLUG_OPERATOR_KEY", help="The operator's key, if different.")
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds within which a server must answer.")]
Raw = Annotated[bool, typer.Option("--raw", help="Send plain prompts as they are, without the model's chat template.")]


@dataclass(frozen=True)
class Drafting:
    """What drafts in the embedded engine, and how far."""

    engine: str | None = option(
        None, "Only transformers; others have servers.", "--engine", hidden=True, callback=_refuse_servers
    )
    draft: str | None = option(
        None, "Draft with this model: a folder, a model id, or a shipped one (`crosstok`).", "--draft", metavar="MODEL"
    )
    proposer: str | None = option(None, "The proposer that drafts; see `specplug list`.", "--proposer")
    policy: Policy = None
    draft_length: int | None = option(
        None, "Most draft tokens per step; 0 drafts nothing.", "--num-speculative-tokens", "-n", min=0
    )

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings that were named on the command line, and `more` that are not None.

        A model's proposer is `crosstok`; one that has it as a part, such as `hybrid`, may be named beside the model.
        """
        own = {"proposer": self.proposer, "policy": self.policy, "num_speculative_tokens": self.draft_length}
        named = flags(**{**own, **more})
        if self.draft is None:
            return named
        return {"proposer": "crosstok", "options": {"crosstok": {"model": find_model(self.draft)}}, **named}


@dataclass(frozen=True)
class Place:
    """Where the embedded engine runs."""

    device: str | None = option(None, "cpu, cuda, ...; by default a GPU if there is one.", "--device")
    dtype: str | None = option(None, "By default float32 on a CPU and bfloat16 on a GPU.", "--dtype")
    threads: int | None = option(
        None, "CPU threads; by default 1 for shipped models, else torch's default.", "--threads", min=1
    )

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of `start_engine`."""
        return asdict(self)


@dataclass(frozen=True)
class Keys:
    """The keys of a server."""

    api_key: str | None = option(None, "The server's API key.", "--api-key", envvar="OPENAI_API_KEY")
    operator_key: OperatorKey = None


@dataclass(frozen=True)
class Server(Keys):
    """How a server is reached."""

    timeout: Timeout = PATIENCE

    def client(self, url: str) -> ServerClient:
        """Return the client of a server."""
        return ServerClient(url, api_key=self.api_key, operator_key=self.operator_key, patience=self.timeout)
