"""Acceptance from a live server's /metrics: specplug's own counters, else vLLM's, else SGLang's gauges.

Metric names are those of vLLM 0.32 (`vllm/v1/spec_decode/metrics.py`), of SGLang 0.5.22
(`sglang/srt/observability/metrics_collector.py`) and of docs/metrics.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from prometheus_client.parser import text_string_to_metric_families

from specplug.client.http import ServerClient
from specplug.client.interrupt import interruptible
from specplug.errors import EngineError, text_of
from specplug.forecast.acceptance import DraftAcceptance, acceptance_for, by_position, counted

Samples = dict[tuple[str, str], list[float]]
"""Values by metric and position, the latter "" where there is none, of all engines, models and sources."""

_SPECPLUG, _VLLM, _SGLANG = "specplug_target_steps_total", "vllm:spec_decode_num_drafts_total", "sglang:spec_num_steps"
_READ = "specplug_", "vllm:spec_decode_", "vllm:generation_tokens_total", "sglang:spec_"
_OFF = "off"  # `OFF_SOURCE` of specplug.metrics, which imports torch
MOST_POSITIONS = 1024
"""Longest draft that figures may describe."""

PATIENCE = 10.0
"""Seconds within which the metrics must have been answered."""

_LARGEST = 1e18
_RESTARTED = "The server was restarted meanwhile; try again"
_REMEDY = "Start the server with speculation, and SGLang with --enable-metrics as well"


def read_metrics(url: str, interval: float | None = None) -> DraftAcceptance:
    """Scrape a server once for its totals, or twice for the counts of an interval in seconds.

    A server without such metrics, or that has drafted nothing, raises `EngineError`.
    """
    url = url.rstrip("/").removesuffix("/metrics").rstrip("/")

    async def scraped() -> tuple[Samples, Samples]:
        async with ServerClient(url, patience=PATIENCE) as client:
            before: Samples = {}
            if interval is not None:
                before = await read_samples(client)
                await asyncio.sleep(interval)
            return before, await read_samples(client)

    before, samples = asyncio.run(interruptible(scraped()))
    return acceptance_of(samples, before, f"{url}/metrics")


async def read_samples(client: ServerClient) -> Samples:
    """Return a server's samples; raises as `parse`, and as `ServerClient.ask`."""
    return parse((await client.body("GET", "/metrics")).decode(errors="replace"), f"{client.url}/metrics")


def parse(text: str, url: str) -> Samples:
    """Return the samples of speculation, and of the tokens that servers generated.

    Another text than Prometheus's format, or a sample that is no count, raises `EngineError`.
    """
    samples: Samples = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("source") == _OFF:
                    continue  # no drafts were planned, so that the step tells nothing about them
                key = sample.name, sample.labels.get("position", "")
                if sample.name.startswith(_READ):
                    samples.setdefault(key, []).append(_checked(sample.value, *key))
    except Exception as error:  # the parser raises many kinds
        found = repr(text_of(error)[:200])
        raise EngineError.build("no metrics in Prometheus's text format", who=url, found=found) from error
    return samples


def _checked(value: float, name: str, position: str) -> float:
    if not 0 <= value < _LARGEST or not (position == "" or (position.isascii() and position.isdecimal())):
        raise ValueError(f"{name}{{position={position[:20]!r}}} {value}, which is no count")
    if position and int(position[:9]) >= MOST_POSITIONS:
        raise ValueError(f"{name} at position {position[:20]}, beyond the {MOST_POSITIONS} of the longest draft")
    return value


def acceptance_of(samples: Samples, before: Samples, url: str) -> DraftAcceptance:
    """Return the acceptance of the counts since the samples `before`, if any; raises as `read_metrics`."""

    def count_of(name: str, position: str = "") -> float:
        key = name, position
        count = sum(samples.get(key, ())) - sum(before.get(key, ()))
        if count < 0:
            raise EngineError.build("the counts have fallen", who=url, found=f"{name} by {-count:g}", remedy=_RESTARTED)
        return count

    names = {name for name, _ in samples}
    if _SPECPLUG in names:
        return _specplug(count_of, _positions(samples, "specplug_position_verified_tokens_total"), url)
    if _VLLM in names:
        return _vllm(count_of, _positions(samples, "vllm:spec_decode_num_accepted_tokens_per_pos_total"), url)
    if any(samples.get((_SGLANG, ""), ())):
        return _sglang(samples, url)
    looked_for = f"{_SPECPLUG}, {_VLLM} or {_SGLANG} above 0"
    raise EngineError.build("no metrics of speculation", who=url, expected=looked_for, remedy=_REMEDY)


def _specplug(count_of: Callable[..., float], positions: Sequence[str], url: str) -> DraftAcceptance:
    """Divide specplug's counts by position by all steps that drafts were planned for, those without one included."""
    steps = count_of(_SPECPLUG)
    verified = [count_of("specplug_position_verified_tokens_total", position) for position in positions]
    accepted = [count_of("specplug_position_accepted_tokens_total", position) for position in positions]
    source = f"specplug's metrics at {url}, {steps:.0f} steps of requests"
    return _shares(accepted, [count for count in verified if count], steps, source, url)


def _vllm(count_of: Callable[..., float], positions: Sequence[str], url: str) -> DraftAcceptance:
    """Divide vLLM's accepted tokens by position by all steps of requests, which emit one token and what they accepted.

    vLLM counts no lengths by position, so every draft counts as one of the longest, which costs most.  It counts
    accepted tokens after the end of a request as well, which flatters short answers.
    """
    drafts = count_of(_VLLM)
    steps = count_of("vllm:generation_tokens_total") - count_of("vllm:spec_decode_num_accepted_tokens_total")
    steps = max(steps, drafts)  # tokens of running steps may not be counted yet
    accepted = [count_of("vllm:spec_decode_num_accepted_tokens_per_pos_total", position) for position in positions]
    mean = count_of("vllm:spec_decode_num_draft_tokens_total") / drafts if drafts else 0.0
    source = f"vLLM's metrics at {url}, {drafts:.0f} drafts of {mean:.2f} tokens in {steps:.0f} steps of requests"
    return _shares(accepted, [drafts] * len(positions), steps, source, url)


def _sglang(samples: Samples, url: str) -> DraftAcceptance:
    """Fit alpha to SGLang's mean acceptance length, which its gauges give for the last interval of its log."""

    def mean(name: str) -> float:
        values = [value for value in samples.get((name, ""), ()) if value > 0]
        return sum(values) / len(values) if values else 0.0

    tau, gamma = mean("sglang:spec_accept_length"), mean(_SGLANG)
    num_draft_tokens = mean("sglang:spec_num_draft_tokens")
    if gamma > MOST_POSITIONS:
        raise EngineError.build("a draft too long", who=url, found=f"{_SGLANG} {gamma:g}", expected=f"{MOST_POSITIONS}")
    if num_draft_tokens != gamma + 1:
        found, expected = f"{num_draft_tokens:g} draft tokens, the root included, in {gamma:g} steps", "one more token"
        raise EngineError.build("a plan is for chains", who=url, found=found, expected=f"chains, {expected} than steps")
    alpha = acceptance_for(tau, round(gamma))
    if tau < 1 or alpha is None:
        raise _nothing_drafted(f"a mean acceptance length of {tau:g}", url)
    source = f"SGLang's metrics at {url}: alpha = {alpha:.4g}, fitted to a mean acceptance length of {tau:.4g}"
    return by_position([alpha] * round(gamma), source)


def _shares(
    accepted: Sequence[float], verified: Sequence[float], steps: float, source: str, url: str
) -> DraftAcceptance:
    if steps <= 0 or not sum(verified):
        raise _nothing_drafted(f"{steps:g} steps without a draft", url)
    return counted(accepted, verified, steps, source)


def _positions(samples: Samples, name: str) -> list[str]:
    """Return the positions of a metric in ascending order."""
    return sorted((position for metric, position in samples if metric == name), key=int)


def _nothing_drafted(found: str, url: str) -> Exception:
    remedy = "Send requests, or leave out --interval for the totals"
    return EngineError.build("nothing was drafted", who=url, found=found, remedy=remedy)
