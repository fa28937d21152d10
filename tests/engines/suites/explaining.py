"""`specplug explain` on an engine's server that writes a trace: inherit `ExplainSuite` and name the engine."""

from __future__ import annotations

import json
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from specplug.tools.cli.app import app
from tests.engines.server import MODEL, Server

TEXT = "def area(r):\n    return 3.14 * r * r\n\ndef area(r):\n    return"  # goes on by repeating itself


def explain(server: Server, **query: str) -> Any:
    """Return what the server's route says of a request."""
    answer = server.ask(f"/specplug/explain?{urlencode(query)}")
    assert answer.code == 200, answer.body
    return answer.json


class ExplainSuite:
    """Part of `ServerSuite`, whose fixture `server` then writes a trace."""

    fields: ClassVar[str]

    def completed(self, server: Server, fields: dict[str, Any], path: str = "completions", **more: Any) -> Any:
        given = {"prompt": TEXT} if path == "completions" else {"messages": [{"role": "user", "content": TEXT}]}
        body = {"model": MODEL, "max_tokens": 40, "temperature": 0, "seed": None, self.fields: fields, **given, **more}
        answer = server.ask(f"/v1/{path}", body)
        assert answer.code == 200, answer.body
        return answer.json

    @pytest.mark.parametrize("path", ["completions", "chat/completions"])
    def test_an_explanation_has_the_whole_text_and_what_drafted_it(self, server, path):
        answer = self.completed(server, {}, path)
        (choice,) = answer["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        run = CliRunner().invoke(app, ["explain", server.url, answer["id"], "--json"])
        assert run.exit_code == 0, run.output
        found = json.loads(run.stdout)
        assert found["text"] == text
        tokens = [token for step in found["steps"] for token in step["tokens"]]
        assert len(tokens) == answer["usage"]["completion_tokens"]
        kept = sum(source["kept"] for source in found["sources"].values())
        assert kept == sum(step["accepted"] for step in found["steps"])
        assert kept > 5
        assert all(source.startswith("ngram/") for source in found["sources"])
        assert found["steps"][0]["reason"] == "prefill"

    def test_without_an_id_the_newest_answers_are_listed(self, server):
        answers = [self.completed(server, {"specplug_enabled": enabled}) for enabled in ("true", "false")]
        run = CliRunner().invoke(app, ["explain", server.url, "--json", "--limit", "100"])
        assert run.exit_code == 0, run.output
        listed = {each["request"]: each for each in json.loads(run.stdout)["worst_drafted"]}
        drafted, plain = (next(each for name, each in listed.items() if answer["id"] in name) for answer in answers)
        assert plain["tau"] == 1.0 < drafted["tau"]
        timed = [step for step in explain(server, request=answers[1]["id"])["steps"] if step["seconds"] is not None]
        assert plain["tokens"] == sum(len(step["tokens"]) for step in timed) == plain["steps"] == len(timed)

    def test_a_request_that_takes_no_drafts(self, server):
        answer = self.completed(server, {"specplug_enabled": "false"})
        found = explain(server, request=answer["id"])
        assert found["text"] == answer["choices"][0]["text"]
        steps = answer["usage"]["completion_tokens"]
        assert found["undrafted"] == {"prefill": 1, "opted out": steps - 1}
        assert f"{steps - 1} of {steps - 1} steps had no draft, as the request takes none." in found["verdict"]

    def test_a_request_served_while_speculation_is_switched_off(self, server):
        assert server.ask("/specplug/mode", {"mode": "off"}).code == 200
        try:
            answer = self.completed(server, {})
        finally:
            assert server.ask("/specplug/mode", {"mode": "on"}).code == 200
        steps = answer["usage"]["completion_tokens"]
        found = explain(server, request=answer["id"])
        assert found["undrafted"] == {"prefill": 1, "switched off": steps - 1}
        assert found["text"] == answer["choices"][0]["text"]

    def test_a_tenant_is_told_of_its_own_requests_alone(self, server):
        name = self.completed(server, {"specplug_tenant": "victim"})["id"]
        for wanted in (name, name[:-1], name[: len(name) // 2]):
            for tenant in ("thief", "victi", "victim ", "", "*"):
                answer = server.ask(f"/specplug/explain?{urlencode({'request': wanted, 'tenant': tenant})}")
                assert answer.code == 400, answer.body
                assert "no such request in the trace" in answer.body
                assert "victim" not in answer.body.replace(f"'{wanted}'", "")
        assert explain(server, request=name, tenant="victim")["tenant"] == "victim"
        assert explain(server, request=name)["tenant"] == "victim", "an operator may see all"
