"""The two sides of a benchmark: one server with speculation and without, or two servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specplug.errors import EngineError
from specplug.tools.client.answers import ServedModels, ServerStatus
from specplug.tools.client.http import Refused, ServerClient

_ABSENT = (404, 405, 501)
"""Statuses with which servers without specplug answer a request for its status."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared: requests to a server, with further fields in their bodies.

    `status` is the server's before the run; None without specplug.
    """

    label: str
    server: ServerClient
    model: str
    fields: Mapping[str, Any]
    status: ServerStatus | None

    def about(self) -> dict[str, Any]:
        """Return what the side is, ready for JSON."""
        return {"label": self.label, "url": self.server.url, "versions": self.status.versions if self.status else {}}


async def sides_of(servers: Sequence[ServerClient], model: str | None) -> tuple[Side, Side]:
    """Return one server with speculation and without, or two servers, the first of which is tested.

    A server that is down or has no `/v1/models`, a single one without specplug or whose operator allows no drafts, and
    two that serve different models raise `EngineError`.
    """
    if len(servers) == 2:
        tested, baseline = [await _connect(server, server.url, model) for server in servers]
        if tested.model != baseline.model:
            raise EngineError.build(
                "the servers do not serve the same model",
                who="specplug bench",
                found=f"{tested.model} at {tested.label}, {baseline.model} at {baseline.label}",
                remedy="Start both with the same model and the same --served-model-name",
            )
        return tested, baseline
    [server] = servers
    tested = await _connect(server, "speculation on", model)
    if tested.status is None:
        raise EngineError.build(
            "the server runs without specplug",
            who=server.url,
            found="no /specplug/status",
            remedy="Start it with specplug (docs/serving.md), or compare it: specplug bench URL_WITH_SPECPLUG URL",
        )
    if tested.status.mode == "off":
        raise EngineError.build(
            "the operator has switched speculation off",
            who=server.url,
            remedy='Switch it on: POST {"mode": "on"} to /specplug/mode',
        )
    if all(engine.scheduler.control.ceiling == 0 for engine in tested.status.engines):
        raise EngineError.build(
            "the operator allows no draft tokens",
            who=server.url,
            found="num_speculative_tokens is 0",
            remedy='Lift the limit: POST {"num_speculative_tokens": null} to /specplug/mode',
        )
    return tested, replace(tested, label="speculation off", fields=_fields(tested.status, enabled=False))


async def _connect(server: ServerClient, label: str, wanted: str | None) -> Side:
    try:
        models = [model.id for model in (await server.ask(ServedModels, "GET", "/v1/models")).data]
    except Refused as error:
        remedy = "Give the address of a vLLM or SGLang server, without a path"
        raise EngineError.build("no models are listed", who=server.url, found=error, remedy=remedy) from error
    if wanted not in (None, *models):
        raise EngineError.build("no such model", who=server.url, found=wanted, expected=" or ".join(models))
    try:
        status = await server.status()
    except Refused as error:
        if error.status not in _ABSENT:
            raise
        return Side(label, server, wanted or models[0], {}, None)
    return Side(label, server, wanted or models[0], _fields(status), status)


def _fields(status: ServerStatus, **given: bool) -> dict[str, Any]:
    """Return specplug's fields for the body of a request: `store: false`, and those given."""
    fields = {f"specplug_{name}": int(value) for name, value in {"store": False, **given}.items()}
    return {"custom_params" if "sglang" in status.versions else "vllm_xargs": fields}
