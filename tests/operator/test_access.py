"""The operator's routes answer to the operator's key or, without one, to this machine, and refuse everyone else."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.operator.access import KEY_VARIABLE, Operators

KEY = {KEY_VARIABLE: "sesame"}
HERE = ("127.0.0.1", 50000)


def scope(peer: Any = HERE, path: str = "/specplug/mode", **headers: str) -> dict[str, Any]:
    """Return the ASGI scope of a request; underscores of header names are dashes."""
    raw = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "path": path, "client": peer, "headers": raw}


LOCAL = [
    *({"peer": (host, 1), "host": "localhost"} for host in ("127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1")),
    *({"sec_fetch_site": site, "host": "localhost"} for site in ("same-origin", "none")),
    *({"host": host} for host in ("localhost:8000", "LOCALHOST", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "[::1]")),
]


@pytest.mark.parametrize("request_", LOCAL)
def test_without_a_key_this_machine_is_answered_by_all_of_its_names(request_: dict[str, Any]) -> None:
    assert Operators(environment={}).refusal(scope(**request_)) is None


PROXIES = [
    *("Forwarded", "X-Forwarded-For", "x_forwarded_proto", "X-Forwarded", "X-Real-IP", "Via", "X-Original-Host"),
    *("X-Envoy-External-Address", "X-Amzn-Trace-Id", "X-Cluster-Client-IP", "X-Remote-Addr", "X-ARR-SSL"),
    *("CF-Connecting-IP", "CF-Ray", "CDN-Loop", "Fastly-Client-IP", "X-Amz-Cf-Id", "X-Azure-ClientIP"),
    *("X-Akamai-Edgescape", "Fly-Client-IP", "X-Vercel-Id", "X-NF-Client-Connection-IP", "True-Client-IP"),
]
ELSEWHERE: list[tuple[dict[str, Any], str]] = [
    *(
        ({"peer": (host, 1)}, f"found a request from {host}; expected one from this machine")
        for host in ("10.0.0.5", "128.0.0.1", "fe80::1", "::ffff:10.0.0.5", "localhost", "", "testclient")
    ),
    ({"peer": None}, "an unknown address"),  # such a peer may be a proxy at the other end of a Unix socket
    *(({header: "127.0.0.1"}, header.lower().replace("_", "-")) for header in PROXIES),
    # A GET of an image or a link that another site makes a browser send has no Origin.
    *(({"sec_fetch_site": site, "host": "localhost"}, "web page") for site in ("cross-site", "same-site", "odd\x1b")),
    ({"origin": "http://localhost:8000"}, "web page"),
    # A browser sends no `Origin` with the GET of such a page (DNS rebinding), and lets it read the answer.
    *(
        ({"host": host}, "no name of this machine")
        for host in ("evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", "\n")
    ),
]


@pytest.mark.parametrize(("request_", "found"), ELSEWHERE)
def test_without_a_key_everybody_else_is_refused(request_: dict[str, Any], found: str) -> None:
    refused = Operators(environment={}).refusal(scope(**request_))
    assert refused is not None
    assert refused.status == 403
    assert refused.message.startswith("/specplug/mode: for operators only; found a request")
    assert found in refused.message
    assert refused.message.isprintable()


@pytest.mark.parametrize("environment", [{}, KEY])
def test_two_host_headers_are_refused_whoever_sends_them(environment: dict[str, str]) -> None:
    """A proxy may have checked the other one."""
    request = scope(host="localhost", authorization="Bearer sesame")
    request["headers"].append((b"Host", b"localhost"))
    refused = Operators(environment=environment).refusal(request)
    assert refused is not None
    assert refused.status == 400
    assert "found 2 Host headers" in refused.message


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_key_is_none(value: str) -> None:
    operators = Operators([None, ""], {KEY_VARIABLE: value})
    assert operators.refusal(scope()) is None
    assert operators.refusal(scope(("10.0.0.5", 1), authorization="Bearer ")) is not None


@pytest.mark.parametrize("peer", [HERE, ("10.0.0.5", 1), None])
@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sesame"},
        {"authorization": "bearer sesame"},
        {"x_specplug_operator_key": "sesame"},
        {
            "authorization": "Bearer theirs",
            "x_specplug_operator_key": "sesame",
            "x_forwarded_for": "10.1.1.1",
        },
    ],
)
def test_the_key_opens_from_anywhere(peer: Any, headers: dict[str, str]) -> None:
    assert Operators(environment=KEY).refusal(scope(peer, **headers)) is None


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, "no key"),
        ({"authorization": "Basic sesame"}, "no key"),
        ({"authorization": "sesame"}, "no key"),
        ({"authorization": "Bearer Sesame"}, "another key"),
        ({"authorization": "Bearer sesame "}, "another key"),
        ({"x_specplug_operator_key": ""}, "another key"),
    ],
)
def test_with_a_key_nothing_else_opens_not_even_from_this_machine(headers: dict[str, str], found: str) -> None:
    refused = Operators(environment=KEY).refusal(scope(**headers))
    assert refused is not None
    assert refused.status == 401
    assert f"found {found}; expected the operator's key" in refused.message
    assert "sesame" not in refused.message.lower()


def test_the_engines_own_key_and_the_variables_open_alike() -> None:
    operators = Operators(["admin"], KEY)
    assert operators.refusal(scope(authorization="Bearer admin")) is None
    assert operators.refusal(scope(authorization="Bearer sesame")) is None
    assert operators.refusal(scope(authorization="Bearer other")) is not None


def test_a_key_of_any_letters() -> None:
    operators = Operators(environment={KEY_VARIABLE: "schlüssel\U0001f511"})
    assert operators.refusal(scope(authorization="Bearer schlüssel\U0001f511")) is None
    assert operators.refusal(scope(authorization="Bearer schlussel")) is not None


API_KEYS = {"environment": {}, "api_keys": ["sk-1", "sk-2", ""]}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer sk-2"}, None),
        ({"authorization": "bearer sk-1"}, None),
        ({"authorization": "Bearer sk-3"}, 401),
        ({"authorization": "Basic sk-1"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"x_specplug_operator_key": "sk-1"}, 401),
        ({}, 401),
        ({"authorization": "Bearer sk-1", "origin": "http://localhost"}, 403),
    ],
)
def test_without_an_operators_key_the_servers_own_key_is_required(headers: dict[str, str], status: Any) -> None:
    refused = Operators(**API_KEYS).refusal(scope(**headers))
    assert (None if refused is None else refused.status) == status
    assert Operators(environment=KEY, api_keys=["sk-1"]).refusal(scope(authorization="Bearer sesame")) is None
