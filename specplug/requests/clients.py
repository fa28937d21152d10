"""The client that an HTTP request comes from, told by the API key that it shows.

What is remembered of one client's requests is not to be read by another's.  The key itself stays in the process that
serves HTTP: on from there goes a digest, keyed by a secret that a server draws when it starts, which tells nothing of
the key.  Whoever checks keys, the engine or a proxy before it, a client cannot make another one's digest without that
one's key.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any

SECRET_VARIABLE = "SPECPLUG_CLIENT_SECRET"
"""In the environment, so that all processes of a server which serve HTTP make the same digests."""

_KEYS = (b"authorization", b"x-api-key", b"api-key")
_current: ContextVar[str | None] = ContextVar("specplug_client", default=None)


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Draw the server's secret unless a process that started this one has done so."""
    environment.setdefault(SECRET_VARIABLE, secrets.token_hex(32))


def digest(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return a client's digest, given a request's headers; None where it shows no key."""
    shown = [value for name, value in headers if name.lower() in _KEYS]
    secret = os.environ.get(SECRET_VARIABLE, "")
    if not shown or not secret:
        return None
    return hashlib.blake2b(repr(shown).encode(), key=secret.encode()[:64], digest_size=16).hexdigest()


def current() -> str | None:
    """Return the digest of the client whose request is being served, within `Clients`."""
    return _current.get()


class Clients:
    """ASGI middleware that tells whatever serves a request which client it comes from."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        token = _current.set(digest(scope["headers"]))
        try:
            await self._app(scope, receive, send)
        finally:
            _current.reset(token)
