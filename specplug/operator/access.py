"""Access control of the operator's HTTP routes, by the operator's key or, without a key, from the local machine only.

The routes show every tenant's names and sizes and change what all clients are served, so a client's API key is not
sufficient.  Requests are read as ASGI scopes, so one rule applies to every engine.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from specplug.errors import SpecplugError, quote

KEY_VARIABLE = "SPECPLUG_OPERATOR_KEY"
KEY_HEADER = "X-Specplug-Operator-Key"

Scope = Mapping[str, Any]

_FORWARDED = (
    # proxies, load balancers and API gateways
    *("forwarded", "via", "x-forwarded", "x-original-", "x-originating-", "x-real-ip", "x-client-ip", "x-remote-"),
    *("x-cluster-client-ip", "x-proxyuser-ip", "x-envoy-", "x-amzn-", "x-arr-", "x-appengine-", "x-cloud-"),
    # content delivery networks
    *("cdn-loop", "cf-", "true-client-ip", "fastly-", "x-amz-cf-", "x-azure-", "akamai-", "x-akamai-", "fly-"),
    *("x-vercel-", "x-nf-", "x-sucuri-", "incap-", "x-cdn"),
)
"""Prefixes of the headers that proxies add.  Requests through a proxy on this machine all appear to be local."""


class Refusal(NamedTuple):
    """HTTP status and message of the answer to a client that is not an operator."""

    status: int
    message: str


class Operators:
    """The operators of one server.

    Args:
        keys: the engine's own operator keys; None and "" are ignored.
        environment: environment variables, in which `KEY_VARIABLE` may give one more key.
        api_keys: the server's own API keys, one of which is required where there is no operator's key; often none.
    """

    def __init__(
        self,
        keys: Iterable[str | None] = (),
        environment: Mapping[str, str] = os.environ,
        api_keys: Iterable[str] = (),
    ) -> None:
        known = (*keys, environment.get(KEY_VARIABLE, "").strip())
        self._keys = [key.encode() for key in known if key]
        self._api_keys = [key.encode() for key in api_keys if key]

    @property
    def description(self) -> str:
        """Describe who has access, for logs."""
        return "with the operator's key" if self._keys else f"from this machine ({KEY_VARIABLE} opens it to others)"

    def refusal(self, scope: Scope) -> Refusal | None:
        """Return the refusal of a request, given its ASGI scope; None for an operator's request."""
        headers = _headers(scope)
        hosts = [value for name, value in headers if name == "host"]
        if len(hosts) > 1:  # proxies and servers disagree on which of them counts
            return _refused(400, scope, found=f"{len(hosts)} Host headers", expected="one", remedy="Send one")
        if not self._keys:
            return _from_elsewhere(scope, dict(headers)) or self.api_key_refusal(scope)
        shown = [*_bearer_keys(headers), *(value for name, value in headers if name == KEY_HEADER.lower())]
        if _any_equal(shown, self._keys):
            return None
        found = "another key" if shown else "no key"
        remedy = f"Send it as 'Authorization: Bearer KEY' or '{KEY_HEADER}: KEY'"
        return _refused(401, scope, found=found, expected="the operator's key", remedy=remedy)

    def api_key_refusal(self, scope: Scope) -> Refusal | None:
        """Return the refusal of a request that shows none of the server's own API keys, if it has any."""
        if not self._api_keys or _any_equal(_bearer_keys(_headers(scope)), self._api_keys):
            return None
        return Refusal(401, "Unauthorized")


def _headers(scope: Scope) -> list[tuple[str, bytes]]:
    return [(name.decode("latin-1").lower(), value) for name, value in scope["headers"]]


def _bearer_keys(headers: Iterable[tuple[str, bytes]]) -> list[bytes]:
    parts = [value.partition(b" ") for name, value in headers if name == "authorization"]
    return [key for scheme, _, key in parts if scheme.lower() == b"bearer"]


def _any_equal(shown: Iterable[bytes], keys: Iterable[bytes]) -> bool:
    """Compare keys, in a time that says nothing about any."""
    digests = [hashlib.sha256(key).digest() for key in keys]
    return any(secrets.compare_digest(hashlib.sha256(one).digest(), key) for one in shown for key in digests)


def _from_elsewhere(scope: Scope, headers: Mapping[str, bytes]) -> Refusal | None:
    """Return the refusal of a request that does not come from a program on this machine, or None."""
    forwarded = next((name for name in headers if name.startswith(_FORWARDED)), None)
    if forwarded is not None:
        return _not_local(scope, f"a request that a proxy has forwarded, by its header {forwarded!r}")
    if "origin" in headers:  # a web page can make the browser send any request
        return _not_local(scope, "a request of a web page, by its header 'origin'")
    site = headers.get("sec-fetch-site", b"none")
    if site not in (b"none", b"same-origin"):  # browsers send it where they send no origin, too
        return _not_local(scope, f"a request of another web page, by its header 'sec-fetch-site: {quote(site)}'")
    host = headers.get("host", b"localhost").decode("latin-1")
    if not _is_local_name(host):  # a web page under a name that its owner has made an address of this machine
        return _not_local(scope, f"a request to {quote(host)}, which is no name of this machine")
    peer = scope.get("client")
    if peer is None or not _is_loopback(peer[0]):
        return _not_local(scope, f"a request from {'an unknown address' if peer is None else peer[0]}")
    return None


def _not_local(scope: Scope, found: str) -> Refusal:
    expected = "one from this machine, as the server has no operator's key"
    remedy = f"Use localhost there, or set {KEY_VARIABLE} for the server and send it as 'Authorization: Bearer KEY'"
    return _refused(403, scope, found=found, expected=expected, remedy=remedy)


def _refused(status: int, scope: Scope, *, found: str, expected: str, remedy: str) -> Refusal:
    who = str(scope.get("path", "this route"))
    error = SpecplugError.build("for operators only", who=who, found=found, expected=expected, remedy=remedy)
    return Refusal(status, str(error))


def _is_local_name(host: str) -> bool:
    """Return whether a Host header is localhost or a loopback address, with a port or without."""
    name = re.sub(r":[0-9]*$", "", host).removeprefix("[").removesuffix("]")
    return name.lower() == "localhost" or _is_loopback(name)


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
