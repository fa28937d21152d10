"""The quick run of a pairing: a few prompts, greedily, without and with speculation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from specplug.cli.findings import PairingFinding, finding
from specplug.cli.launch import start_engine
from specplug.cli.plan_inputs import DEFAULT_SATURATION
from specplug.forecast.acceptance import Acceptance
from specplug.forecast.speedup import forecast
from specplug.forecast.step_cost import SaturationCost
from specplug.metrics import MetricsSnapshot, SourceCounts
from specplug.plugins.embedded import TextRequest

Progress = Callable[[str], None]
"""Called with what is being done."""

OVERHEAD = 0.02
"""The fixed cost of drafting per step, in steps without drafts: the default of `specplug plan`."""

_MOST_AT_ONCE = 8


def quick_run(
    target: str, draft: str, prompts: Sequence[Any], progress: Progress, draft_cost: float, max_tokens: int, gamma: int
) -> Iterator[PairingFinding]:
    """Yield what was accepted, whether the outputs are equal, and the speed-up that follows.

    Args:
        target: a folder, a model id, or the name of a shipped model.
        draft: a folder or a model id.
        prompts: texts or token ids, served together.
        progress: called with what is done.
        draft_cost: cost of drafting a token, in steps without drafts.
        max_tokens: most tokens per answer.
        gamma: draft tokens per step.
    """
    requests = [TextRequest(prompt=prompt, max_tokens=max_tokens) for prompt in prompts]
    settings = _settings(draft, len(requests), gamma)
    progress("quick run: without speculation")
    expected, _ = _serve(target, {**settings, "mode": "off"}, requests)
    progress("quick run: with speculation")
    answers, counted = _serve(target, settings, requests)
    yield _accepted(counted, gamma, len(prompts), sum(map(len, answers)))
    yield _outputs(answers, expected)
    if counted.total.proposed:
        yield _speedup(counted.total, gamma, draft_cost)


def _settings(draft: str, num_requests: int, gamma: int) -> dict[str, Any]:
    """Return settings that let nothing depend on time, draft with this model alone, and touch no server's files."""
    crosstok = {"model": draft, "max_requests": min(num_requests, _MOST_AT_ONCE), "max_ms": None}
    return {
        "mode": "on",
        "proposer": "crosstok",
        "extra_proposers": [],
        "policy": "fixed",
        "num_speculative_tokens": gamma,
        "options": {"crosstok": crosstok, "fixed": {"gamma": gamma}},
        "faults": {"host_deadline_ms": None},
        "trace": {"path": None},
        "control": {"file": None},
    }


def _device() -> tuple[str, str]:
    """Return the device and the dtype of the run: those that the engine chooses by itself."""
    return ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")


def _serve(
    target: str, settings: dict[str, Any], requests: Sequence[TextRequest]
) -> tuple[list[list[int]], MetricsSnapshot]:
    """Return the token ids of each answer, and the counts."""
    device, dtype = _device()
    num_seqs = min(len(requests), _MOST_AT_ONCE)
    engine = start_engine(target, settings, device=device, dtype=dtype, max_num_seqs=num_seqs)
    try:
        answers: list[list[int]] = [[] for _ in requests]
        for update in engine.stream(requests):
            answers[update.index] += update.token_ids
        return answers, engine.metrics.snapshot()
    finally:
        engine.close()


def _accepted(counted: MetricsSnapshot, gamma: int, num_prompts: int, num_tokens: int) -> PairingFinding:
    total = counted.total
    figures: dict[str, Any] = {
        "gamma": gamma,
        "tokens_per_step": total.tau,
        "acceptance_rate": total.acceptance_rate,
        "acceptance_by_position": list(total.acceptance_by_position),
        "accepted_by_source": {name: each.accepted for name, each in counted.by_source.items() if each.proposed},
        "faults": counted.faults,
    }
    faults = [f"{count} {kind} ({who})" for who, kinds in counted.faults.items() for kind, count in kinds.items()]
    if faults:
        return finding("acceptance", "fail", f"faults: {', '.join(faults)}", "Read the warnings above", **figures)
    if not total.proposed:
        return finding("acceptance", "warn", "nothing was drafted", "Give longer prompts or --max-tokens", **figures)
    summary = (
        f"tau {total.tau or 0:.2f} tokens per step, {total.acceptance_rate or 0:.0%} of the draft tokens accepted, at "
        f"gamma {gamma}; {num_tokens} tokens of {num_prompts} prompts, greedily"
    )
    return finding("acceptance", "ok", summary, **figures)


def _outputs(answers: list[list[int]], expected: list[list[int]]) -> PairingFinding:
    """Compare the outputs; in float32 they must be equal."""
    differing, (device, dtype) = sum(map(list.__ne__, answers, expected)), _device()
    figures: dict[str, Any] = {"identical": not differing, "device": device, "dtype": dtype}
    if not differing:
        return finding("outputs", "ok", f"identical to those without speculation, in {dtype} on {device}", **figures)
    summary = f"{differing} of {len(answers)} differ from those without speculation, in {dtype} on {device}"
    if dtype == "float32":
        return finding(
            "outputs", "fail", summary, "Report this to specplug, with the prompts and the models", **figures
        )
    remedy = "Two tokens can tie to within rounding; hide the GPU with CUDA_VISIBLE_DEVICES= to run in float32"
    return finding("outputs", "warn", summary, remedy, **figures)


def _speedup(total: SourceCounts, gamma: int, draft_cost: float) -> PairingFinding:
    """Forecast the speed-up of one request by draft length, as `specplug plan` does from the counts of a server."""
    survival, verified = (
        tuple(count / total.target_steps for count in counts[:gamma])
        for counts in (total.accepted_at, total.verified_at)
    )
    acceptance = Acceptance(survival, verified, "quick run")
    cost = SaturationCost(DEFAULT_SATURATION)
    (found,) = forecast(acceptance, cost, [1], gamma, draft_cost=lambda batch: draft_cost, overhead=OVERHEAD)
    at, best = found.lengths[-1], found.best
    figures: dict[str, Any] = {
        "at_gamma": at.speedup,
        "gamma": at.gamma,
        "best_gamma": best.gamma,
        "best": best.speedup,
    }
    shown = f"for one request, by the estimated speed: {at.speedup:.2f} at gamma {at.gamma}; "
    if not best.gamma:
        remedy = "Choose a smaller draft model, or one that agrees with the target more often"
        return finding("speed-up", "warn", f"{shown}no gamma up to {gamma} gains", remedy, **figures)
    summary = f"{shown}best up to gamma {gamma}: {best.speedup:.2f}, at gamma {best.gamma}"
    longer = "Run it with a larger --gamma too. " if best.gamma == gamma else ""
    remedy = f"{longer}It is predicted, not measured; for batches: specplug plan --draft-cost {draft_cost:.3g}"
    return finding("speed-up", "ok", summary, remedy, **figures)
