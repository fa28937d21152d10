"""A real Prometheus for tests, on a loopback port, and the queries of the Grafana dashboard."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.engines.server import free_port

GRAFANA = Path(__file__).parents[1] / "examples" / "grafana"
JOB = "llm"
WINDOW = "60s"


class Query(NamedTuple):
    """A query of the dashboard: where it is, its expression, and the labels that its legend shows."""

    place: str
    expression: str
    labels: frozenset[str]


def dashboard() -> dict[str, Any]:
    return json.loads((GRAFANA / "specplug.json").read_text(encoding="utf-8"))


def queries() -> list[Query]:
    """Return every query of every panel, with Grafana's variables."""
    return [
        Query(f"{panel['title']}, {target['refId']}", target["expr"], labels_of(target["legendFormat"]))
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def labels_of(legend: str) -> frozenset[str]:
    return frozenset(re.findall(r"\{\{(\w+)\}\}", legend))


def filled(expression: str, **variables: str) -> str:
    """Return an expression with the values of Grafana's variables."""
    values = {"__rate_interval": WINDOW, "__range": WINDOW, **variables}
    text = re.sub(r"\$(\w+)", lambda found: values[found[1]].replace("\\", "\\\\"), expression)
    assert "$" not in text, expression
    return text


class Prometheus:
    """A Prometheus that scrapes one server every second, and loads the alert rules.

    Args:
        folder: for its data.
        target: the server's address, "127.0.0.1:8000".
        key: the server's API key.
    """

    def __init__(self, folder: Path, target: str, key: str) -> None:
        self.target = target
        self.url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(GRAFANA / "alerts.yaml")],
            "scrape_configs": [
                {
                    "job_name": JOB,
                    "authorization": {"credentials": key},
                    "static_configs": [{"targets": [target]}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        address = self.url.removeprefix("http://")
        command = [binary("prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 30
        while not self._is_ready():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.url}/-/ready", timeout=5).status == 200
        return False

    def get(self, path: str, **query: Any) -> Any:
        """Return the data of an answer of Prometheus's API; a refused query fails with what it says."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query, True)}") as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {query}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each result of a query, now."""
        found = self.get("query", query=expression)
        assert found["resultType"] == "vector"
        return [(each["metric"], float(each["value"][1])) for each in found["result"]]

    def wait_for(self, expression: str, least: float) -> float:
        """Return the value of a query of one result, once it is at least so much."""
        deadline = time.monotonic() + 60
        while not (found := self.query(expression)) or found[0][1] < least:
            assert time.monotonic() < deadline, (expression, found, self.get("targets")["activeTargets"])
            time.sleep(0.1)
        return found[0][1]

    def variables(self) -> Mapping[str, str]:
        """Return a value for each of the dashboard's variables, found as Grafana finds them."""
        found: dict[str, str] = {}
        for variable in dashboard()["templating"]["list"][1:]:
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            values = self.get(f"label/{label}/values", **{"match[]": filled(metric, **found)})
            assert values, variable
            found[variable["name"]] = "|".join(map(re.escape, values))
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@contextlib.contextmanager
def scraping(folder: Path, target: str, key: str) -> Iterator[Prometheus]:
    prometheus = Prometheus(folder, target, key)
    try:
        yield prometheus
    finally:
        prometheus.close()


def binary(name: str) -> str:
    """Return the path of Prometheus's program of this name; skip the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus (.ci/run does that as root)")
    return found
