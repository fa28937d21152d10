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


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_without_a_key_this_machine_is_answered(host: str) -> None:
    assert Operators(environment={}).refusal(scope((host, 1), user_agent="curl", host="localhost")) is None


@pytest.mark.parametrize("host", ["10.0.0.5", "128.0.0.1", "fe80::1", "::ffff:10.0.0.5", "localhost", "", "testclient"])
def test_without_a_key_nobody_else_is(host: str) -> None:
    refused = Operators(environment={}).refusal(scope((host, 1)))
    assert refused is not None
    assert refused.status == 403
    assert refused.message == (
        f"/specplug/mode: for operators only; found a request from {host}; expected one from this machine, as the "
        "server has no operator's key. Use localhost there, or set SPECPLUG_OPERATOR_KEY for the server and send it as "
        "'Authorization: Bearer KEY'"
    )


def test_a_peer_without_an_address_is_nobody_we_know() -> None:
    """Such a peer may be a proxy at the other end of a Unix socket."""
    refused = Operators(environment={}).refusal(scope(None))
    assert refused is not None
    assert "an unknown address" in refused.message


@pytest.mark.parametrize(
    "header",
    [
        *("Forwarded", "X-Forwarded-For", "x_forwarded_proto", "X-Forwarded", "X-Real-IP", "Via", "X-Original-Host"),
        *("X-Envoy-External-Address", "X-Amzn-Trace-Id", "X-Cluster-Client-IP", "X-Remote-Addr", "X-ARR-SSL"),
        *("CF-Connecting-IP", "CF-Ray", "CDN-Loop", "Fastly-Client-IP", "X-Amz-Cf-Id", "X-Azure-ClientIP"),
        *("X-Akamai-Edgescape", "Fly-Client-IP", "X-Vercel-Id", "X-NF-Client-Connection-IP", "True-Client-IP"),
    ],
)
def test_a_proxy_on_this_machine_is_not_this_machine(header: str) -> None:
    refused = Operators(environment={}).refusal(scope(**{header: "127.0.0.1"}))
    assert refused is not None
    assert refused.status == 403
    assert header.lower().replace("_", "-") in refused.message


@pytest.mark.parametrize("environment", [{}, KEY])
def test_two_host_headers_are_refused_whoever_sends_them(environment: dict[str, str]) -> None:
    """A proxy may have checked the other one."""
    request = scope(host="localhost", authorization="Bearer sesame")
    request["headers"].append((b"Host", b"localhost"))
    refused = Operators(environment=environment).refusal(request)
    assert refused is not None
    assert refused.status == 400
    assert "found 2 Host headers" in refused.message


@pytest.mark.parametrize(
    ("site", "is_refused"),
    [("cross-site", True), ("same-site", True), ("odd\x1b", True), ("same-origin", False), ("none", False)],
)
def test_a_request_that_another_site_makes_a_browser_send_is_refused(site: str, is_refused: bool) -> None:
    """A GET of an image or a link has no Origin."""
    refused = Operators(environment={}).refusal(scope(sec_fetch_site=site, host="localhost"))
    assert (refused is not None) == is_refused
    assert refused is None or (refused.status == 403 and refused.message.isprintable())


def test_a_web_page_is_not_this_machine() -> None:
    refused = Operators(environment={}).refusal(scope(origin="http://localhost:8000"))
    assert refused is not None
    assert refused.status == 403


@pytest.mark.parametrize("host", ["localhost:8000", "LOCALHOST", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "[::1]"])
def test_this_machine_by_its_own_names(host: str) -> None:
    assert Operators(environment={}).refusal(scope(host=host)) is None


@pytest.mark.parametrize("host", ["evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", "\n"])
def test_a_web_page_with_a_name_that_leads_here_is_not_this_machine(host: str) -> None:
    """A browser sends no `Origin` with the GET of such a page (DNS rebinding), and lets it read the answer."""
    refused = Operators(environment={}).refusal(scope(host=host))
    assert refused is not None
    assert refused.status == 403
    assert "\n" not in refused.message


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_key_is_none(value: str) -> None:
    operators = Operators([None, ""], {KEY_VARIABLE: value})
    assert not operators.have_key
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


def test_who_is_answered_is_stated_without_the_key() -> None:
    assert Operators(environment=KEY).whom == "with the operator's key"
    assert KEY_VARIABLE in Operators(environment={}).whom


def test_a_key_of_any_letters() -> None:
    operators = Operators(environment={KEY_VARIABLE: "schlüssel\U0001f511"})
    assert operators.refusal(scope(authorization="Bearer schlüssel\U0001f511")) is None
    assert operators.refusal(scope(authorization="Bearer schlussel")) is not None
