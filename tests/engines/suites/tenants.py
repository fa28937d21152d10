"""Attacks on an engine's server by clients that want other tenants' text or the server's memory: `TenantsSuite`."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any, ClassVar

import pytest

from tests.engines.server import MODEL, Server
from tests.engines.suites.operations import ACCEPTED, ask, scraped, value
from tests.engines.suites.server import metrics

REMEMBERED = "ngram/response memory"
SECRET = "def volume(height, width):\n    depth ="
REFERENCE_TOKENS = 2000
COPIES = 4


def used(server: Server, body: dict[str, Any], **headers: str) -> int:
    """Send a request; return how many tokens of earlier responses were proposed for it."""

    def proposed() -> int:
        return int(metrics(server)["by_source"][REMEMBERED]["proposed"])

    before = proposed()
    code, text = server.ask("/v1/completions", body, {name.replace("_", "-"): each for name, each in headers.items()})
    assert code == 200, text
    return proposed() - before


class TenantsSuite:
    """Part of `ServerSuite`: the fixture `server` has its `SETTINGS`, and no key."""

    fields: ClassVar[str]

    def body(self, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"model": MODEL, "prompt": SECRET, "max_tokens": 24, "temperature": 0, self.fields: fields, **more}

    def test_no_trick_drafts_from_another_clients_responses(self, server):
        """Each trick has a key of its own, because a client may draft from its own earlier responses."""
        assert used(server, self.body({}), Authorization="Bearer victim") == 0
        tricks: list[tuple[dict[str, Any], dict[str, str]]] = [
            ({}, {}),
            ({"specplug_tenant": "victim"}, {}),
            ({"specplug_store": "true"}, {"X_Specplug_Client": "victim"}),
            ({"specplug_proposer": "ngram"}, {"X_Forwarded_User": "victim"}),
            ({"specplug_prediction": "x"}, {"Cookie": "authorization=Bearer victim"}),
            ({}, {"X_Api_Key": "Bearer victim"}),
            ({}, {"Api_Key": "victim"}),
            ({}, {"X_Tenant": "victim"}),
        ]
        for number, (fields, headers) in enumerate(tricks):
            found = used(server, self.body(fields), Authorization=f"Bearer thief {number}", **headers)
            assert found == 0, (fields, headers)
        assert used(server, self.body({}, cache_salt="victim"), Authorization="Bearer thief") == 0
        assert used(server, self.body({"specplug_store": "false"}), Authorization="Bearer victim") == 0
        assert used(server, self.body({}), Authorization="Bearer victim") > 0, "there was something to find"

    @pytest.mark.parametrize("more", [{"n": 40}, {"prompt": ["x"] * 40}, {"n": 20, "prompt": ["x", "y"]}], ids=str)
    @pytest.mark.parametrize("stream", [False, True])
    def test_references_are_counted_for_every_prompt_and_sample(self, server, more, stream):
        """A request of a few kilobytes could otherwise fill the memory of the engine."""
        fields = {"specplug_references": [5] * REFERENCE_TOKENS}
        code, text = server.ask("/v1/completions", self.body(fields, temperature=1.0, stream=stream, **more))
        assert code == 429, text
        assert "this client hold too many reference tokens; found 80000" in text
        assert "at most 40000, limits.max_client_reference_tokens" in text

    def test_references_of_requests_that_ended_are_not_counted(self, server):
        """Whether they were served, refused, or left by their clients."""
        body = self.body({"specplug_references": [5] * REFERENCE_TOKENS}, n=COPIES, temperature=1.0, max_tokens=1)

        async def leave() -> None:
            async with server.async_client() as client:
                arguments = {name: each for name, each in body.items() if name != self.fields} | {"max_tokens": 200}
                own = {self.fields: body[self.fields]}
                stream = await client.completions.create(**arguments, stream=True, extra_body=own)
                async for _ in stream:
                    break
                await stream.close()

        for _ in range(6):
            asyncio.run(leave())
        for number in range(6):
            wrong = {**body, "max_tokens": -1} if number % 2 else {**body, "prompt": [5] * 2000}
            assert server.ask("/v1/completions", wrong).code == 400
            assert server.ask("/v1/completions", body, {"Authorization": "Bearer none"}).code == 200


ROUTES = ("/specplug/status", "/specplug/mode", "/specplug/corpora", "/specplug/explain")
SPELLINGS = ("{}", "{}/", "//{}", "{}?key=sesame", "{};x", "{}%2F", "/x/..{}", "/.{}", "/health/../{}")
DISGUISES: list[dict[str, str]] = [
    {},
    {"X-Forwarded-For": "127.0.0.1"},
    {"Authorization": "Basic c2VzYW1l"},
    {"Proxy-Authorization": "Bearer sesame"},
    {"Cookie": "Authorization=Bearer sesame"},
]
"""Others are tested without a server, in tests/operator/test_access.py."""


def answered(server: Server, method: str, path: str, headers: dict[str, str]) -> int:
    """Send a request with a path as it is, which other clients would normalise; return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.running().port, timeout=30)
    try:
        connection.request(
            method, path, body=b'{"mode": "off"}' if method in ("POST", "PUT") else None, headers=headers
        )
        return connection.getresponse().status
    finally:
        connection.close()


class OperatorsSuite:
    """The fixture `server` is that of `OperationsSuite`, with `tenants.header` "X-Tenant"."""

    fields: ClassVar[str]

    def sent(self, server: Server, fields: dict[str, Any], tenant: str | None = None) -> tuple[int, str]:
        """Send the request of `TenantsSuite` with the server's key."""
        headers = {"Authorization": "Bearer sesame"} | ({} if tenant is None else {"X-Tenant": tenant})
        body = {"model": MODEL, "prompt": SECRET, "max_tokens": 24, "temperature": 0, self.fields: fields}
        return server.ask("/v1/completions", body, headers)

    def test_no_spelling_and_no_header_opens_a_route(self, server):
        opened = [
            (method, path, headers)
            for route in ROUTES
            for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "get")
            for path in {spelling.format(route) for spelling in SPELLINGS} | {route.upper(), route.title()}
            for headers in (DISGUISES if path == route else DISGUISES[:1])
            if answered(server, method, path, headers) < 300
        ]
        assert opened == []

    def test_the_server_assigns_tenants_and_clients_do_not(self, server):
        for fields in ({"specplug_tenant": "acme"}, {"specplug": json.dumps({"tenant": "acme"})}):
            code, text = self.sent(server, fields, "other")
            assert code == 400, text
            assert "this server assigns tenants" in text
            assert "the header 'X-Tenant' gives the tenant" in text
        code, text = self.sent(server, {}, "a\x1fb")
        assert code == 400, text

    def test_an_assigned_tenant_drafts_from_its_own_responses_alone(self, server):
        def remembered(tenant: str | None) -> int:
            before = value(scraped(server), ACCEPTED, engine="0", source=REMEMBERED)
            assert self.sent(server, {}, tenant)[0] == 200
            return int(value(scraped(server), ACCEPTED, engine="0", source=REMEMBERED) - before)

        assert [remembered(tenant) for tenant in ("acme", "other", None)] == [0, 0, 0]
        assert all(remembered(tenant) > 0 for tenant in ("other", "acme", None))

    def test_names_of_clients_are_neither_labels_nor_lines(self, server):
        name = "hostile-name\nFORGED by a client"
        for fields in (
            {"specplug_proposer": name},
            {"specplug_corpora": [name]},
            {"specplug_documents": [name]},
            {f"specplug_{name}": 1},
            {"specplug-reference\nFORGED": 1},  # resembles a field, which is logged
            {"specplug": json.dumps({"references": [{"text": "a", "name": name}]})},
        ):
            assert self.sent(server, fields)[0] in (200, 400)
        assert "hostile-name" not in ask(server, "/metrics").body
        lines = server.log().splitlines()
        assert any(r"specplug-reference\nFORGED" in line for line in lines)
        assert not any(line.startswith("FORGED") for line in lines)
