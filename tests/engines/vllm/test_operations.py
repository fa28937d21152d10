"""What operators see and say while a server runs."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.server import MODEL, Server

TEXT = "def area(r):\n    return 3.14 * r * r\n\ndef area(r):\n    return"  # goes on by repeating itself
NGRAM = {"proposer": "ngram", "policy": "fixed"}
REQUEST = {"model": MODEL, "prompt": TEXT, "max_tokens": 24, "temperature": 0}
KEY = "sesame"
ACCEPTED = "specplug_accepted_tokens_total"
ON = {"mode": "on", "num_speculative_tokens": None}


class Answer:
    """Status code and body of an HTTP answer."""

    def __init__(self, code: int, body: str) -> None:
        self.code, self.body = code, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return self.json["error"]["message"]


def ask(server: Server, path: str, body: Any = None, key: str | None = KEY) -> Answer:
    """GET, or POST `body`: JSON, or bytes as they are."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=60) as answer:
            return Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read().decode())


def complete(server: Server, **fields: Any) -> dict[str, Any]:
    """Return the answer to one greedy completion."""
    answer = ask(
        server, "/v1/completions", {"model": MODEL, "prompt": TEXT, "max_tokens": 24, "temperature": 0} | fields
    )
    assert answer.code == 200, answer.body
    return answer.json


def drafted(answer: dict[str, Any]) -> list[int]:
    """Return how many draft tokens each step of a request verified; steps without any are left out."""
    return answer["metrics"]["speculative_decoding"]["per_step_drafted"] or []


def text(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["text"]


def control(server: Server) -> dict[str, Any]:
    """Return the operator's control as the (one) engine holds it."""
    return ask(server, "/specplug/status").json["engines"][0]["scheduler"]["control"]


def scraped(server: Server) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return specplug's samples on /metrics by name and labels."""
    lines = ask(server, "/metrics").body.splitlines()
    found = [re.fullmatch(r"(specplug_\w+)\{(.*)\} (\S+)", line) for line in lines if not line.startswith("#")]
    return {(m[1], frozenset(re.findall(r'(\w+)="([^"]*)"', m[2]))): float(m[3]) for m in found if m}


def value(samples: dict[Any, float], name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def own_text(samples: dict[Any, float]) -> str:
    """Return the source that drafts from a request's own text: the only one that drafts here."""
    counts = {dict(labels)["source"]: n for (name, labels), n in samples.items() if name == ACCEPTED}
    return max(counts, key=lambda source: counts[source])


@pytest.fixture(scope="module")
def control_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operator") / "control.json"


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], control_file: Path) -> Server:
    """A server on V1 with a key, a control file and vLLM's per-request counts; the routes are there without a word."""
    watched = {"file": str(control_file), "poll_seconds": 0.0}
    return serve(
        "v1",
        {**NGRAM, "control": watched},
        name="operated",
        api_key=KEY,
        per_request_spec_decode_metrics="detailed",
    )


@pytest.fixture(scope="module")
def plain(server: Server) -> str:
    """The text as it is without drafts."""
    assert ask(server, "/specplug/mode", {"mode": "off"}).code == 200
    return text(complete(server))


@pytest.fixture(autouse=True)
def _start_state(request: pytest.FixtureRequest, control_file: Path):
    """Leave the server as it started."""
    yield
    control_file.unlink(missing_ok=True)
    if "server" in request.fixturenames:
        ask(request.getfixturevalue("server"), "/specplug/mode", ON)


@pytest.mark.parametrize("key", [None, "wrong", ""])
def test_the_servers_key_guards_the_routes(server, key):
    assert ask(server, "/health", key=key).code == 200
    assert ask(server, "/specplug/status", key=key).code == 401
    assert ask(server, "/specplug/mode", {"mode": "off"}, key=key).code == 401
    assert control(server)["mode"] == "on"


def test_off_and_on_take_effect_at_once_and_change_no_text(server, plain):
    ask(server, "/specplug/mode", ON)
    assert max(drafted(complete(server))) == 8
    assert ask(server, "/specplug/mode", {"mode": "off"}).json == {
        "engines": [
            {
                "mode": "off",
                "num_speculative_tokens": None,
                "ceiling": 0,
                "set_by": "request",
                "file": control(server)["file"],
                "file_error": None,
            }
        ]
    }
    off = complete(server)
    assert drafted(off) == []
    ask(server, "/specplug/mode", {"mode": "on"})
    on = complete(server)
    assert max(drafted(on)) == 8
    assert text(on) == text(off) == plain


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_limit_cuts_every_draft(server, plain, limit):
    ask(server, "/specplug/mode", {"num_speculative_tokens": limit})
    answer = complete(server)
    assert max(drafted(answer), default=0) == limit
    assert text(answer) == plain


def test_a_limit_above_the_servers_draft_length_widens_nothing(server):
    assert ask(server, "/specplug/mode", {"num_speculative_tokens": 99}).json["engines"][0]["ceiling"] == 99
    assert max(drafted(complete(server))) == 8


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"mode": "of"}, "bad value for key 'mode'; found 'of'; expected 'on' or 'off'. Did you mean 'off'?"),
        ({"mode": "off", "num_speculative_tokens": -1}, "found -1; expected greater than or equal to 0"),
        ({"num_speculative_tokens": "4"}, "found '4'; expected a valid integer"),
        ({"modes": "off"}, "unknown key 'modes'; found 'off'. Did you mean 'mode'?"),
        ([], "malformed order; found []; expected a JSON object"),
        ({}, "the order is empty; expected mode, num_speculative_tokens, or both"),
        (b"off", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b'{"mode": ' + b"[" * 600 + b"]" * 600 + b"}", "bad value for key 'mode'"),
    ],
)
def test_a_bad_order_is_a_400_that_says_why_and_changes_nothing(server, body, what):
    answer = ask(server, "/specplug/mode", body)
    assert answer.code == 400
    assert what in answer.error
    assert control(server)["mode"] == "on"


def test_the_control_file_is_obeyed_between_steps(server, plain, control_file):
    def write(stated: str) -> None:
        beside = control_file.with_suffix(".new")
        beside.write_text(stated)
        os.replace(beside, control_file)

    write('{"mode": "off"}')
    off = complete(server)
    assert (drafted(off), text(off)) == ([], plain)
    assert control(server)["set_by"] == "control file"
    write('{"num_speculative_tokens": 2}')
    assert max(drafted(complete(server))) == 2
    write('{"num_speculative_tokens": ')
    assert max(drafted(complete(server))) == 2
    assert str(control_file) in control(server)["file_error"]
    ask(server, "/specplug/mode", {"num_speculative_tokens": 5})  # the last change wins
    assert max(drafted(complete(server))) == 5
    control_file.unlink()
    assert max(drafted(complete(server))) == 8
    log = server.running().log.read_text()
    assert log.count("cannot read the control file") == 1
    assert re.search(r"INFO .*speculation: mode on, at most 2 draft tokens, by control file", log), (
        "what was changed stands in vLLM's own log"
    )


def test_status_says_what_runs_and_why(server):
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
    assert set(worker["sources"]) | {"none", "grammar"} == set(worker["metrics"]["by_source"])
    assert worker["metrics"]["total"]["accepted"] > 0


def test_a_scrape_shows_the_newest_counts_of_all_sources(server):
    before = scraped(server)
    answer = complete(server)
    after = scraped(server)
    mine = answer["metrics"]["speculative_decoding"]
    source = next(
        dict(labels)["source"] for name, labels in after if "own text" in str(labels) or "ngram" in str(labels)
    )

    def spent(name: str) -> float:
        return value(after, name, engine="0", source=source) - value(before, name, engine="0", source=source)

    assert spent("specplug_verified_tokens_total") == mine["num_draft_tokens"] > 0
    assert spent(ACCEPTED) == mine["num_accepted_draft_tokens"]
    assert spent("specplug_target_steps_total") == mine["num_spec_steps"]
    reported = ask(server, "/specplug/status").json["engines"][0]["workers"][0]["metrics"]["by_source"]
    for name, counts in reported.items():
        for field, metric in {"emitted": "emitted_tokens", "target_steps": "target_steps"}.items():
            assert value(after, f"specplug_{metric}_total", engine="0", source=name) == counts[field]
    position = value(after, "specplug_position_accepted_tokens_total", engine="0", source=source, position="7")
    assert position == reported[source]["accepted_at"][7] > 0


def test_a_scrape_shows_the_operators_word(server):
    for order, mode, ceiling in ((ON, 1, 8), ({"num_speculative_tokens": 3}, 1, 3), ({"mode": "off"}, 0, 0)):
        ask(server, "/specplug/mode", order)
        samples = scraped(server)
        assert value(samples, "specplug_mode", engine="0") == mode
        assert value(samples, "specplug_ceiling_tokens", engine="0") == ceiling
        assert 0 <= value(samples, "specplug_snapshot_age_seconds", engine="0") < 60


def test_metrics_are_documented(server):
    root = Path(__file__).parents[3] / "docs"
    documents = (root / "metrics.md").read_text() + (root / "operations.md").read_text()
    exported = {re.sub("_total$", "", name) for name, _ in scraped(server)}
    assert exported <= set(re.findall(r"^\| `(specplug_\w+)` \|", documents, flags=re.MULTILINE))


def test_a_stream_ends_with_what_became_of_its_drafts(server, plain):
    ask(server, "/specplug/mode", ON)
    body = REQUEST | {"stream": True, "stream_options": {"include_usage": True}}
    lines = ask(server, "/v1/completions", body).body.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "".join(text(chunk) for chunk in chunks if chunk["choices"]) == plain
    mine = chunks[-1]["metrics"]["speculative_decoding"]
    assert sum(mine["per_step_drafted"]) == mine["num_draft_tokens"] > 0
    assert sum(mine["per_step_accepted"]) == mine["num_accepted_draft_tokens"]


def test_openapi_describes_the_routes(server):
    paths = ask(server, "/openapi.json").json["paths"]
    assert set(paths["/specplug/status"]) == {"get"}
    body = paths["/specplug/mode"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"mode", "num_speculative_tokens"}


@pytest.mark.slow  # four processes
def test_every_api_process_speaks_for_every_engine(serve):
    """Two API processes, so that vLLM's metrics lie in files, and two engines: orders and scrapes reach both."""
    several = serve("v1", NGRAM, name="several", endpoints=True, api_server_count=2, data_parallel_size=2)
    for _ in range(4):
        complete(several)
    seen = [scraped(several) for _ in range(4)]  # whichever process answers
    source = own_text(seen[0])
    accepted = [value(samples, ACCEPTED, engine=engine, source=source) for samples in seen for engine in ("0", "1")]
    assert all(count > 0 for count in accepted)
    assert len(set(accepted[::2])) == len(set(accepted[1::2])) == 1
    assert ask(several, "/metrics").body.count("# TYPE vllm:num_requests_running gauge") == 1
    orders = [ask(several, "/specplug/mode", {"num_speculative_tokens": limit}).json for limit in (4, 2)]
    assert [[engine["ceiling"] for engine in stated["engines"]] for stated in orders] == [[4, 4], [2, 2]]
    engines = ask(several, "/specplug/status").json["engines"]
    assert [engine["engine"] for engine in engines] == [0, 1]
    assert [engine["scheduler"]["control"]["ceiling"] for engine in engines] == [2, 2]


# -- without specplug ----------------------------------------------------------------------------------------------


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
    http = TestClient(app, client=("127.0.0.1", 50000))
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
    stated = "specplug is not enabled on this server; start it with a --speculative-config that names it"
    assert idle.call(routes_of_a_server_without_specplug) == [[404, stated]] * 3
    assert idle.call(exported_names) == []
