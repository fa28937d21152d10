"""Figures of a running server over an interval: the difference of two readings of its status and its /metrics."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from specplug.errors import EngineError, text_of
from specplug.operator.status import by_plugin, corpus_totals, decision, reason
from specplug.tools.client.answers import DraftTotals, ServedEngine, ServerStatus
from specplug.tools.client.http import ServerClient

NO_TOTALS = DraftTotals(target_steps=0, proposed=0, accepted=0, rejected=0, emitted=0)

_OWN = {
    "generated": ("vllm:generation_tokens_total", "sglang:realtime_tokens_total"),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
}
"""The engines' own metrics, as vLLM 0.32 and SGLang 0.5.22 name them."""

MEMORY = "response memory"
"""The end of the names of sources that draft from earlier responses."""

Samples = dict[tuple[str, str], list[float]]
"""Values by metric and position, the latter "" where there is none, of all engines, models and sources.

Those of response memories stand under `MEMORY` as well.
"""

_READ = "specplug_", "vllm:spec_decode_", "sglang:spec_", *(name for names in _OWN.values() for name in names)
_OFF = "off"  # `OFF_SOURCE` of specplug.metrics, which imports torch


class OwnFigures(NamedTuple):
    """What the server itself counts: tokens generated since its start, and requests that run and wait.

    vLLM counts the tokens of a step after a stop string, too, which no client receives.
    """

    generated: float
    running: float
    waiting: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What a server reported at a time (`time.monotonic`); `own` is None if it has no /metrics."""

    at: float
    status: ServerStatus
    own: OwnFigures | None


async def read(client: ServerClient) -> Reading:
    """Read a server; raises as `ServerClient.ask`."""
    status = await client.status()
    at = time.monotonic()
    try:
        own = _own(await read_samples(client))
    except EngineError:  # SGLang has none without --enable-metrics
        own = None
    return Reading(at, status, own)


def figures(now: Reading, before: Reading | None = None) -> dict[str, Any]:
    """Return the figures since the reading `before`, ready for JSON; without one, or after a restart, since the start.

    Figures per second are None without an interval.
    """
    restarted = before is not None and _has_restarted(now, before)
    before = None if restarted else before
    seconds = None if before is None else now.at - before.at
    earlier = {} if before is None else {engine.engine: engine for engine in before.status.engines}
    own = None if now.own is None else {**now.own._asdict(), "tokens_per_second": None}
    if own is not None and seconds is not None and before is not None and before.own is not None:
        own["tokens_per_second"] = (own["generated"] - before.own.generated) / seconds
    return {
        "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "versions": now.status.versions,
        "seconds": seconds,
        "restarted": restarted,
        "server": own,
        "engines": [_engine(each, earlier.get(each.engine), seconds) for each in now.status.engines],
    }


def _engine(engine: ServedEngine, before: ServedEngine | None, seconds: float | None) -> dict[str, Any]:
    scheduler = engine.scheduler
    ceiling = engine.scheduler.control.ceiling
    planned = scheduler.plan.draft_length
    decided = decision(scheduler.policy)
    earlier = {} if before is None else _counts(before)
    spent = {source: _minus(now, earlier.get(source, NO_TOTALS)) for source, now in _counts(engine).items()}
    total = spent.pop("")
    faults = _faults(engine)
    return {
        "engine": engine.engine,
        "mode": scheduler.control.mode,
        "ceiling_tokens": engine.max_draft_length if ceiling is None else min(ceiling, engine.max_draft_length),
        "planned_tokens": planned,
        "reason": reason(scheduler.steps, ceiling, planned, scheduler.policy),
        "why": None if decided is None else decided.why,
        "predicted_speedup": None if decided is None else decided.speed_up,
        **_rates(total, seconds),
        "steps_saved": 1 - total.target_steps / total.emitted if total.emitted else None,
        "acceptance_by_position": [_ratio(*pair) for pair in zip(total.accepted_at, total.tested_at, strict=False)],
        "sources": {source: _rates(own, seconds) for source, own in spent.items()},
        "faults": by_plugin(faults),
        "new_faults": {} if before is None else by_plugin(faults - _faults(before)),
        "corpora": next((found._asdict() for part in engine.counting if (found := corpus_totals(part.details))), None),
    }


def _rates(spent: DraftTotals, seconds: float | None) -> dict[str, Any]:
    counts = spent.model_dump(include={"target_steps", "emitted", "proposed", "accepted"})
    return {
        **counts,
        "tokens_per_second": None if seconds is None else spent.emitted / seconds,
        "tokens_per_step": _ratio(spent.emitted, spent.target_steps),
        "acceptance_rate": _ratio(spent.accepted, spent.proposed),
    }


def _counts(engine: ServedEngine) -> dict[str, DraftTotals]:
    """Return an engine's counts by source, and those of all that may draft as ""; the first rank's stand for all."""
    for part in engine.counting[:1]:
        assert part.metrics is not None
        off = part.metrics.by_source.get(_OFF, NO_TOTALS)
        return {"": _minus(part.metrics.total, off), **part.metrics.by_source}
    return {"": NO_TOTALS}


def _faults(engine: ServedEngine) -> Counter[tuple[str, str]]:
    """Return the faults of both halves, by plug-in and kind."""
    found: Counter[tuple[str, str]] = Counter()
    for faults in (engine.scheduler.faults, *(part.metrics.faults for part in engine.counting[:1] if part.metrics)):
        for name, kinds in faults.items():
            found.update({(name, kind): count for kind, count in kinds.items()})
    return found


def _has_restarted(now: Reading, before: Reading) -> bool:
    """Return whether any count has fallen."""
    earlier = {engine.engine: engine for engine in before.status.engines}
    pairs = [(each, earlier[each.engine]) for each in now.status.engines if each.engine in earlier]
    fell = [each.scheduler.steps < old.scheduler.steps for each, old in pairs]
    fell += [_emitted(each) < _emitted(old) for each, old in pairs]
    if now.own is not None and before.own is not None:
        fell.append(now.own.generated < before.own.generated)
    return any(fell)


def _emitted(engine: ServedEngine) -> int:
    """Return the tokens that an engine has emitted, those of requests that opted out included."""
    return sum(part.metrics.total.emitted for part in engine.counting[:1] if part.metrics is not None)


def _minus(now: DraftTotals, before: DraftTotals) -> DraftTotals:
    """Return the increases of counts; lists that were empty before count from 0."""

    def less(name: str) -> Any:
        mine, theirs = getattr(now, name), getattr(before, name)
        if not isinstance(mine, list):
            return max(0, mine - theirs)
        return [max(0, one - other) for one, other in zip(mine, theirs or [0] * len(mine), strict=False)]

    return DraftTotals.model_construct(**{name: less(name) for name in DraftTotals.model_fields})


async def read_samples(client: ServerClient) -> Samples:
    """Return a server's samples; raises as `parse`, and as `ServerClient.ask`."""
    return parse((await client.body("GET", "/metrics")).decode(errors="replace"), f"{client.url}/metrics")


def parse(text: str, url: str) -> Samples:
    """Return the samples of speculation, of the tokens that servers generated, and of their requests.

    Another text than Prometheus's format, or a sample that is no count, raises `EngineError`.
    """
    from prometheus_client.parser import text_string_to_metric_families  # the command line starts without it

    samples: Samples = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name
                position = sample.labels.get("position", "")
                if sample.labels.get("source") == _OFF or not name.startswith(_READ):
                    continue  # where no drafts were planned, the step tells nothing about them
                if sample.labels.get("mode") not in (None, "decode"):
                    continue  # SGLang's tokens of prompts
                if not 0 <= sample.value < 1e18 or not re.fullmatch("[0-9]{0,3}", position):
                    raise ValueError(f"{name}{{position={position[:20]!r}}} {sample.value}, which is no count")
                samples.setdefault((name, position), []).append(sample.value)
                if not position and sample.labels.get("source", "").endswith(MEMORY):
                    samples.setdefault((name, MEMORY), []).append(sample.value)
    except Exception as error:  # the parser raises many kinds
        found = repr(text_of(error)[:200])
        raise EngineError.build("no metrics in Prometheus's text format", who=url, found=found) from error
    return samples


def _own(samples: Samples) -> OwnFigures | None:
    """Return the sums of the engines' own metrics; None where there are none."""
    found = {key: [value for name in names for value in samples.get((name, ""), ())] for key, names in _OWN.items()}
    return OwnFigures(**{key: sum(values) for key, values in found.items()}) if any(found.values()) else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
