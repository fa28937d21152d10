"""A real SGLang server, called by the `openai` client as users do, and by its own ``/generate``; see `ServerSuite`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.engines.server import Server
from tests.engines.suites.explaining import ExplainSuite
from tests.engines.suites.server import REFERENCE, REGEX, SETTINGS, Answer, ServerSuite
from tests.engines.suites.soak import SoakSuite
from tests.engines.suites.tenants import TenantsSuite

FAULTS = {"faults": {"host_deadline_ms": None, "max_consecutive": 2, "cooldown_steps": 4}}


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    settings = {**SETTINGS, **FAULTS, "trace": {"path": str(tmp_path_factory.mktemp("traced") / "trace.jsonl")}}
    return serve("SPECPLUG", settings=settings, name="mixed")


@pytest.fixture(scope="module")
def baseline(serve: Callable[..., Server]) -> Server:
    return serve(name="baseline server")


class TestServer(ServerSuite):
    fields = "custom_params"
    started = "chains, overlap, up to 8 requests (limited by --max-running-requests)"
    values = (
        {},
        {"specplug_enabled": False},
        {"specplug_num_speculative_tokens": 2},
        {"specplug_proposer": "oracle", "specplug_references": REFERENCE},
        {"specplug_references": REFERENCE, "other": [1, "a"]},
        {"specplug": {"references": [{"text": REFERENCE, "name": "area"}], "tenant": "a"}},
        {"specplug": json.dumps({"references": {"token_ids": [5, 6, 7, 8, 9]}})},
        {"specplug_prediction": {"type": "content", "content": REFERENCE}, "specplug_tenant": "b"},
        {"specplug_proposer": "raises"},
        {"specplug_proposer": "garbage"},
    )
    kinds = ("chat", "completion", "generate")
    twice = 7
    regex: ClassVar[dict[str, Any]] = {"regex": REGEX}

    async def ask(self, client: Any, given: dict[str, Any]) -> Answer:
        """Send one request; SGLang's own endpoint, by the HTTP client inside the `openai` client."""
        if given["kind"] != "generate":
            return await super().ask(client, given)
        url = str(client.base_url).removesuffix("v1/") + "generate"
        found: dict[int, tuple[str, str | None]] = {}
        async with client._client.stream("POST", url, json=generate_body(given), timeout=300) as response:
            assert response.status_code == 200, await response.aread()
            if not given["stream"]:
                whole = json.loads(await response.aread())
                pieces = whole if isinstance(whole, list) else [whole]
                return [(piece["text"], piece["meta_info"]["finish_reason"]["type"]) for piece in pieces]
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    piece = json.loads(line.removeprefix("data: "))
                    assert "error" not in piece, piece
                    reason = piece["meta_info"]["finish_reason"]
                    found[piece.get("index", 0)] = (piece["text"], reason and reason["type"])
        return [found[index] for index in sorted(found)]

    def bodies(self, fields: dict[str, Any], stream: bool) -> list[tuple[str, dict[str, Any]]]:
        """Return requests of SGLang's own endpoint, too, and of several texts at once."""
        (path, body), chat = super().bodies(fields, stream)
        params = {"custom_params": fields}
        return [
            (path, body),
            (path, {**body, "prompt": ["x", "y"], "n": 2}),
            chat,
            ("/generate", {"text": "x", "stream": stream, "sampling_params": params}),
            ("/generate", {"text": ["x", "y"], "stream": stream, "sampling_params": [{}, params]}),
        ]


class TestTenants(TenantsSuite):
    fields = "custom_params"

    def test_without_an_operators_key_this_machine_is_answered_and_nobody_else(self, server):
        assert_guarded(server, 403, {"X-Forwarded-For": "127.0.0.1"}, {})


ROUTES = {"/specplug/status": None, "/specplug/mode": {"mode": "on"}, "/specplug/corpora": None}
"""Operators' routes, and what is sent there."""


def assert_guarded(server: Server, code: int, client: dict[str, str], operator: dict[str, str]) -> None:
    """A client is answered with a code, where an operator is served, on specplug's routes and on SGLang's own that show
    or change what is an operator's.  SGLang's own orders keep their own access rules.
    """

    def order(headers: dict[str, str], **numbers: int) -> int:
        return server.ask("/set_internal_state", {"server_args": numbers}, headers).code

    def state(headers: dict[str, str]) -> dict[str, Any]:
        (found,) = server.ask("/server_info", headers=headers).json["internal_states"]
        return dict(found)

    for headers, codes in ((client, {code}), (operator, {200, 400})):  # 400 where there is no store of corpora
        assert {server.ask(path, body, headers).code for path, body in ROUTES.items()} <= codes
    before = state(operator)["specplug"]["scheduler"]["control"]
    assert "specplug" not in state(client)
    assert order(client, specplug_mode=0) == order(client, specplug_num_speculative_tokens=0) == code
    assert state(operator)["specplug"]["scheduler"]["control"] == before
    assert order(client, pp_max_micro_batch_size=4) == order(operator, specplug_mode=1) == 200


class TestExplain(ExplainSuite):
    fields = "custom_params"


class TestSoak(SoakSuite):
    name = "sglang"


NAMES = {
    "max_tokens": "max_new_tokens",
    "seed": "sampling_seed",
    "temperature": "temperature",
    "n": "n",
    "stop": "stop",
}
"""OpenAI's names of sampling parameters, and SGLang's."""


def generate_body(given: dict[str, Any]) -> dict[str, Any]:
    """Return what ``/generate`` takes."""
    params = {own: given[name] for name, own in NAMES.items() if given.get(name) is not None}
    if given["fields"]:
        params["custom_params"] = given["fields"]
    return {"text": given["text"], "stream": given["stream"], "sampling_params": params}
