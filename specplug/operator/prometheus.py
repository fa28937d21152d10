"""Prometheus collector for metrics snapshots.

Everything is exported as counters.  Ratios are left to queries, which can take them over a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from specplug.counts import MetricsSnapshot
from specplug.errors import SettingsError
from specplug.metrics import SpecMetrics

_PER_SOURCE = {
    "target_steps": ("specplug_target_steps", "Rows that emitted tokens for a client, each once per engine step."),
    "proposed": ("specplug_proposed_tokens", "Draft tokens offered for verification, after trimming."),
    "verified": ("specplug_verified_tokens", "Draft tokens put through the target, up to the request's end."),
    "accepted": ("specplug_accepted_tokens", "Draft tokens kept, bonus excluded."),
    "rejected": ("specplug_rejected_tokens", "Draft tokens refused by the target, at most one per row and step."),
    "wasted": ("specplug_wasted_tokens", "Draft tokens verified and not accepted."),
    "never_verified": ("specplug_never_verified_tokens", "Draft tokens that the engine dropped, most of them at ends."),
    "cut_by_grammar": ("specplug_grammar_cut_tokens", "Draft tokens removed by a grammar before verification."),
    "emitted": ("specplug_emitted_tokens", "Tokens that reach clients, bonus and recovered tokens included."),
    "after_stop": ("specplug_after_stop_tokens", "Tokens after a stop, which no client sees and nothing else counts."),
}
_PER_POSITION = {
    "verified_at": ("specplug_position_verified_tokens", "Draft tokens verified at this position, the first being 0."),
    "tested_at": ("specplug_position_tested_tokens", "Draft tokens accepted or rejected at this position."),
    "accepted_at": ("specplug_position_accepted_tokens", "Draft tokens accepted at this position."),
}
_LOSSY = {
    "lossy accepted": (
        "specplug_lossy_accepted_tokens",
        "Draft tokens accepted by lossy verification, all sources together.",
    ),
    "lossy departed": ("specplug_departed_tokens", "Of these, the expected number that lossless verification rejects."),
}
_FAULTS = ("specplug_faults", "Faults of plug-ins, and the times that they were switched off and on again.")


class SpecCollector(Collector):
    """Converts the result of `snapshot` to metric families at each scrape."""

    def __init__(self, snapshot: Callable[[], MetricsSnapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[CounterMetricFamily]:
        """Return the families without samples, so that registration reads nothing back."""
        return counters().values()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return the families with the counts of a fresh snapshot."""
        families = counters()
        add_counts(families, self._snapshot().as_dict())
        yield from families.values()


def counters(*labels: str) -> dict[str, CounterMetricFamily]:
    """Return all metric families, without samples; their labels end with `labels`."""

    def of(texts: Mapping[str, tuple[str, str]], *own: str) -> dict[str, CounterMetricFamily]:
        return {field: CounterMetricFamily(*text, labels=[*own, *labels]) for field, text in texts.items()}

    faults = of({"faults": _FAULTS}, "plugin", "kind")
    return of(_PER_SOURCE, "source") | of(_PER_POSITION, "source", "position") | of(_LOSSY) | faults


def add_counts(families: Mapping[str, CounterMetricFamily], counts: Mapping[str, Any], *values: str) -> None:
    """Add a `MetricsSnapshot.as_dict` to the result of `counters`, with values of the labels given to that."""
    for source, own in counts["by_source"].items():
        for field in _PER_SOURCE:
            families[field].add_metric([source, *values], own[field])
        for field in _PER_POSITION:
            for position, count in enumerate(own[field]):
                families[field].add_metric([source, str(position), *values], count)
    for field in _LOSSY:
        families[field].add_metric(values, counts["lossy"][field.removeprefix("lossy ")])
    for plugin, kinds in counts["faults"].items():
        for kind, count in kinds.items():
            families["faults"].add_metric([plugin, kind, *values], count)


def register(metrics: SpecMetrics, registry: CollectorRegistry | None = None) -> SpecCollector:
    """Export `metrics` through `registry`, by default the process-wide one, and return the collector.

    Raises:
        SettingsError: the registry exports specplug's metrics already.
    """
    collector = SpecCollector(metrics.snapshot)
    try:
        (REGISTRY if registry is None else registry).register(collector)
    except ValueError as error:
        raise SettingsError.build(
            "this registry exports specplug's metrics already",
            who="specplug.operator.prometheus",
            found=str(error),
            expected="one collector per registry",
            remedy="Unregister the first one, or give each engine a CollectorRegistry of its own",
        ) from error
    return collector
