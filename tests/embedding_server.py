"""A stand-in for an OpenAI-compatible server: vectors that count words, scripted chats, and a record of requests."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from tests.tools.client.servers import LocalServer

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

    def embed(_: object, body: dict[str, Any]) -> dict[str, Any]:
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = []
        for index, found in enumerate(map(vector, texts)):
            is_packed = body.get("encoding_format") == "base64"
            packed = base64.b64encode(found.tobytes()).decode() if is_packed else found.tolist()
            data.append({"object": "embedding", "index": index, "embedding": packed})
        return {"object": "list", "data": data, "model": body["model"], "usage": {}}

    def chat(_: object, body: dict[str, Any]) -> dict[str, Any]:
        chats.append(body)
        message: dict[str, Any] = {"role": "assistant", "content": answer}
        question = body["messages"][-1]
        if body.get("tools") and question["role"] == "user":
            arguments = json.dumps({"query": question["content"]})
            called = {"name": body["tools"][0]["function"]["name"], "arguments": arguments}
            message |= {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": called}]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}

    with LocalServer({"/v1/embeddings": embed, "/v1/chat/completions": chat}).running() as url:
        yield Recorded(url, chats)
