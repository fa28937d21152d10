"""The client that sent an HTTP request, its identification by its API key, and the isolation of its state.

State kept from one client's requests must not be readable by another client.  The key itself stays in the process that
serves HTTP; other processes receive a digest of it, keyed with a secret that the server draws at start-up, which
reveals nothing of the key.  Whether the engine or a proxy checks keys, a client cannot produce another client's digest
without that client's key.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any

from specplug.requests import predicted

SECRET_VARIABLE = "SPECPLUG_CLIENT_SECRET"
"""Environment variable of the secret: all HTTP processes of a server inherit it and compute the same digests."""

_KEYS = (b"authorization", b"x-api-key", b"api-key")
_current: ContextVar[Client | None] = ContextVar("specplug_client", default=None)


class Client:
    """The client of one HTTP request.

    Attributes:
        headers: the request's headers, as in an ASGI scope.
        digest: see `digest`.
    """

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.headers = list(headers)
        self.digest = digest(self.headers)
        self._at_end: list[Callable[[], None]] = []

    def at_end(self, action: Callable[[], None]) -> None:
        """Call `action` when the request has been served or has failed."""
        self._at_end.append(action)

    def end(self) -> None:
        """Call all actions."""
        for action in self._at_end:
            action()


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Draw the server's secret unless a parent process has done so."""
    environment.setdefault(SECRET_VARIABLE, secrets.token_hex(32))


def digest(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the client's digest from a request's headers, or None if they hold no key."""
    shown = _values(headers)
    secret = os.environ.get(SECRET_VARIABLE, "")
    if not shown or not secret:
        return None
    return hashlib.blake2b(repr(shown).encode(), key=secret.encode()[:64], digest_size=16).hexdigest()


def keys_in(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the API keys that a request shows, without the scheme before them."""
    return [re.sub(rb"(?i)^bearer ", b"", value).strip() for value in _values(headers)]


def _values(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    return [value for name, value in headers if name.lower() in _KEYS]


def current() -> Client | None:
    """Return the client whose request is being served; set by `Clients`."""
    return _current.get()


class Clients:
    """ASGI middleware that makes the client, and `predicted.current`, available to the code that serves its request."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        client = Client(scope["headers"])
        token = _current.set(client)
        predicted.begin()  # here, as engines serve a request in tasks of their own and stream its answer in this one
        try:
            await self._app(scope, receive, send)
        finally:
            _current.reset(token)
            client.end()


def isolation_key(
    tenant: str | None,
    engine: tuple[str | None, ...] = (),
    lora_id: int | str | None = None,
    client: str | None = None,
) -> str:
    """Return a request's isolation key, built from every known identity of its sender and the LoRA adapter's id.

    The tenant is the client's own claim, while a cache salt may come from a trusted proxy, so no part replaces another.
    Distinct combinations give distinct keys: clients choose some of the parts and must not be able to spell another
    client's key.  Keys are digests, because proposers keep them and a salt may be of any length.

    Args:
        tenant: the tenant that the request names, or None.
        engine: the values that partition the engine's own prefix cache, such as a cache salt; None or "" for none.
        lora_id: id of the LoRA adapter; None for the base model.
        client: `Client.digest`; None for a request without an API key.

    Returns:
        The key, 64 characters; "" for requests that have none of these parts, which share state.
    """
    own = tuple(part or None for part in engine) if any(engine) else ()
    if tenant is None and lora_id is None and not client and not own:
        return ""
    return hashlib.sha256(repr((tenant, own, lora_id, client or None)).encode()).hexdigest()
