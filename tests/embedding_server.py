"""A stand-in for an OpenAI-compatible server: vectors that count words, scripted chats, and a record of requests."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

import numpy as np

from tests.local_http import served

DIMENSIONS = 512


class Recorded(NamedTuple):
    """A server's address, and the bodies of the chats that it was sent."""

    url: str
    chats: list[dict[str, Any]]


def vector(text: str) -> np.ndarray:
    """Return how often each word is in a text, by a hash of the word."""
    counted = np.zeros(DIMENSIONS, dtype="<f4")
    for word in re.findall(r"\w+", text.lower()):
        counted[zlib.crc32(word.encode()) % DIMENSIONS] += 1
    return counted / max(1.0, float(np.linalg.norm(counted)))


@contextmanager
def recording(answer: str = "yes") -> Iterator[Recorded]:
    """Serve; a chat with tools is answered by a call of the first one with the question, any other by `answer`."""
    chats: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/v1/embeddings":
                texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
                data: list[dict[str, Any]] = [{"object": "embedding", "index": i} for i in range(len(texts))]
                for one, text in zip(data, texts, strict=True):
                    found = vector(text)
                    packed = body.get("encoding_format") == "base64"
                    one["embedding"] = base64.b64encode(found.tobytes()).decode() if packed else found.tolist()
                return self.answer({"object": "list", "data": data, "model": body["model"], "usage": {}})
            chats.append(body)
            message: dict[str, Any] = {"role": "assistant", "content": answer}
            question = body["messages"][-1]
            if body.get("tools") and question["role"] == "user":
                called = {
                    "name": body["tools"][0]["function"]["name"],
                    "arguments": json.dumps({"query": question["content"]}),
                }
                message |= {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": called}]}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self.answer({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})

        def do_GET(self) -> None:
            self.send_error(404)

        def answer(self, body: dict[str, Any]) -> None:
            payload = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: Any) -> None: ...

    with served(Handler) as url:
        yield Recorded(url, chats)
