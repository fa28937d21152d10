"""Prometheus sees the metrics that docs/metrics.md lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest

from specplug.counts import MetricsSnapshot
from specplug.errors import SettingsError
from specplug.operator.prometheus import SpecCollector, register
from tests.test_metrics import SOURCES, STEP, recorded, step

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture
def registry() -> CollectorRegistry:
    metrics = recorded(STEP, STEP)
    metrics.count_fault("slow", "late")
    registry = CollectorRegistry(auto_describe=True)
    register(metrics, registry)
    return registry


def test_every_count_is_exported_by_source(registry):
    snapshot = recorded(STEP, STEP).snapshot()
    names = {
        "target_steps": "target_steps",
        "proposed": "proposed_tokens",
        "verified": "verified_tokens",
        "accepted": "accepted_tokens",
        "rejected": "rejected_tokens",
        "wasted": "wasted_tokens",
        "never_verified": "never_verified_tokens",
        "cut_by_grammar": "grammar_cut_tokens",
        "emitted": "emitted_tokens",
        "after_stop": "after_stop_tokens",
    }
    for source in (*SOURCES, "none"):
        for field, name in names.items():
            found = registry.get_sample_value(f"specplug_{name}_total", {"source": source})
            assert found == getattr(snapshot.by_source[source], field), (source, field)


def test_positions_and_faults(registry):
    by_source = recorded(STEP, STEP).snapshot().by_source
    for kind in ("verified", "tested", "accepted"):
        for position, count in enumerate(getattr(by_source["own text"], f"{kind}_at")):
            labels = {"source": "own text", "position": str(position)}
            assert registry.get_sample_value(f"specplug_position_{kind}_tokens_total", labels) == count
    assert registry.get_sample_value("specplug_faults_total", {"plugin": "slow", "kind": "late"}) == 1


def test_lossy_verification():
    metrics = recorded(STEP)
    registry = CollectorRegistry()
    metrics.lossy.add(torch.tensor([3, 1]), torch.tensor([1.5, 0.25]))
    register(metrics, registry)
    assert registry.get_sample_value("specplug_lossy_accepted_tokens_total") == 4
    assert registry.get_sample_value("specplug_departed_tokens_total") == 1.75


def test_a_scrape_sees_the_newest_counts():
    metrics = recorded(STEP)
    registry = CollectorRegistry()
    register(metrics, registry)
    labels = {"source": "none"}
    before = registry.get_sample_value("specplug_emitted_tokens_total", labels)
    metrics.record(*step([{"emitted": 1}]))
    assert registry.get_sample_value("specplug_emitted_tokens_total", labels) == before + 1
    assert b"# HELP specplug_emitted_tokens_total Tokens that reach clients" in generate_latest(registry)


def test_registration_reads_nothing_back():
    def never() -> MetricsSnapshot:
        raise AssertionError("read back")

    CollectorRegistry(auto_describe=True).register(SpecCollector(never))


def test_one_collector_per_registry(registry):
    with pytest.raises(SettingsError, match=r"exports specplug's metrics already; found .*Unregister the first one"):
        register(recorded(STEP), registry)


def test_docs_list_exactly_what_is_exported(registry):
    exported = {family.name for family in registry.collect()}
    rows = re.findall(r"^\| `(specplug_\w+)` \| ([\w, ]+) \|", DOCS.read_text(), flags=re.MULTILINE)
    assert {name for name, _ in rows} == exported
    for family in registry.collect():
        documented = set(dict(rows)[family.name].split(", ")) - {"none"}
        assert set(family.samples[0].labels) == documented, family.name


def test_docs_explain_every_ratio():
    documented = set(re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), flags=re.MULTILINE))
    plain = recorded(STEP).snapshot().total.as_dict()
    ratios = {name for name, value in plain.items() if isinstance(value, float)} | {"acceptance_by_position"}
    assert ratios <= documented
