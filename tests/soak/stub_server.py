"""A server that answers like vLLM with specplug and runs no model, with failures on purpose; see `test_planted`.

    python -m tests.soak.stub_server FAILURE MISTAKES

It prints its address.  MISTAKES are wrong fields and their refusals, as JSON.  FAILURE is "none", "memory", "threads",
"files" or "slots": something is kept of every request.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from tests.tools.client.servers import LocalServer, stream_of

TOKEN = 7
"""All that the stub says."""


class Stub(LocalServer):
    """The server; `kept` is what it leaks."""

    def __init__(self, failure: str, mistakes: list[tuple[dict[str, Any], str]]) -> None:
        read = dict.fromkeys(("/specplug/status", "/metrics", "/health"), self._status)
        posted = {"/specplug/mode": self._order, "/v1/completions": self._complete, "/reset_prefix_cache": {}}
        super().__init__({**read, **posted})
        self.failure, self.mistakes = failure, mistakes
        self.kept: list[Any] = []
        self.accepted = 0

    def _status(self, *_: object) -> Any:
        slots = {"total": 8, "occupied": len(self.kept) if self.failure == "slots" else 0, "preempted": 0}
        worker = {"slots": slots, "metrics": {"total": {"accepted": self.accepted}, "faults": {}}}
        return {"engines": [{"workers": [worker], "scheduler": {}}]}

    def _order(self, _: object, body: dict[str, Any]) -> Any:
        """Take an operator's order if it is sound, of those that `Faults` gives."""
        values = {"mode": ("on", "off"), "num_speculative_tokens": (None, 0, 1, 2, 3)}
        is_sound = bool(body) and all(value in values.get(key, ()) for key, value in body.items())
        return (200 if is_sound else 400), {}

    def _complete(self, _: object, body: dict[str, Any]) -> Any:
        for fields, message in self.mistakes:
            if body.get("vllm_xargs") == fields:
                return 400, {"error": {"message": message}}
        self.accepted += 1
        self._fail()
        answer = {"choices": [{"token_ids": [TOKEN] * body["max_tokens"], "text": "", "finish_reason": "length"}]}
        return stream_of(answer) if body["stream"] else answer

    def _fail(self) -> None:
        """Do what was planned for one request."""
        if self.failure == "memory":
            self.kept.append(os.urandom(1 << 20))
        elif self.failure == "threads":
            self.kept.append(threading.Thread(target=threading.Event().wait, daemon=True))
            self.kept[-1].start()
        elif self.failure == "files":
            self.kept.append(os.open(os.devnull, os.O_RDONLY))
        elif self.failure == "slots":
            self.kept.append(self.accepted)


if __name__ == "__main__":
    with Stub(sys.argv[1], json.loads(sys.argv[2])).running() as url:
        print(url, flush=True)
        threading.Event().wait()
