"""The Grafana dashboard and the alert rules: their form, and the metrics that they name; `WatchingSuite` runs them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from specplug.operator import exporter
from tests.prometheus import GRAFANA, binary, dashboard, queries

DOCS = Path(__file__).parents[2] / "docs"
NOT_SHOWN = {
    "specplug_verified_tokens": "the sum of accepted and wasted ones",
    "specplug_rejected_tokens": "a part of the wasted ones",
    "specplug_position_verified_tokens": "acceptance by position is of tested ones",
}
"""Our metrics that the dashboard leaves out, and why."""


def lost(sent: Any, kept: Any, where: str = "") -> Iterator[str]:
    """Yield where a value is not kept whole."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        for key, value in sent.items():
            yield from lost(value, kept.get(key, f"no {key}"), f"{where}.{key}")
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        for number, pair in enumerate(zip(sent, kept, strict=True)):
            yield from lost(*pair, f"{where}[{number}]")
    elif sent != kept:
        yield f"{where}: {sent!r}, {kept!r}"


def schema_keeps(board: dict[str, Any]) -> list[str]:
    """Return what Grafana's schema does not know of a dashboard."""
    register_default_plugins()
    return list(lost(board, json.loads(JSONEncoder(sort_keys=True, indent=None).encode(Dashboard.from_json(board)))))


def test_grafanas_schema_has_every_key():
    assert schema_keeps(dashboard()) == []


@pytest.mark.parametrize("place", ["options", "fieldConfig", "gridPos"])
def test_the_check_finds_a_misspelt_key(place):
    board = dashboard()
    board["panels"][0][place]["colourMode"] = "value"
    assert [line.partition(":")[0] for line in schema_keeps(board)] == [f".panels[0].{place}.colourMode"]


def test_panels_have_ids_of_their_own_and_places_that_do_not_overlap():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_metric_shown_exists_and_every_metric_is_shown_or_left_out_on_purpose():
    families = exporter._families().values()
    ours = {family.name: family.name + "_total" * (family.type == "counter") for family in families}
    alerts = (GRAFANA / "alerts.yaml").read_text(encoding="utf-8")
    variables = json.dumps(dashboard()["templating"])
    named = set(re.findall(r"specplug_\w+", " ".join(query.expression for query in queries())))
    assert named | set(re.findall(r"specplug_\w+", alerts + variables)) <= set(ours.values())
    assert {name for name, sample in ours.items() if sample not in named} == set(NOT_SHOWN)


def test_the_docs_list_every_metric_of_a_server():
    documented = (DOCS / "metrics.md").read_text() + (DOCS / "operations.md").read_text()
    rows = dict(re.findall(r"^\| `(specplug_\w+)` \| ([\w, ]+) \|", documented, flags=re.MULTILINE))
    assert set(rows) == {family.name for family in exporter._families().values()}
    assert rows["specplug_plan_reason"] == "reason, engine"


def test_promtool_takes_the_alert_rules():
    done = subprocess.run(
        [binary("promtool"), "check", "rules", GRAFANA / "alerts.yaml"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "4 rules found" in done.stdout
