"""What operators look at, on every engine: the Grafana dashboard over a real Prometheus, and `specplug watch`.

Inherit `WatchingSuite` and name the engine.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from specplug.corpus.documents import Document
from specplug.corpus.store import Store
from specplug.operator.status import REASONS
from specplug.text.fingerprint import fingerprint
from tests.engines.plain import ids, tokenizer
from tests.engines.server import Server
from tests.engines.suites.operations import KEY, ask, complete
from tests.engines.suites.server import TEXTS
from tests.prometheus import JOB, WINDOW, Prometheus, filled, queries, scraping
from tests.tools.cli.tools import invoke, stated

CORPORA = ("handbook", "wiki")
PICTURE = os.environ.get("SPECPLUG_PICTURE")
"""The file that a run draws the dashboard to, after a minute of requests in place of seconds."""


def settings(root: Path) -> dict[str, Any]:
    corpora = {"store": str(root), "poll_seconds": 0.05}
    return {"proposer": "retrieval", "policy": "batch", "corpora": corpora, "faults": {"host_deadline_ms": None}}


@contextlib.contextmanager
def requests_sent(server: Server, together: int = 3) -> Iterator[None]:
    """Keep requests in flight meanwhile."""
    ended = threading.Event()

    def send(number: int) -> None:
        while not ended.is_set():
            complete(server, prompt=TEXTS[number % len(TEXTS)], max_tokens=48)
            number += together

    threads = [threading.Thread(target=send, args=(number,)) for number in range(together)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


class WatchingSuite:
    """The engine's tests give the fixture `server`, with `settings(root)`, the API key `KEY` and metrics.

    Attributes:
        key: the operator's.
        name: the engine's, in `versions`.
    """

    key: ClassVar[str] = KEY
    name: ClassVar[str]

    @pytest.fixture(scope="class")
    def root(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A store with the corpora `CORPORA`."""
        store = Store.create(tmp_path_factory.mktemp("corpora") / "store", fingerprint(tokenizer()))
        for number, name in enumerate(CORPORA):
            store.add(name, [Document("text", np.array(ids(TEXTS[number]), np.int32))], tenant="acme")
        return store.root

    @pytest.fixture(scope="class")
    def prometheus(self, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
        """A Prometheus that has scraped the server at work."""
        target = server.url.removeprefix("http://")
        with scraping(tmp_path_factory.mktemp("prometheus"), target, KEY) as prometheus:
            with requests_sent(server):
                if PICTURE:
                    self.minute(server)
                prometheus.wait_for(f"count_over_time(specplug_mode[{WINDOW}])", 3)
                prometheus.wait_for("sum(specplug_proposed_tokens_total)", 200)
            time.sleep(1.0)  # so that the last requests are scraped
            yield prometheus

    def minute(self, server: Server) -> None:
        """Let a picture show an operator's orders, too."""
        for seconds, order in ((25, {"num_speculative_tokens": 4}), (12, {"mode": "off"}), (8, {"mode": "on"})):
            time.sleep(seconds)
            assert ask(server, "/specplug/mode", order, self.key).code == 200
        assert ask(server, "/specplug/mode", {"num_speculative_tokens": None}, self.key).code == 200
        time.sleep(25)

    def test_every_query_of_the_dashboard_returns_data_with_the_labels_of_its_legend(self, prometheus, server):
        variables = prometheus.variables()
        assert variables["job"] == JOB
        assert variables["engine"] == "0"
        found: dict[str, set[str]] = {}
        for query in queries():
            results = prometheus.query(filled(query.expression, **variables))
            assert results, query
            for labels, value in results:
                assert labels.keys() >= query.labels, (query, labels)
                assert math.isfinite(value), (query, labels, value)
                for name in query.labels:
                    found.setdefault(name, set()).add(labels[name])
        assert found["instance"] == {prometheus.target}
        assert found["reason"] == {*REASONS}
        assert {"retrieval/own text", "none"} <= found["source"]
        assert {"0", "1"} <= found["position"]
        assert "retrieval" in found["plugin"]

    def test_prometheus_has_the_servers_counts(self, prometheus, server):
        (engine,) = ask(server, "/specplug/status", key=self.key).json["engines"]
        expected = engine["workers"][0]["metrics"]["total"]["emitted"]
        assert prometheus.wait_for("sum(specplug_emitted_tokens_total)", expected) == expected
        assert prometheus.query("specplug_corpora")[0][1] == len(CORPORA)
        assert not {*CORPORA, "acme"} & set(ask(server, "/metrics").body.split('"')), "whoever scrapes sees no names"

    def test_the_alert_rules_are_evaluated(self, prometheus):
        (group,) = prometheus.get("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} == {"ok"}
        assert {rule["name"]: rule["state"] for rule in group["rules"]}["SpecplugFaults"] == "inactive"

    def test_watch_shows_the_figures_of_an_interval(self, server):
        keys = ("--api-key", KEY, "--operator-key", self.key)
        with requests_sent(server):
            found = stated("watch", server.url, "--once", "--interval", "1", *keys)
        (engine,) = found["engines"]
        assert self.name in found["versions"]
        assert 0.9 < found["seconds"] < 10
        assert found["server"]["tokens_per_second"] > 0
        assert engine["tokens_per_second"] > 0
        assert engine["tokens_per_step"] >= 1
        assert {"retrieval/own text", "none"} <= engine["sources"].keys()
        assert sum(own["emitted"] for own in engine["sources"].values()) == engine["emitted"]
        assert (engine["mode"], engine["ceiling_tokens"]) == ("on", 8)
        assert engine["reason"] in REASONS
        assert engine["predicted_speedup"] > 0
        assert engine["corpora"]["corpora"] == len(CORPORA)
        assert engine["faults"] == {}

    def test_watch_is_for_operators(self, server):
        refused = invoke("watch", server.url, "--once", "--api-key", "wrong", code=2)
        assert "HTTP 401" in refused.stderr
        assert "--operator-key" in refused.stderr
