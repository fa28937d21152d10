"""Figures of a live server: acceptance from specplug's own counters, else vLLM's, else SGLang's gauges; steps' costs.

Metric names are those of vLLM 0.32 (`vllm/v1/spec_decode/metrics.py`), of SGLang 0.5.22
(`sglang/srt/observability/metrics_collector.py`) and of docs/metrics.md.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter

from specplug.errors import EngineError, describe
from specplug.tools.client.figures import MEMORY, Samples, read_samples
from specplug.tools.client.http import Refused, ServerClient
from specplug.tools.client.interrupt import run_interruptible
from specplug.tools.forecast.acceptance import DraftAcceptance, acceptance_for, acceptance_of_counts

if TYPE_CHECKING:
    from specplug.types.step import StepCost  # imports torch

R = TypeVar("R")

_SPECPLUG = "specplug_target_steps_total"
_VLLM = "vllm:spec_decode_num_drafts_total"
_SGLANG = "sglang:spec_num_steps"
_LONGEST = 999  # tokens of the longest draft that figures may describe

PATIENCE = 10.0
"""Seconds within which the metrics must have been answered."""


def read_metrics(url: str, interval: float | None = None, **keys: str | None) -> DraftAcceptance:
    """Scrape a server once for its totals, or twice for the counts of an interval in seconds.

    `keys` are the `api_key` and `operator_key` of a `ServerClient`.  A server without such metrics, that has drafted
    nothing, or whose status says that it verifies trees raises `EngineError`.
    """
    url = url.rstrip("/").removesuffix("/metrics").rstrip("/")
    before: Samples = {}
    if interval is not None:
        before = _served(url, read_samples)
        time.sleep(interval)
    found = acceptance_of(_served(url, read_samples), before, f"{url}/metrics")
    with suppress(Refused):  # a server without specplug, or one whose operator's key is another
        status = _served(url, ServerClient.status, **keys)
        if any(engine.trees for engine in status.engines):
            remedy = "Launch it with --speculative-eagle-topk 1, or let specplug bench measure it"
            raise EngineError.build("a plan is for chains", who=url, found="a server of trees", remedy=remedy)
    return found


def read_costs(source: str, **keys: str | None) -> list[StepCost]:
    """Return the steps that were timed at a server's start, from its status or the file that keeps them.

    `keys` are those of `read_metrics`.  Without any steps it raises `EngineError`.
    """
    from specplug.types.step import StepCost

    try:
        if "://" in source:
            status = _served(source.rstrip("/").removesuffix("/metrics"), ServerClient.status, **keys)
            steps = status.engines[0].scheduler.costs.get("steps", ())
            timed = [{"seconds": step["ms"] / 1e3, "context_tokens": 0, **step} for step in steps]
        else:
            timed = json.loads(Path(source).read_bytes())["costs"]
        found = TypeAdapter(list[StepCost]).validate_python(timed)
        if len({step.tokens for step in found}) < 2 or any(step.seconds <= 0 or not step.requests for step in found):
            raise ValueError(f"{len(found)} steps")
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "steps that were timed at a server's start"
        raise EngineError.build("no costs", who=source, found=describe(error), expected=expected) from error


def _served(url: str, ask: Callable[[ServerClient], Awaitable[R]], **keys: str | None) -> R:
    async def requested() -> R:
        async with ServerClient(url, patience=PATIENCE, **keys) as client:
            return await ask(client)

    return asyncio.run(run_interruptible(requested()))


def acceptance_of(samples: Samples, before: Samples, url: str) -> DraftAcceptance:
    """Return the acceptance of the counts since the samples `before`, if any; raises as `read_metrics`.

    specplug's counts by position are divided by all steps that drafts were planned for, those without one included;
    vLLM's by all steps of requests, which emit one token and what they accepted.  vLLM counts no lengths by position,
    so every draft counts as one of the longest.  It counts accepted tokens after the end of a request as well, which
    flatters short answers.  To SGLang's mean acceptance length of the last interval of its log, alpha is fitted.
    """

    def count(name: str, position: str = "") -> float:
        key = name, position
        found = sum(samples.get(key, ())) - sum(before.get(key, ()))
        if found < 0:
            what, remedy = "the counts have fallen", "The server was restarted meanwhile; try again"
            raise EngineError.build(what, who=url, found=f"{name} by {-found:g}", remedy=remedy)
        return found

    def counts(name: str) -> list[float]:
        return [count(name, place) for place in sorted((place for each, place in samples if each == name), key=int)]

    names = {name for name, _ in samples}
    if _SPECPLUG in names:
        steps = count(_SPECPLUG)
        accepted = counts("specplug_position_accepted_tokens_total")
        verified = [each for each in counts("specplug_position_verified_tokens_total") if each][: len(accepted)]
        kept = count("specplug_accepted_tokens_total")
        remembered = count("specplug_accepted_tokens_total", MEMORY) / kept if kept else 0.0
        source = f"specplug's metrics at {url}, {steps:.0f} steps of requests"
        source += f", {remembered:.0%} of the accepted tokens from earlier answers" * (remembered > 0)
    elif _VLLM in names:
        drafts = count(_VLLM)
        emitted = count("vllm:generation_tokens_total")
        steps = max(emitted - count("vllm:spec_decode_num_accepted_tokens_total"), drafts)  # tokens may be counted late
        accepted = counts("vllm:spec_decode_num_accepted_tokens_per_pos_total")
        verified = [drafts] * len(accepted)
        mean = count("vllm:spec_decode_num_draft_tokens_total") / drafts if drafts else 0.0
        source = f"vLLM's metrics at {url}, {drafts:.0f} drafts of {mean:.2f} tokens in {steps:.0f} steps of requests"
    elif any(samples.get((_SGLANG, ""), ())):
        found_in = ("sglang:spec_accept_length", _SGLANG, "sglang:spec_num_draft_tokens")
        tau, gamma, tokens = (
            fmean([each for each in samples.get((name, ""), ()) if each] or [0.0]) for name in found_in
        )
        if tokens != gamma + 1 or gamma > _LONGEST:
            found = f"{tokens:g} draft tokens, the root included, in {gamma:g} steps"
            expected = f"chains, one more token than steps, and at most {_LONGEST}"
            raise EngineError.build("a plan is for chains", who=url, found=found, expected=expected)
        alpha = acceptance_for(tau, round(gamma)) if tau >= 1 else None
        source = f"SGLang's metrics at {url}: alpha = {alpha or 0:.4g}, fitted to a mean acceptance length of {tau:.4g}"
        accepted = [(alpha or 0.0) ** place for place in range(1, round(gamma) + 1)]
        steps = 1.0
        verified = [float(alpha is not None)] * len(accepted)
    else:
        expected = f"{_SPECPLUG}, {_VLLM} or {_SGLANG} above 0"
        remedy = "Start the server with speculation, and SGLang with --enable-metrics as well"
        raise EngineError.build("no metrics of speculation", who=url, expected=expected, remedy=remedy)
    if steps <= 0 or not sum(verified):
        remedy = "Send requests, or leave out --interval for the totals"
        raise EngineError.build("nothing was drafted", who=url, found=source, remedy=remedy)
    return acceptance_of_counts(accepted[: len(verified)], verified, steps, source)
