"""What operators see and say while SGLang runs."""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
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

TEXT = "def area(r):\n    return 3.14 * r * r\n\ndef area(r):\n    return"  # goes on by repeating itself
KEY, ADMIN = "sesame", "open sesame"
ON = {"mode": "on", "num_speculative_tokens": None}
ACCEPTED = "specplug_accepted_tokens_total"
SOURCE = "ngram/own text"


class Answer:
    """Status code and body of an HTTP answer."""

    def __init__(self, code: int, body: str) -> None:
        self.code, self.body = code, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(server: Server, path: str, body: Any = None, key: str | None = None, **more: str) -> Answer:
    """GET, or POST `body`: JSON, or bytes as they are.  The key is the one that the path wants."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fitting = ADMIN if path in ("/specplug/status", "/specplug/mode", "/set_internal_state") else KEY
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {fitting if key is None else key}"} | more
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=60) as answer:
            return Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read().decode())


def tell(server: Server, **order: Any) -> dict[str, Any]:
    """Give the operator's order; return what the (one) engine then holds."""
    answer = ask(server, "/specplug/mode", order)
    assert answer.code == 200, answer.body
    (state,) = answer.json["engines"]
    return state


def status(server: Server) -> dict[str, Any]:
    """Return the status of the (one) engine."""
    (engine,) = ask(server, "/specplug/status").json["engines"]
    return engine


def control(server: Server) -> dict[str, Any]:
    return status(server)["scheduler"]["control"]


def counts(server: Server) -> dict[str, Any]:
    return status(server)["workers"][0]["metrics"]["total"]


def completion(server: Server, **fields: Any) -> dict[str, Any]:
    """Return the answer to one greedy completion."""
    body = {"model": MODEL, "prompt": TEXT, "max_tokens": 24, "temperature": 0} | fields
    answer = ask(server, "/v1/completions", body)
    assert answer.code == 200, answer.body
    return answer.json


def completed(server: Server) -> tuple[str, int]:
    """Return the text of a completion, and the width of its widest draft."""
    before = counts(server)
    text = completion(server)["choices"][0]["text"]
    spent = [now - then for now, then in zip(counts(server)["verified_at"], before["verified_at"], strict=True)]
    return text, sum(count > 0 for count in spent)


def scraped(server: Server) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return specplug's samples on /metrics by name and labels."""
    lines = ask(server, "/metrics").body.splitlines()
    found = [re.fullmatch(r"(specplug_\w+)\{(.*)\} (\S+)", line) for line in lines if not line.startswith("#")]
    return {(m[1], frozenset(re.findall(r'(\w+)="([^"]*)"', m[2]))): float(m[3]) for m in found if m}


def value(samples: dict[Any, float], name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@pytest.fixture(scope="module")
def control_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operator") / "control.json"


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], control_file: Path) -> Server:
    """A server with both of SGLang's keys, a control file and metrics."""
    settings = {"faults": {"host_deadline_ms": None}, "control": {"file": str(control_file), "poll_seconds": 0.0}}
    return serve(
        "SPECPLUG",
        name="operated",
        environment={"SPECPLUG_CONFIG": json.dumps(settings)},
        enable_metrics=True,
        api_key=KEY,
        admin_api_key=ADMIN,
    )


@pytest.fixture(scope="module")
def plain(server: Server) -> str:
    """The text as it is without drafts."""
    tell(server, mode="off")
    text, draft_length = completed(server)
    assert draft_length == 0
    return text


@pytest.fixture(autouse=True)
def _start_state(request: pytest.FixtureRequest, control_file: Path) -> Iterator[None]:
    """Leave the server as it started, and let tests begin so."""
    used = "server" in request.fixturenames
    if used and "plain" in request.fixturenames:
        request.getfixturevalue("plain")
        tell(request.getfixturevalue("server"), **ON)
    yield
    control_file.unlink(missing_ok=True)
    if used:
        tell(request.getfixturevalue("server"), **ON)


@pytest.mark.parametrize(("key", "code"), [("", 401), (KEY, 401), (ADMIN, 200)])
def test_the_admin_key_is_the_operators_and_a_clients_key_is_not(server, key, code):
    assert ask(server, "/specplug/status", key=key).code == code
    assert ask(server, "/specplug/mode", {"mode": "on"}, key=key).code == code
    assert ask(server, "/set_internal_state", {"server_args": {"specplug_mode": 1}}, key=key).code == code


def test_off_and_on_take_effect_at_once_and_change_no_text(server, plain, control_file):
    assert completed(server) == (plain, 8)
    assert tell(server, mode="off") == {
        "mode": "off",
        "num_speculative_tokens": None,
        "ceiling": 0,
        "set_by": "request",
        "file": str(control_file),
        "file_error": None,
    }
    assert completed(server) == (plain, 0)
    tell(server, mode="on")
    assert completed(server) == (plain, 8)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_limit_cuts_every_draft(server, plain, limit):
    assert tell(server, num_speculative_tokens=limit)["mode"] == "on"
    assert completed(server) == (plain, limit)
    assert tell(server, num_speculative_tokens=None)["ceiling"] is None


def test_a_limit_above_the_servers_draft_length_widens_nothing(server, plain):
    assert tell(server, num_speculative_tokens=99)["ceiling"] == 99
    assert completed(server) == (plain, 8)


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
    assert what in answer.json["message"]
    assert (control(server)["mode"], control(server)["ceiling"]) == ("on", None)


def test_sglangs_own_route_takes_orders_in_numbers(server):
    def stated(**numbers: Any) -> bool:
        return ask(server, "/set_internal_state", {"server_args": numbers}).json == [True]

    assert stated(specplug_mode=0, specplug_num_speculative_tokens=5)
    assert (control(server)["mode"], control(server)["num_speculative_tokens"]) == ("off", 5)
    for wrong in ({"specplug_mode": 2}, {"specplug_num_speculative_tokens": -2}, {"specplug_modes": 1}):
        assert not stated(**{"specplug_num_speculative_tokens": 4, **wrong})
    assert not stated(specplug_mode=1, pp_max_micro_batch_size=-1), "SGLang refuses its own part, so nothing changes"
    assert (control(server)["mode"], control(server)["num_speculative_tokens"]) == ("off", 5)
    assert stated(specplug_mode=1, specplug_num_speculative_tokens=-1, pp_max_micro_batch_size=4)
    assert (control(server)["mode"], control(server)["ceiling"]) == ("on", None)
    (state,) = ask(server, "/server_info").json["internal_states"]
    assert state["pp_max_micro_batch_size"] == 4


def test_orders_and_questions_reach_an_engine_that_is_at_work(server):
    """A stream that began without drafts goes on with them; its text is that of one that had none."""
    body = {"model": MODEL, "prompt": TEXT, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    tell(server, mode="off")
    whole = completion(server, **body)["choices"][0]["text"]
    before = counts(server)
    url, headers = (
        server.url + "/v1/completions",
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    request = urllib.request.Request(url, json.dumps(body | {"stream": True}).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as stream:
        lines = [next(stream)]
        at_first = counts(server)
        tell(server, mode="on")
        lines += stream
    after = counts(server)
    assert before["emitted"] < at_first["emitted"] < after["emitted"], "asked while the request ran"
    assert before["accepted"] == at_first["accepted"] < after["accepted"]
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == whole


def test_the_control_file_is_obeyed_between_steps(server, plain, control_file):
    def write(stated: str) -> None:
        beside = control_file.with_suffix(".new")
        beside.write_text(stated)
        os.replace(beside, control_file)

    write('{"mode": "off"}')
    assert completed(server) == (plain, 0)
    assert control(server)["set_by"] == "control file"
    write('{"num_speculative_tokens": 2}')
    assert completed(server) == (plain, 2)
    write('{"num_speculative_tokens": ')
    assert completed(server) == (plain, 2)
    assert str(control_file) in control(server)["file_error"]
    tell(server, num_speculative_tokens=5)  # the last change wins
    assert completed(server) == (plain, 5)
    control_file.unlink()
    assert completed(server) == (plain, 8)
    log = server.log()
    assert log.count("cannot read the control file") == 1
    assert re.search(r"\[.*\] speculation: mode on, at most 2 draft tokens, by control file", log), (
        "what was changed stands in SGLang's own log"
    )


def test_status_says_what_runs_and_why(server):
    completion(server)
    answer = ask(server, "/specplug/status").json
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
    assert {*worker["sources"], "none", "grammar"} == set(worker["metrics"]["by_source"])
    assert worker["metrics"]["total"]["accepted"] > 0


def test_sglangs_own_server_info_holds_the_status_for_operators(server):
    (state,) = ask(server, "/server_info").json["internal_states"]
    assert "specplug" not in state, "a client's key is enough for the rest of it"
    (state,) = ask(server, "/server_info", **{KEY_HEADER: ADMIN}).json["internal_states"]
    reported, requested = state["specplug"], status(server)
    assert reported == requested
    assert state["speculative_algorithm"] == "SPECPLUG", "beside what SGLang tells itself"


def test_every_token_that_clients_got_is_counted(server):
    before = counts(server)
    usage = completion(server)["usage"]
    after = counts(server)
    seen = {name: after[name] - before[name] for name in ("emitted", "after_stop", "accepted", "target_steps")}
    assert seen["emitted"] - seen["after_stop"] == usage["completion_tokens"]
    assert 0 < seen["accepted"] <= seen["emitted"] - seen["target_steps"]


def test_a_scrape_shows_the_newest_counts_of_all_sources(server):
    before = scraped(server)
    completion(server)
    after = scraped(server)
    assert value(after, ACCEPTED, engine="0", source=SOURCE) > value(before, ACCEPTED, engine="0", source=SOURCE)
    reported = status(server)["workers"][0]["metrics"]["by_source"]
    fields = {"emitted": "emitted", "accepted": "accepted", "proposed": "proposed", "after_stop": "after_stop"}
    for name, each in reported.items():
        for field, metric in fields.items():
            assert value(after, f"specplug_{metric}_tokens_total", engine="0", source=name) == each[field]
    position = value(after, "specplug_position_accepted_tokens_total", engine="0", source=SOURCE, position="7")
    assert position == reported[SOURCE]["accepted_at"][7] > 0


def test_a_scrape_shows_the_operators_word(server):
    for order, mode, ceiling in ((ON, 1, 8), ({"num_speculative_tokens": 3}, 1, 3), ({"mode": "off"}, 0, 0)):
        tell(server, **order)
        samples = scraped(server)
        assert value(samples, "specplug_mode", engine="0") == mode
        assert value(samples, "specplug_ceiling_tokens", engine="0") == ceiling
        assert 0 <= value(samples, "specplug_snapshot_age_seconds", engine="0") < 60


def test_metrics_stand_beside_sglangs_own_and_are_documented(server):
    root = Path(__file__).parents[3] / "docs"
    documents = (root / "metrics.md").read_text() + (root / "operations.md").read_text()
    exported = {re.sub("_total$", "", name) for name, _ in scraped(server)}
    assert exported <= set(re.findall(r"^\| `(specplug_\w+)` \|", documents, flags=re.MULTILINE))
    body = ask(server, "/metrics").body
    assert body.count("# TYPE sglang:num_running_reqs gauge") == body.count("# TYPE specplug_mode gauge") == 1


def test_openapi_describes_the_routes(server):
    paths = ask(server, "/openapi.json").json["paths"]
    assert set(paths["/specplug/status"]) == {"get"}
    body = paths["/specplug/mode"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"mode", "num_speculative_tokens"}


@pytest.mark.slow
def test_every_tokenizer_process_speaks_for_every_engine(serve):
    """Two tokenizer processes and two engines: orders and scrapes reach both."""
    several = serve(
        "SPECPLUG",
        name="several",
        environment={
            "SGLANG_CPU_OMP_THREADS_BIND": "0|0",  # else as many NUMA nodes are wanted as engines
            "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "300",  # else tokenizers that start slowly are killed
        },
        enable_metrics=True,
        tokenizer_worker_num=2,
        dp_size=2,
    )
    for _ in range(4):
        completion(several)
    seen = [scraped(several) for _ in range(4)]  # whichever process answers
    accepted = [value(samples, ACCEPTED, engine=engine, source=SOURCE) for samples in seen for engine in ("0", "1")]
    assert all(count > 0 for count in accepted)
    assert len(set(accepted[::2])) == len(set(accepted[1::2])) == 1
    assert ask(several, "/metrics").body.count("# TYPE sglang:num_running_reqs gauge") == 1
    orders = [ask(several, "/specplug/mode", {"num_speculative_tokens": limit}).json for limit in (4, 2)]
    assert [[engine["ceiling"] for engine in stated["engines"]] for stated in orders] == [[4, 4], [2, 2]]
    for _ in range(4):
        engines = ask(several, "/specplug/status").json["engines"]
        assert [engine["engine"] for engine in engines] == [0, 1]
        assert [engine["scheduler"]["control"]["ceiling"] for engine in engines] == [2, 2]


# -- offline -----------------------------------------------------------------------------------------------------------


def read(engine: Any) -> list[dict[str, Any]]:
    from specplug_sglang import status

    return status.read(engine)


def set_mode(engine: Any, **order: Any) -> list[dict[str, Any]]:
    from specplug_sglang import status

    return status.set_mode(engine, **order)


def reported_in_scheduler(scheduler: Any) -> dict[str, Any]:
    from specplug_sglang.scheduler import status

    return status.scheduler_status(scheduler)


def obeyed_in_scheduler(scheduler: Any, order: dict[str, Any]) -> dict[str, Any]:
    from specplug_sglang.scheduler import status

    return status.control(scheduler, order)


def break_status(scheduler: Any, broken: bool) -> None:
    """Let telling the status fail, or work again."""
    step_planner = scheduler.draft_worker.drafting.step_planner
    if broken:
        step_planner.whole, step_planner.plan = step_planner.plan, None
    else:
        step_planner.plan = step_planner.whole


@pytest.fixture
def offline(engine: Callable[..., Engine]) -> Iterator[Engine]:
    """An `Engine` with specplug's own settings."""
    offline = engine("SPECPLUG", name="specplug")
    yield offline
    offline.call(set_mode, **ON)


def generated(offline: Engine) -> tuple[list[int], int]:
    """Return the answer to the prompt, and how much of it was drafted."""
    before = offline.inside(reported_in_scheduler)["workers"][0]["metrics"]["total"]["accepted"]
    (answer,) = offline.call(inside.generate, prompts=[ids(TEXT)], params={"max_new_tokens": 24})
    after = offline.inside(reported_in_scheduler)["workers"][0]["metrics"]["total"]["accepted"]
    return answer["token_ids"], after - before


def test_an_engine_is_requested_and_reported_by_functions(offline):
    assert offline.call(read) == [offline.inside(reported_in_scheduler)]
    plain = generated(offline)[0]
    for order, drafts in (({"mode": "off"}, False), ({"num_speculative_tokens": 3}, False), ({"mode": "on"}, True)):
        (state,) = offline.call(set_mode, **order)
        assert state == offline.call(read)[0]["scheduler"]["control"]
        text, accepted = generated(offline)
        assert (text, accepted > 0) == (plain, drafts)
    assert offline.inside(obeyed_in_scheduler, order={"mode": "off"})["ceiling"] == 0
    assert generated(offline) == (plain, 0)


def test_an_engine_says_what_is_wrong_with_an_order(offline):
    with pytest.raises(Raised, match=r"SettingsError: .*Did you mean 'off'") as raised:
        offline.call(set_mode, mode="of")
    assert "set_mode" in raised.value.text
    assert offline.call(read)[0]["scheduler"]["control"]["mode"] == "on"


def test_a_status_that_cannot_be_reported_harms_nobody(offline):
    offline.inside(break_status, broken=True)
    try:
        with pytest.raises(Raised, match=r"EngineError: .*object has no attribute .draft_length."):
            offline.call(read)
    finally:
        offline.inside(break_status, broken=False)
    assert offline.call(read)[0]["engine"] == 0


# -- without specplug --------------------------------------------------------------------------------------------------


def routes_without_specplug(engine: Any) -> list[str]:
    """Let a server of this engine's arguments be made, as far as specplug has a part in it; return what is ours."""
    from sglang.srt.entrypoints.http_server import app

    from specplug_sglang.frontend import exporter, http

    http.front_made(None, engine.tokenizer_manager)
    exporter.metrics_made(None, app)
    ours = [path for route in app.routes if "specplug" in (path := getattr(route, "path", ""))]
    return ours + [
        name for name in ("specplug_sglang.frontend.endpoints", "specplug.operator.exporter") if name in sys.modules
    ]


def test_an_engine_that_did_not_ask_has_none_of_it(baseline):
    assert baseline.call(routes_without_specplug) == []
    with pytest.raises(Raised, match=r"EngineError: .*specplug does not draft"):
        baseline.call(read)
    with pytest.raises(Raised, match=r"EngineError: .*rejected the order"):
        baseline.call(set_mode, mode="off")
