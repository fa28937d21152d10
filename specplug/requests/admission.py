"""Admission of requests: the tenants that a server assigns to its clients, and limits on the tokens that they hold."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from specplug.corpus.names import check_name
from specplug.errors import RequestError, SettingsError, SpecplugError
from specplug.requests.clients import keys_in
from specplug.settings.mistakes import no_duplicates
from specplug.settings.model import Limits, TenantSettings

_DIGEST = re.compile("[0-9a-f]{64}")


class BusyError(RequestError):
    """A client or the server holds as many reference tokens as it may; engines answer 429."""


class Quota:
    """Counts the reference tokens of requests that wait or run, in one process that serves HTTP.

    Args:
        limits: `max_client_reference_tokens` and `max_server_reference_tokens`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Tokens that all clients hold."""
        return self._held.total()

    def hold(self, client: str, tokens: int) -> Callable[[], None]:
        """Count tokens of a client; return a function that stops counting them, once however often it is called.

        Raises:
            BusyError: the client or the server would hold too many.
        """
        limits = (
            ("of this client", "max_client_reference_tokens", self._held[client]),
            ("of all clients", "max_server_reference_tokens", self.held),
        )
        for whose, limit, held in limits:
            most, found = getattr(self._limits, limit), held + tokens
            if found > most:
                raise BusyError.build(
                    f"requests {whose} hold too many reference tokens",
                    who="request fields",
                    found=f"{found} with this request, each of its prompts and samples counted",
                    expected=f"at most {most}, limits.{limit}",
                    remedy="Send it again when others have finished, with smaller references, or with fewer samples",
                )
        self._held[client] += tokens
        left = [tokens]

        def release() -> None:
            if left:
                self._held[client] -= left.pop()
                if self._held[client] <= 0:
                    del self._held[client]

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
        found: Any = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=no_duplicates)
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError.build("cannot read the tenants of keys", who=str(path), found=str(error)) from error
    wrong = not isinstance(found, dict) or next((key for key in found if not _DIGEST.fullmatch(key)), None)
    if wrong:
        raise SettingsError.build(
            "malformed tenants of keys",
            who=str(path),
            found="an entry that is no digest" if wrong is not True else type(found).__name__,
            expected="a JSON object with the SHA-256 of each API key, 64 hexadecimal digits, and its tenant",
        )
    return {key: check_name("tenant", name) for key, name in found.items()}
