"""Operators' status, control and metrics on every engine: inherit `OperationsSuite` and name the engine."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from specplug.tools.client.figures import figures, read
from specplug.tools.client.http import ServerClient
from specplug.tools.forecast.scraped import read_metrics
from tests.engines.server import MODEL, Answer, Server

TEXT = "def area(r):\n    return 3.14 * r * r\n\ndef area(r):\n    return"  # goes on by repeating itself
REQUEST = {"model": MODEL, "prompt": TEXT, "max_tokens": 24, "temperature": 0}
KEY = "sesame"
ADMIN = "open sesame"
ON = {"mode": "on", "num_speculative_tokens": None}
ACCEPTED = "specplug_accepted_tokens_total"
SOURCE = "ngram/own text"
COUNTED = ("target_steps", "verified", "accepted")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

BAD_ORDERS: list[tuple[Any, str]] = [
    ({"mode": "of"}, "bad value for key 'mode'; found 'of'; expected 'on' or 'off'. Did you mean 'off'?"),
    ({"mode": "off", "num_speculative_tokens": -1}, "found -1; expected greater than or equal to 0"),
    (b"off", "the body is not JSON"),
]
"""Others are tested without a server, in tests/operator/test_control.py."""


def ask(server: Server, path: str, body: Any = None, key: str | None = KEY, **more: str) -> Answer:
    """Do as `Server.ask`, with a key and further headers."""
    return server.ask(path, body, more if key is None else {"Authorization": f"Bearer {key}", **more})


def complete(server: Server, **fields: Any) -> dict[str, Any]:
    """Return the answer to one greedy completion."""
    answer = ask(server, "/v1/completions", REQUEST | fields)
    assert answer.code == 200, answer.body
    return answer.json


def scraped(server: Server) -> Samples:
    """Return specplug's samples on /metrics by name and labels."""
    lines = ask(server, "/metrics").body.splitlines()
    found = [re.fullmatch(r"(specplug_\w+)\{(.*)\} (\S+)", line) for line in lines if not line.startswith("#")]
    return {(m[1], frozenset(re.findall(r'(\w+)="([^"]*)"', m[2]))): float(m[3]) for m in found if m}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


class OperationsSuite:
    """The engine's tests give the fixture `server`, with `KEY`, the proposer `ngram`, drafts of up to 8 tokens and
    metrics, and the fixture `control_file`, which it reads before every step.

    Attributes:
        key: the operator's.
        logged: a pattern of the engine's own log, before the line that says what was changed.
    """

    key: ClassVar[str] = KEY
    logged: ClassVar[str]

    @pytest.fixture
    def plain(self, server: Server) -> str:
        """The text as it is without drafts."""
        self.order(server, mode="off")
        text, draft_length = self.completed(server)
        assert draft_length == 0
        return text

    @pytest.fixture(autouse=True)
    def _start_state(self, request: pytest.FixtureRequest, control_file: Path) -> Iterator[None]:
        """Leave the server as it started, and let tests begin so."""
        used = "server" in request.fixturenames
        if used and "plain" in request.fixturenames:
            request.getfixturevalue("plain")
            self.order(request.getfixturevalue("server"), **ON)
        yield
        control_file.unlink(missing_ok=True)
        if used:
            self.order(request.getfixturevalue("server"), **ON)

    def order(self, server: Server, **order: Any) -> dict[str, Any]:
        """Give an operator's order; return the resulting state of the one engine."""
        answer = ask(server, "/specplug/mode", order, self.key)
        assert answer.code == 200, answer.body
        (state,) = answer.json["engines"]
        return state

    def status(self, server: Server) -> dict[str, Any]:
        """Return the status of the one engine."""
        (engine,) = ask(server, "/specplug/status", key=self.key).json["engines"]
        return engine

    def control(self, server: Server) -> dict[str, Any]:
        return self.status(server)["scheduler"]["control"]

    def counts(self, server: Server) -> dict[str, Any]:
        return self.status(server)["workers"][0]["metrics"]["total"]

    def completed(self, server: Server) -> tuple[str, int]:
        """Return the text of a completion, and the length of its longest draft."""
        before = self.counts(server)["verified_at"]
        text = complete(server)["choices"][0]["text"]
        spent = [now - then for now, then in zip(self.counts(server)["verified_at"], before, strict=True)]
        return text, sum(count > 0 for count in spent)

    def test_plan_watch_and_status_have_the_same_figures_whoever_opted_out(self, server):
        complete(server)
        self.order(server, mode="off")
        complete(server)
        found = read_metrics(server.url)
        metrics = self.status(server)["workers"][0]["metrics"]
        assert metrics["by_source"]["off"]["emitted"]
        total = {name: metrics["total"][name] - metrics["by_source"]["off"][name] for name in COUNTED}
        longest = len(found.survival)
        assert found.tau(longest) == pytest.approx(1 + total["accepted"] / total["target_steps"])
        assert found.tokens(longest) == pytest.approx(1 + total["verified"] / total["target_steps"])
        [watched] = asyncio.run(self._watched(server))["engines"]
        assert watched["tokens_per_step"] == pytest.approx(found.tau(longest))

    async def _watched(self, server: Server) -> dict[str, Any]:
        async with ServerClient(server.url, operator_key=self.key) as client:
            return figures(await read(client))

    def test_off_and_on_take_effect_at_once_and_change_no_text(self, server, plain, control_file):
        assert self.completed(server) == (plain, 8)
        off = {"mode": "off", "num_speculative_tokens": None, "ceiling": 0, "set_by": "request", "file_error": None}
        assert self.order(server, mode="off") == {**off, "file": str(control_file)}
        assert self.completed(server) == (plain, 0)
        self.order(server, mode="on")
        assert self.completed(server) == (plain, 8)

    @pytest.mark.parametrize("limit", [0, 3, 99])
    def test_a_limit_cuts_every_draft(self, server, plain, limit):
        assert self.order(server, num_speculative_tokens=limit)["mode"] == "on"
        assert self.completed(server) == (plain, min(limit, 8))
        assert self.order(server, num_speculative_tokens=None)["ceiling"] is None

    @pytest.mark.parametrize(("body", "what"), BAD_ORDERS)
    def test_a_bad_order_is_a_400_that_says_why_and_changes_nothing(self, server, body, what):
        answer = ask(server, "/specplug/mode", body, self.key)
        assert answer.code == 400
        assert what in answer.error
        assert (self.control(server)["mode"], self.control(server)["ceiling"]) == ("on", None)

    def test_the_control_file_is_obeyed_between_steps(self, server, plain, control_file):
        def write(order: str) -> None:
            beside = control_file.with_suffix(".new")
            beside.write_text(order)
            os.replace(beside, control_file)

        write('{"mode": "off"}')
        assert self.completed(server) == (plain, 0)
        assert self.control(server)["set_by"] == "control file"
        write('{"num_speculative_tokens": 2}')
        assert self.completed(server) == (plain, 2)
        write('{"num_speculative_tokens": ')
        assert self.completed(server) == (plain, 2)
        assert str(control_file) in self.control(server)["file_error"]
        self.order(server, num_speculative_tokens=5)  # the last change wins
        assert self.completed(server) == (plain, 5)
        control_file.unlink()
        assert self.completed(server) == (plain, 8)
        assert server.log().count("cannot read the control file") == 1
        changed = "speculation: mode on, at most 2 draft tokens, by control file"
        assert re.search(self.logged + changed, server.log()), "the engine's own log has what was changed"

    def test_a_scrape_shows_the_operators_word(self, server):
        for order, mode, ceiling in ((ON, 1, 8), ({"num_speculative_tokens": 3}, 1, 3), ({"mode": "off"}, 0, 0)):
            self.order(server, **order)
            samples = scraped(server)
            assert value(samples, "specplug_mode", engine="0") == mode
            assert value(samples, "specplug_ceiling_tokens", engine="0") == ceiling
            assert 0 <= value(samples, "specplug_snapshot_age_seconds", engine="0") < 60

    def test_a_scrape_shows_the_newest_counts_of_all_sources(self, server):
        before = scraped(server)
        complete(server)
        after = scraped(server)
        assert value(after, ACCEPTED, engine="0", source=SOURCE) > value(before, ACCEPTED, engine="0", source=SOURCE)
        reported, after = self.settled(server)
        for name, counts in reported.items():
            for field in ("emitted", "accepted", "proposed", "after_stop"):
                assert value(after, f"specplug_{field}_tokens_total", engine="0", source=name) == counts[field]
        position = value(after, "specplug_position_accepted_tokens_total", engine="0", source=SOURCE, position="7")
        assert position == reported[SOURCE]["accepted_at"][7] > 0

    def settled(self, server):
        """Return the counts by source, and a scrape; a step may end after the answer that it was launched for."""
        for _ in range(20):
            counts = self._counts(server)
            samples = scraped(server)
            later = self._counts(server)
            if counts == later:
                return counts, samples
        raise AssertionError("counts change without requests")

    def _counts(self, server):
        return self.status(server)["workers"][0]["metrics"]["by_source"]


def assert_every_process_exports_every_engine(several: Server, gauge: str) -> None:
    """Orders and scrapes reach both engines of a server of two, whichever of its processes answers."""
    for _ in range(4):
        complete(several)
    seen = [scraped(several) for _ in range(4)]
    accepted = [value(samples, ACCEPTED, engine=engine, source=SOURCE) for samples in seen for engine in ("0", "1")]
    assert all(count > 0 for count in accepted)
    assert len(set(accepted[::2])) == len(set(accepted[1::2])) == 1
    assert ask(several, "/metrics").body.count(f"# TYPE {gauge} gauge") == 1
    orders = [ask(several, "/specplug/mode", {"num_speculative_tokens": limit}).json for limit in (4, 2)]
    assert [[engine["ceiling"] for engine in order["engines"]] for order in orders] == [[4, 4], [2, 2]]
    for _ in range(4):
        engines = ask(several, "/specplug/status").json["engines"]
        assert [engine["engine"] for engine in engines] == [0, 1]
        assert [engine["scheduler"]["control"]["ceiling"] for engine in engines] == [2, 2]
