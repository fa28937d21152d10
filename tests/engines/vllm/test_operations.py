"""Operators' status, control and metrics while vLLM runs; see `OperationsSuite`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.server import Server
from tests.engines.suites.operations import (
    ACCEPTED,
    KEY,
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


class TestOperators(OperatorsSuite):
    fields = "vllm_xargs"


@pytest.mark.slow  # four processes
def test_every_api_process_speaks_for_every_engine(serve):
    """Two API processes, so that vLLM's metrics lie in files, and two engines."""
    several = serve("v1", NGRAM, anew=True, name="several", endpoints=True, api_server_count=2, data_parallel_size=2)
    assert_every_process_exports_every_engine(several, "vllm:num_requests_running")
