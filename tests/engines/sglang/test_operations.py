"""Operators' status, control and metrics while SGLang runs; see `OperationsSuite`."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specplug.operator.access import KEY_HEADER
from tests.engines.engines import Engine, Raised
from tests.engines.plain import ids
from tests.engines.server import MODEL, Server
from tests.engines.sglang import inside
from tests.engines.sglang.drafters import set_mode, status
from tests.engines.suites.operations import (
    ADMIN,
    KEY,
    ON,
    TEXT,
    OperationsSuite,
    ask,
    assert_every_process_exports_every_engine,
    complete,
)
from tests.engines.suites.tenants import OperatorsSuite


@pytest.fixture(scope="module")
def control_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operator") / "control.json"


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], control_file: Path) -> Server:
    """A server with both of SGLang's keys, a control file and metrics."""
    faults, control = {"host_deadline_ms": None}, {"file": str(control_file), "poll_seconds": 0.0}
    settings = {"policy": "fixed", "faults": faults, "control": control, "tenants": {"header": "X-Tenant"}}
    return serve(
        "SPECPLUG",
        name="operated",
        settings=settings,
        enable_metrics=True,
        api_key=KEY,
        admin_api_key=ADMIN,
    )


class TestOperations(OperationsSuite):
    key = ADMIN
    logged = r"\[.*\] "

    def test_sglangs_own_route_takes_orders_in_numbers(self, server):
        def stated(**numbers: Any) -> bool:
            return ask(server, "/set_internal_state", {"server_args": numbers}, self.key).json == [True]

        assert stated(specplug_mode=0, specplug_num_speculative_tokens=5)
        assert (self.control(server)["mode"], self.control(server)["num_speculative_tokens"]) == ("off", 5)
        for wrong in ({"specplug_mode": 2}, {"specplug_num_speculative_tokens": -2}, {"specplug_modes": 1}):
            assert not stated(**{"specplug_num_speculative_tokens": 4, **wrong})
        assert not stated(specplug_mode=1, pp_max_micro_batch_size=-1), (
            "SGLang refuses its own part, so nothing changes"
        )
        assert (self.control(server)["mode"], self.control(server)["num_speculative_tokens"]) == ("off", 5)
        assert stated(specplug_mode=1, specplug_num_speculative_tokens=-1, pp_max_micro_batch_size=4)
        assert (self.control(server)["mode"], self.control(server)["ceiling"]) == ("on", None)
        (state,) = ask(server, "/server_info").json["internal_states"]
        assert state["pp_max_micro_batch_size"] == 4

    def test_orders_and_questions_reach_an_engine_that_is_at_work(self, server):
        """A stream that began without drafts continues with them, and its text is that of one without drafts."""
        body = {"model": MODEL, "prompt": TEXT, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        self.order(server, mode="off")
        whole = complete(server, **body)["choices"][0]["text"]
        before = self.counts(server)
        url, headers = (
            server.url + "/v1/completions",
            {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
        )
        request = urllib.request.Request(url, json.dumps(body | {"stream": True}).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as stream:
            lines = [next(stream)]
            at_first = self.counts(server)
            self.order(server, mode="on")
            lines += stream
        after = self.counts(server)
        assert before["emitted"] < at_first["emitted"] < after["emitted"], "asked while the request ran"
        assert before["accepted"] == at_first["accepted"] < after["accepted"]
        chunks = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: {")]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == whole

    def test_status_says_what_runs_and_why(self, server):
        complete(server)
        answer = ask(server, "/specplug/status", key=self.key).json
        assert answer["versions"]["sglang"].startswith("0.")
        (engine,) = answer["engines"]
        assert (engine["engine"], engine["overlap"], engine["trees"], engine["max_draft_length"]) == (0, True, False, 8)
        assert engine["settings"]["proposer"] == {"value": "ngram", "origin": "default"}
        assert engine["settings"]["faults.host_deadline_ms"] == {"value": None, "origin": "SPECPLUG_CONFIG"}
        draft_length = engine["settings"]["num_speculative_tokens"]
        assert (draft_length["value"], "--speculative-num-draft-tokens" in draft_length["origin"]) == (8, True)
        assert engine["scheduler"]["plan"]["draft_length"] in (0, 8)
        (worker,) = engine["workers"]
        assert (worker["rank"], worker["drafts"], worker["device"], worker["proposers"]) == (0, True, "cpu", ["ngram"])
        assert {*worker["sources"], "none", "grammar"} == set(worker["metrics"]["by_source"]) - {"off"}
        assert worker["metrics"]["total"]["accepted"] > 0

    def test_sglangs_own_server_info_holds_the_status_for_operators(self, server):
        (state,) = ask(server, "/server_info").json["internal_states"]
        assert "specplug" not in state, "a client's key is enough for the rest of it"
        (state,) = ask(server, "/server_info", **{KEY_HEADER: ADMIN}).json["internal_states"]
        reported, requested = state["specplug"], self.status(server)
        assert reported == requested
        assert state["speculative_algorithm"] == "SPECPLUG", "beside what SGLang tells itself"

    def test_metrics_stand_beside_sglangs_own(self, server):
        body = ask(server, "/metrics").body
        assert body.count("# TYPE sglang:num_running_reqs gauge") == body.count("# TYPE specplug_mode gauge") == 1


class TestOperators(OperatorsSuite):
    fields = "custom_params"


@pytest.mark.slow
def test_every_tokenizer_process_speaks_for_every_engine(serve):
    several = serve(
        "SPECPLUG",
        anew=True,
        name="several",
        environment={
            "SGLANG_CPU_OMP_THREADS_BIND": "0|0",  # else as many NUMA nodes are wanted as engines
            "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "300",  # else tokenizers that start slowly are killed
        },
        enable_metrics=True,
        tokenizer_worker_num=2,
        dp_size=2,
    )
    assert_every_process_exports_every_engine(several, "sglang:num_running_reqs")


# -- offline -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(engine: Callable[..., Engine]) -> Iterator[Engine]:
    """An `Engine` with specplug's own settings."""
    offline = engine("SPECPLUG", name="specplug")
    yield offline
    offline.call(set_mode, **ON)


def generated(offline: Engine) -> tuple[list[int], int]:
    """Return the answer to the prompt, and how much of it was drafted."""
    (answer,) = offline.call(inside.generate, prompts=[ids(TEXT)], params={"max_new_tokens": 24})
    return answer["token_ids"], answer["meta"]["spec_num_correct_drafts"]


def test_an_engine_is_requested_and_reported_by_functions(offline):
    plain = generated(offline)[0]
    for order, drafts in (({"mode": "off"}, False), ({"num_speculative_tokens": 3}, False), ({"mode": "on"}, True)):
        (state,) = offline.call(set_mode, **order)
        assert state == offline.call(status)["scheduler"]["control"]
        text, accepted = generated(offline)
        assert (text, accepted > 0) == (plain, drafts)


def test_an_engine_says_what_is_wrong_with_an_order(offline):
    with pytest.raises(Raised, match=r"SettingsError: .*Did you mean 'off'") as raised:
        offline.call(set_mode, mode="of")
    assert "set_mode" in raised.value.text
    assert offline.call(status)["scheduler"]["control"]["mode"] == "on"


# -- without specplug --------------------------------------------------------------------------------------------------


def routes_without_specplug(engine: Any) -> list[str]:
    """Let a server of this engine's arguments be made, as far as specplug has a part in it; return what is ours."""
    from sglang.srt.entrypoints.http_server import app

    from specplug_sglang.frontend import http

    http.prepare_front(None, engine.tokenizer_manager)
    http.export_metrics(None, app)
    ours = [path for route in app.routes if "specplug" in (path := getattr(route, "path", ""))]
    return ours + [name for name in ("specplug.operator.routes", "specplug.operator.exporter") if name in sys.modules]


def test_an_engine_that_did_not_ask_has_none_of_it(baseline):
    assert baseline.call(routes_without_specplug) == []
    with pytest.raises(Raised, match=r"EngineError: .*specplug does not draft"):
        baseline.call(status)
    with pytest.raises(Raised, match=r"EngineError: .*rejected the order"):
        baseline.call(set_mode, mode="off")
