"""`specplug audit` of one real server with its parsers, as a user runs it: inherit `ChatSuite` and give the server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specplug.tools.cli.app import app
from tests.engines import scripted
from tests.engines.server import Server

CHECKS = ("greedy", "tools", "auto-tools", "reasoning")


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the model that speaks scripts."""
    folder: Path = tmp_path_factory.mktemp("scripted")
    return scripted.save(folder)


class ChatSuite:
    """The engine's tests give the fixture `scripted_server`: specplug's ngram on `scripted_model`, with parsers."""

    def test_tool_calls_and_reasoning_are_parsed_as_without_speculation(self, scripted_server: Server):
        """The control is the same server with speculation switched off; answers repeat, so all of them are drafted."""
        named = [argument for check in CHECKS for argument in ("--check", check)]
        result = CliRunner().invoke(app, ["audit", scripted_server.url, "--limit", "6", "--json", *named])
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        found = {finding["check"]: finding for finding in report["findings"]}
        assert {name: finding["status"] for name, finding in found.items()} == dict.fromkeys(CHECKS, "passed")
        assert all(finding["drafts"]["accepted"] > 20 for finding in found.values())
        assert found["auto-tools"]["figures"]["tool_calls"] == found["auto-tools"]["figures"]["chats"] == 12
        assert report["control"].endswith("speculation switched off")
        engines = json.loads(scripted_server.get("/specplug/status"))["engines"]
        assert engines[0]["scheduler"]["control"]["mode"] == "on"
