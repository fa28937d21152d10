"""The client that sent an HTTP request: its identity, its tenant, its quota, and the isolation of its state.

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
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from specplug.corpus.names import check_name
from specplug.errors import RequestError, SettingsError, SpecplugError
from specplug.input_errors import json_object
from specplug.requests import predicted
from specplug.settings.model import Limits, TenantSettings

SECRET_VARIABLE = "SPECPLUG_CLIENT_SECRET"
"""Environment variable of the secret: all HTTP processes of a server inherit it and compute the same digests."""

_DIGEST = re.compile("[0-9a-f]{64}")
_KEYS = (b"authorization", b"x-api-key", b"api-key")
_current: ContextVar[RequestClient | None] = ContextVar("specplug_client", default=None)


class RequestClient:
    """The client of one HTTP request: its headers, as in an ASGI scope, and its `digest`."""

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


def current_client() -> RequestClient | None:
    """Return the client whose request is being served; set by `Clients`."""
    return _current.get()


class Clients:
    """ASGI middleware that makes the client and its prediction available to the code that serves its request."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        client = RequestClient(scope["headers"])
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
        client: `RequestClient.digest`; None for a request without an API key.

    Returns:
        The key, 64 characters; "" for requests that have none of these parts, which share state.
    """
    own = tuple(part or None for part in engine) if any(engine) else ()
    if tenant is None and lora_id is None and not client and not own:
        return ""
    return hashlib.sha256(repr((tenant, own, lora_id, client or None)).encode()).hexdigest()


class BusyError(RequestError):
    """A client or the server holds as many reference tokens as it may; engines answer 429."""


class Quota:
    """Counts the reference tokens of requests that wait or run, in one process that serves HTTP."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._reserved: Counter[str] = Counter()

    @property
    def reserved_tokens(self) -> int:
        """Tokens that all clients hold."""
        return self._reserved.total()

    def reserve(self, client: str, tokens: int) -> Callable[[], None]:
        """Count tokens of a client; return a function that stops counting them, once however often it is called.

        Raises:
            BusyError: the client or the server would hold too many.
        """
        limits = (
            ("of this client", "max_client_reference_tokens", self._reserved[client]),
            ("of all clients", "max_server_reference_tokens", self.reserved_tokens),
        )
        for whose, setting, reserved in limits:
            limit = getattr(self._limits, setting)
            total = reserved + tokens
            if total > limit:
                raise BusyError.build(
                    f"requests {whose} hold too many reference tokens",
                    who="request fields",
                    found=f"{total} with this request, each of its prompts and samples counted",
                    expected=f"at most {limit}, limits.{setting}",
                    remedy="Send it again when others have finished, with smaller references, or with fewer samples",
                )
        self._reserved[client] += tokens
        left = [tokens]

        def release() -> None:
            if left:
                self._reserved[client] -= left.pop()
                if self._reserved[client] <= 0:
                    del self._reserved[client]

        return release


class Tenants:
    """The tenants of one server's clients.

    Args:
        settings: `header` or `keys`; with neither, requests name their tenants themselves.

    Raises:
        SettingsError: the file of keys cannot be read, or is malformed.
    """

    def __init__(self, settings: TenantSettings) -> None:
        self._header = None if settings.header is None else settings.header.lower().encode()
        self._keys = None if settings.keys is None else _read(Path(settings.keys))
        self._source = f"the header {settings.header!r}" if settings.keys is None else "the client's API key"

    @property
    def are_assigned(self) -> bool:
        """Whether the server assigns tenants, so that requests must not name one."""
        return self._header is not None or self._keys is not None

    def of(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the tenant of an HTTP request; None if it has none, or if the server assigns none.

        Raises:
            RequestError: the header is there more than once, holds no valid name, or several keys are shown.
        """
        if self._header is not None:
            found = {value.decode(errors="replace") for name, value in headers if name.lower() == self._header}
        elif self._keys is not None:
            digests = (hashlib.sha256(key).hexdigest() for key in keys_in(headers))
            found = {self._keys[digest] for digest in digests if digest in self._keys}
        else:
            return None
        if len(found) > 1:
            raise RequestError.build(f"{self._source} names several tenants", found=len(found), expected="one")
        return next((_checked(name) for name in found), None)

    def refuse(self, tenant: str | None) -> None:
        """Raise `RequestError` for a request that names a tenant where the server assigns them."""
        if tenant is not None and self.are_assigned:
            raise RequestError.build(
                "this server assigns tenants",
                who="request field 'tenant'",
                found=repr(tenant),
                expected=f"none, as {self._source} gives the tenant",
                remedy="Omit the field",
            )


def _checked(name: str) -> str:
    try:
        return check_name("tenant", name)
    except SpecplugError as error:
        raise RequestError(str(error)) from None


def _read(path: Path) -> Mapping[str, str]:
    """Return the tenants by the SHA-256 of API keys."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError.build("cannot read the tenants of keys", who=str(path), found=str(error)) from error
    tenants = json_object(text, SettingsError, "malformed tenants of keys", who=str(path))
    if not all(map(_DIGEST.fullmatch, tenants)):
        raise SettingsError.build(
            "malformed tenants of keys",
            who=str(path),
            found="an entry that is no digest",
            expected="a JSON object with the SHA-256 of each API key, 64 hexadecimal digits, and its tenant",
        )
    return {key: check_name("tenant", name) for key, name in tenants.items()}
