"""A server that answers like vLLM with specplug and runs no model, with failures on purpose; see `test_planted`.

    python -m tests.soak.stub_server PORT FAILURE MISTAKES

MISTAKES are wrong fields and their refusals, as JSON.  FAILURE is "none", "memory", "threads" or "slots": something is
kept of every request.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = 7
"""All that the stub says."""

FAILURE = "none"
MISTAKES: list[tuple[dict[str, Any], str]] = []
KEPT: list[Any] = []
COUNTS = {"accepted": 0}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        slots = {"total": 8, "occupied": len(KEPT) if FAILURE == "slots" else 0, "preempted": 0}
        worker = {"slots": slots, "metrics": {"total": COUNTS, "faults": {}}}
        self._answer(200, {"engines": [{"workers": [worker], "scheduler": {}}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        if self.path != "/v1/completions":
            return self._answer(200 if self.path == "/reset_prefix_cache" or is_order(body) else 400, {})
        for fields, message in MISTAKES:
            if body.get("vllm_xargs") == fields:
                return self._answer(400, {"error": {"message": message}})
        COUNTS["accepted"] += 1
        fail(COUNTS["accepted"])
        choices = [{"token_ids": [TOKEN] * body["max_tokens"], "text": "", "finish_reason": "length"}]
        return self._stream([{"choices": choices}]) if body["stream"] else self._answer(200, {"choices": choices})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, json.dumps(body).encode())

    def _stream(self, events: Iterable[dict[str, Any]]) -> None:
        self._send(200, b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events))

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


def is_order(body: dict[str, Any]) -> bool:
    """Return whether an operator's order is sound, of those that `Faults` gives."""
    values = {"mode": ("on", "off"), "num_speculative_tokens": (None, 0, 1, 2, 3)}
    return bool(body) and all(value in values.get(key, ()) for key, value in body.items())


def fail(count: int) -> None:
    """Do what was planned for one request."""
    if FAILURE == "memory":
        KEPT.append(os.urandom(1 << 20))
    elif FAILURE == "threads":
        KEPT.append(threading.Thread(target=threading.Event().wait, daemon=True))
        KEPT[-1].start()
    elif FAILURE == "slots":
        KEPT.append(count)


if __name__ == "__main__":
    FAILURE, MISTAKES = sys.argv[2], json.loads(sys.argv[3])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
