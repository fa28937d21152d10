"""Small OpenAI server with specplug's operator routes for tests of the benchmark; it answers from its prompts."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.tools.client.servers import LocalServer, stream_of

COUNTS = {"target_steps": 0, "proposed": 0, "accepted": 0, "rejected": 0, "emitted": 0}


class FakeServer(LocalServer):
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
        operators = {"/specplug/status": self._status, "/specplug/mode": self._switch}
        templates = {"/tokenize": self._tokenize, "/detokenize": self._detokenize}
        completions = dict.fromkeys(("/v1/completions", "/v1/chat/completions"), self._complete)
        super().__init__({"/v1/models": {"data": [{"id": "fake"}]}, **operators, **templates, **completions})
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

    def _complete(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Any:
        if body.get("prompt") in self.fails:
            return 500, {"error": "planted"}
        pieces, tokens = self.answer(body)
        choices = [{"delta": {"content": piece}} if "messages" in body else {"text": piece} for piece in pieces]
        events = [{"choices": [choice]} for choice in choices]
        return stream_of(*events, {"choices": [], "usage": {"completion_tokens": tokens}})

    def _refusal(self, handler: BaseHTTPRequestHandler) -> tuple[int, Any] | None:
        key = self.operator_key
        is_allowed = key is None or handler.headers.get("Authorization") == f"Bearer {key}"
        return None if is_allowed else (401, {"error": "Unauthorized"})

    def _status(self, handler: BaseHTTPRequestHandler, _: object) -> Any:
        control = {"mode": self.mode, "num_speculative_tokens": None}
        workers = [{"rank": 0, "metrics": {"total": self.counts}}, {"rank": 1}]
        engines = [{"scheduler": {"control": control}, "workers": workers}]
        return self._refusal(handler) or {"versions": {"specplug": "0"}, "engines": engines}

    def _switch(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Any:
        refusal = self._refusal(handler)
        if refusal is None:
            self.mode = body["mode"]
            self.switched.append(self.mode)
        return refusal or {}

    def _tokenize(self, _: BaseHTTPRequestHandler, body: dict[str, Any]) -> Any:
        if self.template is None:
            return 400, {"error": "no template"}
        return {"tokens": [*self.template.format(body["messages"][-1]["content"]).encode()]}

    def _detokenize(self, _: BaseHTTPRequestHandler, body: dict[str, Any]) -> Any:
        return {"prompt": bytes(body["tokens"]).decode()}
