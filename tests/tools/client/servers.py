"""Local servers that answer by a table of routes, and sound answers of vLLM and SGLang."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMPLETION = {
    "choices": [
        {
            "text": "ab",
            "token_ids": [7, 8],
            "finish_reason": "length",
            "logprobs": {
                "tokens": ["token_id:7", "token_id:8"],
                "token_logprobs": [-0.1, -2.0],
                "top_logprobs": [{"token_id:7": -0.1}, {"token_id:9": -0.5}],
            },
        }
    ]
}
GENERATED = {
    "text": "ab",
    "output_ids": [7, 8],
    "meta_info": {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-0.1, 7, "a"], [-2.0, 8, "b"]],
        "output_top_logprobs": [[[-0.1, 7, "a"]], [[-0.5, 9, "c"]]],
    },
}


def stream_of(*events: Any) -> str:
    """Return a whole stream of events."""
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def encoded(body: Any) -> bytes:
    """Return bytes and text as they are, and other values as JSON."""
    return body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()


class LocalServer:
    """A server whose routes may be changed while it runs.

    Attributes:
        routes: by path a body, a status and a body, or a function of the handler and the JSON received (None for GET)
            that returns one of these, or None if it has answered by itself; a missing path, or None, is a 404.
        received: the JSON of every POST.
    """

    def __init__(self, routes: Mapping[str, Any]) -> None:
        self.routes = dict(routes)
        self.received: list[Any] = []
        self.url = ""

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve meanwhile; yield the address."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else the body waits for the acknowledgement of the headers, 40 ms

            def log_message(self, *_: object) -> None:
                """Log nothing."""

            def do_GET(self, sent: Any = None) -> None:
                found = outer.routes.get(self.path, (404, "not found"))
                if callable(found):
                    found = found(self, sent)
                    if found is None:
                        return
                status, body = found if isinstance(found, tuple) else (404 if found is None else 200, found)
                content = encoded(body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "null")
                outer.received.append(sent)
                self.do_GET(sent)

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{http.server_port}"
        try:
            yield self.url
        finally:
            http.shutdown()
            http.server_close()
            thread.join()
