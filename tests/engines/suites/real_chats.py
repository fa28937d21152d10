"""A real language model behind a real server, as people use it: inherit `RealChats` and give the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from benchmarks.real_models import prompts
from specplug.tools.audit.server import connect
from specplug.tools.cli.app import app
from specplug.tools.client.http import ServerClient
from tests.engines.server import Server

CHATS = 3
"""How many prompts of several kinds are answered: each takes seconds."""
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

CALL = '<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{}"}}}}\n</tool_call>'

MESSAGES = [
    {"role": "system", "content": "You answer with one call of the tool get_weather, and nothing else."},
    {"role": "user", "content": "What is the weather in Oslo?"},
    {"role": "assistant", "content": CALL.format("Oslo")},
    {"role": "user", "content": "What is the weather in Rome?"},
    {"role": "assistant", "content": CALL.format("Rome")},
    {"role": "user", "content": "What is the weather in Lima?"},
]
"""A chat whose next answer even a small model knows how to write; its template has no place for tools."""


def accepted_drafts(server: Server) -> int:
    """Return the draft tokens that a server has accepted so far."""
    with connect(ServerClient(server.url)) as side:
        found = side.draft_counts()
    assert found is not None
    return found.accepted


class RealChats:
    """The engine's tests give the fixture `real_server`: specplug on SmolLM2, with the parser of Hermes' tool calls.

    Attributes:
        arguments: key of a chat's body under which the engine passes on specplug's fields.
    """

    arguments: str

    def test_greedy_chats_are_those_without_speculation(self, real_server: Server, tmp_path: Path):
        chats = [" ".join(one["content"] for one in prompt.messages) for prompt in prompts.read(each=1)][:CHATS]
        file = tmp_path / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": chat}) + "\n" for chat in chats))
        shape = ("--check", "greedy", "--max-tokens", "32", "--concurrency", "4", "--json")
        result = CliRunner().invoke(app, ["audit", real_server.url, "--prompts", str(file), *shape])
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        (finding,) = report["findings"]
        assert finding["figures"]["outputs"] == 2 * len(chats)
        assert finding["drafts"]["accepted"] > 20

    def test_a_tool_call_is_parsed_as_without_speculation(self, real_server: Server):
        """Streamed and whole; a step brings several tokens of the call."""
        client = real_server.client()
        given: dict[str, Any] = {"model": real_server.model, "messages": MESSAGES, "max_tokens": 48, "temperature": 0.0}
        off = {"extra_body": {self.arguments: {"specplug_enabled": False}}}
        calls = []
        accepted = [accepted_drafts(real_server)]
        for more in ({}, off):
            whole = client.chat.completions.create(**given, tools=[TOOL], tool_choice="auto", **more)
            (called,) = whole.choices[0].message.tool_calls
            calls.append((called.function.name, called.function.arguments))
            parts = client.chat.completions.create(**given, tools=[TOOL], tool_choice="auto", stream=True, **more)
            deltas = [
                call.function for part in parts for choice in part.choices for call in choice.delta.tool_calls or ()
            ]
            names, arguments = ("".join(getattr(one, name) or "" for one in deltas) for name in ("name", "arguments"))
            calls.append((names, arguments))
            accepted.append(accepted_drafts(real_server))
        assert accepted[0] < accepted[1] == accepted[2]
        assert {name for name, _ in calls} == {"get_weather"}
        assert all(json.loads(arguments) == {"city": "Lima"} for _, arguments in calls), calls
