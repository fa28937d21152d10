"""Explainer: answers which tokens of a served answer were drafted by what, from the trace that the server writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from specplug.errors import RequestError
from specplug.explain.explanation import Explanation, explained, rows_of
from specplug.explain.requests import MAX_LISTED, Requests, requests_of
from specplug.requests.clients import Tenants
from specplug.settings.model import Settings
from specplug.text.token_texts import decoder

NEWEST = 256 << 20
"""Bytes at the end of a trace in which a request is searched, for about two seconds."""

LISTED = 32 << 20
"""Bytes at the end of a trace of which all requests are listed: reading every row takes about as long."""


class Explainer:
    """Explains the requests of one server, one at a time, on a thread.

    Args:
        settings: `trace.path` names the trace, which workers on this machine write; `tenants` assigns tenants.
        tokenizer: the server's; None shows tokens as numbers.
    """

    def __init__(self, settings: Settings, tokenizer: Any) -> None:
        self._path = settings.trace.path
        self._decode = decoder(tokenizer)
        self._tenants = Tenants(settings.tenants)
        self._by_key = settings.tenants.keys is not None
        self._turn = asyncio.Lock()

    def reader(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str | None, bool]:
        """Return the tenant whose requests alone a client may see, and whether its API key proves that it is that one.

        Raises:
            RequestError: the headers name several tenants.
        """
        tenant = self._tenants.of(headers)
        return tenant, self._by_key and tenant is not None

    async def explain(self, request: str, tenant: str | None) -> Explanation:
        """Return the explanation of a request, by its id or the begin of it; of this tenant's alone if one is given.

        Raises:
            SpecplugError: there is no trace, no such request, or several.
        """
        path = self._trace()
        async with self._turn:
            return await asyncio.to_thread(self._explained, path, request, tenant)

    async def requests(self, tenant: str | None, limit: int) -> Requests:
        """Return the slowest and the worst drafted of the newest requests; of this tenant's alone if one is given.

        Raises:
            SpecplugError: there is no trace.
        """
        path = self._trace()
        async with self._turn:
            return await asyncio.to_thread(requests_of, path, tenant, LISTED, min(limit, MAX_LISTED))

    def _trace(self) -> str:
        if self._path is None:
            remedy = "Start the server with a file's name in this setting; every step then waits for its results"
            raise RequestError.build("this server writes no trace", who="trace.path", found="null", remedy=remedy)
        return self._path

    def _explained(self, path: str, request: str, tenant: str | None) -> Explanation:
        return explained(rows_of(path, request, tenant, NEWEST), self._decode)
