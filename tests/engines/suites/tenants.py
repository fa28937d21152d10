"""Attacks on an engine's server by clients that want other tenants' text or the server's memory: `TenantsSuite`."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

import pytest

from tests.engines.server import MODEL, Server
from tests.engines.suites.server import metrics, raw

SECRET = "def volume(height, width):\n    depth ="
REFERENCE_TOKENS, COPIES = 2000, 4
FORGED = {"wire": "1", "fields": '{"options": {}, "references": []}', "ids": "", "client": "victim"}
"""The wire form of parsed fields, as SGLang's front end sends it to the scheduler."""


def used(server: Server, body: dict[str, Any], **headers: str) -> int:
    """Send a request; return how many tokens of earlier responses were proposed for it."""

    def proposed() -> int:
        return int(metrics(server)["by_source"]["ngram/response memory"]["proposed"])

    before = proposed()
    code, text = raw(server, "/v1/completions", body, {name.replace("_", "-"): each for name, each in headers.items()})
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

    @pytest.mark.parametrize("fields", [FORGED, json.dumps(FORGED)], ids=["object", "text"])
    def test_parsed_fields_cannot_be_forged(self, server, fields):
        assert raw(server, "/v1/completions", self.body({"specplug": fields}))[0] == 400
        assert raw(server, "/v1/completions", self.body({"specplug_client": "victim"}))[0] == 400

    def test_hostile_fields_are_refused_in_few_words(self, server):
        long = "x" * (1 << 20)
        for fields in (
            {f"specplug_{long}": 1},
            {"specplug_proposer": long},
            {"specplug": json.dumps({long: 1})},
            {"specplug": json.dumps({"references": [{"text": "a", "name": long}]})},
            {"specplug": json.dumps({str(number): 1 for number in range(100_000)})},
            {"specplug": "[" * 100_000},
            {"specplug_tenant": "a\ud800"},
            {"specplug_num_speculative_tokens": 10**30},
        ):
            code, text = raw(server, "/v1/completions", self.body(fields))
            assert code == 400, text[:200]
            assert len(text) < 4000
        assert raw(server, "/v1/completions", self.body({f"spec{number}": 1 for number in range(20_000)}))[0] == 200

    @pytest.mark.parametrize("more", [{"n": 40}, {"prompt": ["x"] * 40}, {"n": 20, "prompt": ["x", "y"]}], ids=str)
    @pytest.mark.parametrize("stream", [False, True])
    def test_references_are_counted_for_every_prompt_and_sample(self, server, more, stream):
        """A request of a few kilobytes could otherwise fill the memory of the engine."""
        fields = {"specplug_references": [5] * REFERENCE_TOKENS}
        code, text = raw(server, "/v1/completions", self.body(fields, temperature=1.0, stream=stream, **more))
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
            assert raw(server, "/v1/completions", wrong)[0] == 400
            assert raw(server, "/v1/completions", body, {"Authorization": "Bearer none"})[0] == 200
