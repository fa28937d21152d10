"""Small OpenAI server with specplug's operator routes for tests of the benchmark; it answers from its prompts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.local_http import served

COUNTS = {"target_steps": 0, "proposed": 0, "accepted": 0, "rejected": 0, "emitted": 0}


class FakeServer:
    """A server with configured behaviour that records its requests.

    Attributes:
        mode: of speculation; with "on" each step emits `per_step` tokens.
        requests: (mode, prompt) in order of arrival, without the warm-up's.
        chats: how many of them were chats.
        most_in_flight: the most requests that were answered at the same time.
        garbles: whether speculation changes the text, as no server should.
        fails: prompts that are answered with a 500.
        operator_key: asked of the operator's routes.
        template: the chat template, around the text of the last message; None if the model has none.
    """

    def __init__(self) -> None:
        self.mode, self.per_step = "on", 4
        self.requests: list[tuple[str, str]] = []
        self.chats = 0
        self.switched: list[str] = []
        self.most_in_flight = self._in_flight = 0
        self.garbles = False
        self.fails: set[str] = set()
        self.operator_key: str | None = None
        self.counts = dict(COUNTS)
        self.template: str | None = None
        self.together: threading.Barrier | None = None
        self._lock = threading.Lock()

    def answer(self, body: dict[str, Any]) -> tuple[list[str], int]:
        """Return the pieces of an answer and its tokens."""
        prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        timed = body["max_tokens"] > 4
        with self._lock:
            if timed:
                self.requests.append((self.mode, prompt))
                self.chats += "messages" in body
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            tokens, steps = 8, 8 if self.mode == "off" else 8 // self.per_step
            self.counts["target_steps"] += steps
            self.counts["emitted"] += tokens
            if self.mode == "on":
                self.counts["proposed"] += 2 * (tokens - steps)
                self.counts["accepted"] += tokens - steps
        if timed and self.together is not None:
            self.together.wait(10)
        with self._lock:
            self._in_flight -= 1
        text = prompt[:8] + ("!" if self.garbles and self.mode == "on" else "")
        return [text[:3], text[3:]], tokens

    def status(self) -> dict[str, Any]:
        control = {"mode": self.mode, "num_speculative_tokens": None}
        workers = [{"rank": 0, "metrics": {"total": self.counts}}, {"rank": 1}]
        return {"versions": {"specplug": "0"}, "engines": [{"scheduler": {"control": control}, "workers": workers}]}


@contextmanager
def serving(server: FakeServer) -> Iterator[str]:
    """Serve on a free port of this machine; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._json(200, {"data": [{"id": "fake"}]})
            elif self._allowed():
                self._json(200, server.status())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/specplug/mode":
                if self._allowed():
                    server.mode = body["mode"]
                    server.switched.append(server.mode)
                    self._json(200, {})
            elif self.path == "/tokenize" and server.template is not None:
                self._json(200, {"tokens": [*server.template.format(body["messages"][-1]["content"]).encode()]})
            elif self.path == "/detokenize" and server.template is not None:
                self._json(200, {"prompt": bytes(body["tokens"]).decode()})
            elif self.path in ("/tokenize", "/detokenize"):
                self._json(400, {"error": "no template"})
            elif body.get("prompt") in server.fails:
                self._json(500, {"error": "planted"})
            else:
                self._stream(*server.answer(body), chat="messages" in body)

        def _allowed(self) -> bool:
            key = server.operator_key
            if key is None or self.headers.get("Authorization") == f"Bearer {key}":
                return True
            self._json(401, {"error": "Unauthorized"})
            return False

        def _json(self, code: int, stated: Any) -> None:
            text = json.dumps(stated).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _stream(self, pieces: list[str], tokens: int, *, chat: bool) -> None:
            choices = [{"delta": {"content": piece}} if chat else {"text": piece} for piece in pieces]
            events: list[Any] = [{"choices": [choice]} for choice in choices]
            events.append({"choices": [], "usage": {"completion_tokens": tokens}})
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    with served(Handler) as address:
        yield address
