"""Operators' status, control and metrics while vLLM runs; see `OperationsSuite`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.server import Server
from tests.engines.suites.operations import (
    ACCEPTED,
    KEY,
    REQUEST,
    SOURCE,
    OperationsSuite,
    ask,
    assert_every_process_exports_every_engine,
    complete,
    scraped,
    value,
)
from tests.engines.suites.tenants import OperatorsSuite

NGRAM = {"proposer": "ngram", "policy": "fixed"}


@pytest.fixture(scope="module")
def control_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operator") / "control.json"


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], control_file: Path) -> Server:
    """A server on V1 with a key, a control file and vLLM's per-request counts; the routes are there by default."""
    watched = {"file": str(control_file), "poll_seconds": 0.0}
    return serve(
        "v1",
        {**NGRAM, "control": watched, "tenants": {"header": "X-Tenant"}},
        name="operated",
        api_key=KEY,
        per_request_spec_decode_metrics="detailed",
        in_process=True,
    )


class TestOperations(OperationsSuite):
    logged = r"INFO .*"

    @pytest.mark.parametrize("key", [None, "wrong", ""])
    def test_the_servers_key_guards_the_routes(self, server, key):
        assert ask(server, "/health", key=key).code == 200
        assert ask(server, "/specplug/status", key=key).code == 401
        assert ask(server, "/specplug/mode", {"mode": "off"}, key=key).code == 401
        assert self.control(server)["mode"] == "on"

    def test_status_says_what_runs_and_why(self, server):
        complete(server)
        answer = ask(server, "/specplug/status").json
        assert answer["versions"]["vllm"].startswith("0.")
        (engine,) = answer["engines"]
        assert (engine["engine"], engine["runner"], engine["max_draft_length"]) == (0, "v1", 8)
        assert engine["settings"]["proposer"] == {"value": "ngram", "origin": "--additional-config 'specplug'"}
        assert engine["settings"]["num_speculative_tokens"] == {"value": 8, "origin": "--speculative-config"}
        assert engine["settings"]["faults.host_deadline_ms"] == {"value": None, "origin": "SPECPLUG_CONFIG"}
        assert engine["settings"]["policy"]["value"] == "fixed"
        assert engine["scheduler"]["plan"]["draft_length"] in (0, 8)
        (worker,) = engine["workers"]
        assert (worker["rank"], worker["drafts"], worker["proposers"]) == (0, True, ["ngram"])
        assert set(worker["sources"]) | {"none", "grammar"} == set(worker["metrics"]["by_source"]) - {"off"}
        assert worker["metrics"]["total"]["accepted"] > 0

    def test_a_scrape_agrees_with_what_vllm_counts_per_request(self, server):
        before = scraped(server)
        mine = complete(server)["metrics"]["speculative_decoding"]
        after = scraped(server)

        def spent(name: str) -> float:
            return value(after, name, engine="0", source=SOURCE) - value(before, name, engine="0", source=SOURCE)

        assert spent("specplug_verified_tokens_total") == mine["num_draft_tokens"] > 0
        assert spent(ACCEPTED) == mine["num_accepted_draft_tokens"]
        assert spent("specplug_target_steps_total") == mine["num_spec_steps"]
        assert max(mine["per_step_drafted"]) == 8

    def test_a_stream_ends_with_what_became_of_its_drafts(self, server, plain):
        body = REQUEST | {"stream": True, "stream_options": {"include_usage": True}}
        lines = ask(server, "/v1/completions", body).body.split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == plain
        mine = chunks[-1]["metrics"]["speculative_decoding"]
        assert sum(mine["per_step_drafted"]) == mine["num_draft_tokens"] > 0
        assert sum(mine["per_step_accepted"]) == mine["num_accepted_draft_tokens"]


class TestOperators(OperatorsSuite):
    fields = "vllm_xargs"


@pytest.mark.slow  # four processes
def test_every_api_process_speaks_for_every_engine(serve):
    """Two API processes, so that vLLM's metrics lie in files, and two engines."""
    several = serve("v1", NGRAM, anew=True, name="several", endpoints=True, api_server_count=2, data_parallel_size=2)
    assert_every_process_exports_every_engine(several, "vllm:num_requests_running")


# -- without specplug --------------------------------------------------------------------------------------------------


def routes_of_a_server_without_specplug(llm: Any) -> list[Any]:
    """Ask our routes of an app whose engine has this engine's configuration."""
    import asyncio
    from types import SimpleNamespace

    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from specplug_vllm.frontend.endpoints import SpecplugEndpoints

    app, plugin = FastAPI(), SpecplugEndpoints()
    plugin.attach_router(app)
    client = SimpleNamespace(vllm_config=llm.llm_engine.vllm_config)
    asyncio.run(plugin.init_state(client, app.state, SimpleNamespace(api_key=None)))
    http = TestClient(app, "http://localhost", client=("127.0.0.1", 50000))
    answers = [
        http.get("/specplug/status"),
        http.post("/specplug/mode", json={"mode": "off"}),
        http.get("/specplug/corpora"),
    ]
    return [[answer.status_code, answer.json()["detail"]] for answer in answers]


def exported_names(llm: Any) -> list[str]:
    from prometheus_client import REGISTRY

    return [family.name for family in REGISTRY.collect() if family.name.startswith("specplug")]


def test_a_server_that_did_not_ask_says_so(engine):
    idle = engine("v1", name="idle")
    stated = "specplug is not enabled on this server; start it with flags that name it"
    assert idle.call(routes_of_a_server_without_specplug) == [[404, stated]] * 3
    assert idle.call(exported_names) == []
