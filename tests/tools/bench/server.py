"""Small OpenAI server, with specplug or without, for tests of the benchmark; it answers from its prompts.

Its time is simulated: each answer advances a `Clock` that the benchmark reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from specplug.operator.access import KEY_HEADER
from tests.tools.client.servers import LocalServer, stream_of

COUNTS = {"target_steps": 0, "proposed": 0, "accepted": 0, "rejected": 0, "emitted": 0}
TOKENS = 8


class Clock:
    """A clock in place of the module `time`, which only requests advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lock = threading.Lock()

    def perf_counter(self) -> float:
        """Return the seconds since the start."""
        return self.now


class FakeServer(LocalServer):
    """A server with configured behaviour that records its requests.

    Attributes:
        mode: of the operator.
        seconds: that an answer takes, by its prompt, and whether it is drafted.
        warm_seconds: that an answer before the first pair takes.
        requests: (what, prompt) in order of arrival, where `what` is "warm", "on" or "off".
        chats: how many of the timed requests were chats.
        stored: how many requests may be remembered.
        garbles: whether drafts change the text, as on no server.
        thinks: whether chats are answered by reasoning alone.
        fails: prompts that are answered with a 500.
        dies_after: requests after which every further one gets a 500.
        remembered: prompts whose answers come from older memory if they are drafted.
        ceiling: most draft tokens that the operator allows.
        operator_key: asked of the operator's routes.
        api_key: required of them as well, in `Authorization`, as by SGLang; the operator's is then in its own header.
        template: the chat template, around the text of the last message; None if the model has none.
        together: a barrier that timed requests wait at, if there is one.
    """

    def __init__(
        self, clock: Clock | None = None, *, specplug: bool = True, models: tuple[str, ...] = ("fake",)
    ) -> None:
        operators = {"/specplug/status": self._status} if specplug else {}
        templates = {"/tokenize": self._tokenize, "/detokenize": self._detokenize}
        completions = dict.fromkeys(("/v1/completions", "/v1/chat/completions"), self._complete)
        listed = {"data": [{"id": model} for model in models]}
        super().__init__({"/v1/models": listed, **operators, **templates, **completions})
        self.clock = clock or Clock()
        self.mode = "on"
        self.seconds: Callable[[str, bool], float] = lambda prompt, drafted: 0.5 if drafted else 1.0
        self.warm_seconds = 0.0
        self.requests: list[tuple[str, str]] = []
        self.chats = self.stored = 0
        self.garbles = False
        self.thinks = False
        self.fails: set[str] = set()
        self.dies_after: int | None = None
        self.remembered: set[str] = set()
        self.ceiling: int | None = None
        self.operator_key: str | None = None
        self.api_key: str | None = None
        self.counts = dict(COUNTS)
        self.memory = dict(COUNTS)
        self.template: str | None = None
        self.together: threading.Barrier | None = None

    def _answer(self, body: dict[str, Any]) -> tuple[list[str], int]:
        """Return the pieces of an answer and its tokens."""
        prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        fields = body.get("vllm_xargs", {})
        drafted = bool(fields.get("specplug_enabled", 1)) and "/specplug/status" in self.routes
        timed = body["max_tokens"] > 16
        with self.clock.lock:
            if body["max_tokens"] != 16:  # the warm-up's
                self.requests.append((("on" if drafted else "off") if timed else "warm", prompt))
            self.chats += timed and "messages" in body
            self.stored += bool(fields.get("specplug_store", 1))
            steps = TOKENS // 4 if drafted else TOKENS
            found = {"target_steps": steps, "emitted": TOKENS}
            found |= {"proposed": 2 * (TOKENS - steps), "accepted": TOKENS - steps} if drafted else {}
            for name, count in found.items():
                self.counts[name] += count
            if drafted and prompt in self.remembered:
                self.memory["accepted"] += found["accepted"]
            if timed:
                self.clock.now += self.seconds(prompt, drafted)
            elif body["max_tokens"] == 16:
                self.clock.now += self.warm_seconds
        if timed and self.together is not None:
            self.together.wait(10)
        text = prompt[:8] + ("!" if self.garbles and drafted else "")
        return [text[:3], text[3:]], TOKENS

    def _complete(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Any:
        if body.get("prompt") in self.fails or (self.dies_after is not None and len(self.requests) >= self.dies_after):
            return 500, {"error": "planted"}
        pieces, tokens = self._answer(body)
        key = "reasoning_content" if self.thinks else "content"
        choices = [{"delta": {key: piece}} if "messages" in body else {"text": piece} for piece in pieces]
        events = [{"choices": [choice]} for choice in choices]
        return stream_of(*events, {"choices": [], "usage": {"completion_tokens": tokens}})

    def _status(self, handler: BaseHTTPRequestHandler, _: object) -> Any:
        first = self.api_key or self.operator_key
        if first is not None and handler.headers.get("Authorization") != f"Bearer {first}":
            return 401, {"error": "Unauthorized"}
        if self.api_key is not None and handler.headers.get(KEY_HEADER) != self.operator_key:
            return 401, {"error": "Unauthorized"}
        control = {"mode": self.mode, "ceiling": self.ceiling}
        counted = {"total": self.counts, "by_source": {"ngram/own text": COUNTS, "ngram/response memory": self.memory}}
        workers = [{"rank": 0, "metrics": counted}, {"rank": 1}]
        return {"versions": {"specplug": "0"}, "engines": [{"scheduler": {"control": control}, "workers": workers}]}

    def _tokenize(self, _: BaseHTTPRequestHandler, body: dict[str, Any]) -> Any:
        if self.template is None:
            return 400, {"error": "no template"}
        return {"tokens": [*self.template.format(body["messages"][-1]["content"]).encode()]}

    def _detokenize(self, _: BaseHTTPRequestHandler, body: dict[str, Any]) -> Any:
        return {"prompt": bytes(body["tokens"]).decode()}
