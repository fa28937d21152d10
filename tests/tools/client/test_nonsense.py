"""Servers that answer nonsense, hang or die: a command ends with one line that names the URL, or counts a failure."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from specplug.errors import EngineError
from specplug.tools.audit.server import Sglang, Vllm
from specplug.tools.cli.app import app
from specplug.tools.client import answers, http
from specplug.tools.client.answers import put_together, read
from specplug.tools.forecast import scraped
from tests.tools.client.servers import COMPLETION, GENERATED, LocalServer, stream_of

TOTAL = {"target_steps": 4, "proposed": 8, "accepted": 6, "rejected": 2, "emitted": 9}
STATUS = {
    "versions": {"specplug": "0"},
    "engines": [{"scheduler": {"control": {"mode": "on"}}, "workers": [{"metrics": {"total": TOTAL}}, {"rank": 1}]}],
}
STREAM = [
    {"choices": [{"text": "ab", "delta": {"content": "ab", "tool_calls": [{"function": {"name": "f"}}]}}]},
    {"choices": [], "usage": {"completion_tokens": 2}},
]
METRICS = (
    "specplug_target_steps_total 10.0\n"
    'specplug_position_verified_tokens_total{position="0"} 8.0\n'
    'specplug_position_accepted_tokens_total{position="0"} 6.0\n'
)
SOUND: dict[str, Any] = {
    "/version": {"version": "0.32.0"},
    "/v1/models": {"data": [{"id": "m"}]},
    "/tokenize": {"tokens": [1, 2]},
    "/detokenize": {"prompt": "<user>question"},
    "/specplug/status": STATUS,
    "/specplug/mode": {},
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": COMPLETION,
    "/metrics": METRICS,
}

BODIES: dict[str, bytes] = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"7",
    "an empty object": b"{}",
    "half an object": b'{"data": [',
    "no UTF-8": b'{"data": "\xff\xfe"}',
    "deep nesting": b"[" * 100_000,
    "NaN": b"NaN",
    "a huge number": b'{"tokens": [' + b"9" * 5000 + b"]}",
    "a page": b"<html>\x1b[31m\nnot found</html>",
    "an event": b'data: {"choices": [{"text": 7}]}\n\ndata: [DONE]\n\n',
    "a stream that breaks off": b'data: {"choices": []}\n\n',
}


def _raw(text: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(text)

    return answer


def _hang(_handler: BaseHTTPRequestHandler) -> None:
    time.sleep(0.6)


def _reset(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


BEHAVIOURS: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "hangs": _hang,
    "closes": _reset,
    "no HTTP": _raw(b"\x00\x01garbage\r\n\r\n"),
    "cut off": _raw(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"data'),
    "wrong encoding": _raw(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone"),
    "endless": _raw(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 300_000),
    "redirected": _raw(b"HTTP/1.1 302 Found\r\nLocation: /version\r\nContent-Length: 0\r\n\r\n"),
    "an error": _raw(b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\n\xff\n\x1bx"),
}
NONSENSE = [*BODIES, *BEHAVIOURS]


class WrongServer(LocalServer):
    """Answers soundly, except the routes in `wrong`, by kind of nonsense, and the completion of number `spoilt`."""

    def __init__(self) -> None:
        super().__init__({path: partial(self._answer, path) for path in SOUND})
        self.wrong: dict[str, str] = {}
        self.spoilt: int | None = None
        self.num_completions = 0

    def _answer(self, path: str, handler: BaseHTTPRequestHandler, sent: dict[str, Any] | None) -> Any:
        kind = self.wrong.get(path)
        self.num_completions += path == "/v1/completions"
        if path == "/v1/completions" and self.num_completions == self.spoilt:
            return b"null"
        if kind in BEHAVIOURS:
            handler.close_connection = True
            return BEHAVIOURS[kind](handler)
        if kind is not None:
            return BODIES[kind]
        return stream_of(*STREAM) if sent and sent.get("stream") else SOUND[path]


@pytest.fixture(scope="module")
def running() -> Iterator[WrongServer]:
    server = WrongServer()
    with server.running():
        yield server


@pytest.fixture
def server(running: WrongServer, monkeypatch: pytest.MonkeyPatch) -> WrongServer:
    running.wrong, running.spoilt, running.num_completions = {}, None, 0
    monkeypatch.setattr(http, "LARGEST", 200_000)
    return running


@pytest.fixture
def url(server: WrongServer) -> str:
    return server.url


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"prompt {number}"}) + "\n" for number in range(4)))
    return path


def run(command: str, url: str, prompts: Path, patience: float = 60.0) -> Result:
    arguments = {
        "audit": [url, "--prompts", prompts, "--check", "greedy", "--check", "tools", "--timeout", patience],
        "bench": [url, prompts, "--limit", 2, "--timeout", patience],
        "plan": ["--metrics", url],
        "watch": [url, "--once", "--interval", 0.1, "--timeout", patience],
    }
    return CliRunner().invoke(app, [command, *map(str, arguments[command])])


def assert_reported(result: Result, url: str, what: object) -> str:
    """Check that a command has ended by itself, with at most one line of an error, which names the server."""
    assert result.exception is None or isinstance(result.exception, SystemExit), (what, result.exception)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    if result.exit_code == 2:
        (line,) = errors
        assert url in line, (what, line)
        assert line.isprintable(), (what, line)
        assert len(result.stderr.split("error:")[1].strip().splitlines()) == 1, (what, result.stderr)
    return result.stderr + result.stdout


@pytest.mark.parametrize("command", ["audit", "bench", "plan", "watch"])
def test_a_sound_server_is_served(url, prompts, command):
    result = run(command, url, prompts)
    assert result.exit_code in (0, 1), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("command", "routes"),
    [
        (
            "audit",
            [
                "/version",
                "/v1/models",
                "/tokenize",
                "/specplug/status",
                "/specplug/mode",
                "/v1/completions",
                "/v1/chat/completions",
            ],
        ),
        ("bench", ["/specplug/status", "/v1/models", "/v1/completions", "/tokenize"]),
        ("plan", ["/metrics"]),
        ("watch", ["/specplug/status", "/metrics"]),
    ],
)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nonsense_is_one_line_or_a_failed_answer(server, url, prompts, command, routes, whole, monkeypatch):
    """In short every kind comes once, from one of the routes."""
    for number, route in enumerate(routes):
        for kind in NONSENSE if whole else NONSENSE[number :: len(routes)]:
            server.wrong, patience = {route: kind}, 0.3 if kind == "hangs" else 60.0
            monkeypatch.setattr(scraped, "PATIENCE", patience)
            result = run(command, url, prompts, patience)
            output = assert_reported(result, url, (route, kind))
            if result.exit_code == 2 and kind == "hangs":
                assert "expected one within 0.3 s" in output


def test_one_bad_answer_is_that_answers_failure(server, url, prompts):
    server.spoilt = 3
    result = run("audit", url, prompts)
    assert_reported(result, url, "one bad answer")
    assert result.exit_code == 1
    assert "1 requests for prompts or counts had no answer" in " ".join(result.stdout.split())
    assert "greedy" in result.stdout


PLANS = {
    "a huge number of steps": "sglang:spec_num_steps 9e9\nsglang:spec_num_draft_tokens 9e9",
    "NaN": METRICS.replace("10.0", "NaN"),
    "infinity": METRICS.replace("8.0", "+Inf"),
    "negative": METRICS.replace("6.0", "-6.0"),
    "a position that is none": METRICS.replace('"0"', '"²"'),
    "a position far away": METRICS.replace('"0"', '"99999999999999999999"'),
    "labels without end": METRICS.replace('"0"} 8', '"0'),
}


@pytest.mark.parametrize("kind", PLANS)
def test_there_is_no_plan_from_nonsense(url, prompts, kind, monkeypatch):
    monkeypatch.setitem(SOUND, "/metrics", PLANS[kind])
    result = run("plan", url, prompts)
    assert_reported(result, url, kind)
    assert result.exit_code == 2, result.output


@pytest.mark.parametrize("command", ["audit", "bench", "plan", "watch"])
def test_a_server_that_is_not_there_is_one_line(prompts, command):
    result = run(command, "http://127.0.0.1:1", prompts)
    assert_reported(result, "http://127.0.0.1:1", command)
    assert "the server does not answer as expected; found ConnectError" in result.stderr


def test_certificates_that_cannot_be_read_are_one_line(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/absent.pem")
    with pytest.raises(EngineError, match=r"^SSL_CERT_FILE or SSL_CERT_DIR: the certificates of auth[^\n]*$"):
        http.ServerClient("https://127.0.0.1:9")
    http.ServerClient("http://127.0.0.1:9")


def test_what_is_no_address_is_refused():
    for address in ("localhost:8000", "http://", "http://x:y", "http://[::1", "ftp://x", "http://\ud800.x"):
        with pytest.raises(EngineError, match="no server's address"):
            http.ServerClient(address)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([10**400, -1, math.nan, "token_id:", "token_id:²", "", "x" * 5000, "\ud800"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SCHEMAS = [
    (answers.ServerStatus, STATUS, lambda found: (found.mode, list(found.metrics))),
    (answers.Whole, COMPLETION, lambda found: (Vllm().answer(found), put_together(found.choices))),
    (answers.Generated, GENERATED, Sglang().answer),
    (answers.StreamEvent, STREAM[0], lambda found: put_together(found.choices)),
    (answers.Tokenized, {"tokens": [1]}, lambda found: found.tokens),
]


def spoilt(value: Any, data: st.DataObject) -> Any:
    """Return a copy of a sound answer with one value replaced, at any depth."""
    if isinstance(value, (dict, list)) and value and data.draw(st.integers(0, 4)):
        places = list(value) if isinstance(value, dict) else range(len(value))
        place = data.draw(st.sampled_from(list(places)))
        copy = value.copy()
        copy[place] = spoilt(value[place], data)
        return copy
    return data.draw(JUNK)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_the_reader_takes_an_answer_or_refuses_it_by_name(data):
    schema, sound, use = data.draw(st.sampled_from(SCHEMAS))
    text = json.dumps(spoilt(sound, data))
    try:
        use(read(schema, text, "GET http://x/y"))
    except EngineError as refused:
        message = str(refused)
        assert message.encode()
        assert len(message.splitlines()) == 1
