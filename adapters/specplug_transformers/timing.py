"""Steps of the embedded engine that are timed before its first request, for what they cost.

A timed step is a forward pass over cache rows of some context, and the verification of its drafts; what the engine does
beside takes as long however many tokens are verified.  The cache is empty before and after.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from functools import partial

import numpy as np
import torch
import transformers

from specplug.cost.measuring import Measurement, StepLimits, StepSize, measure, step_sizes
from specplug.cost.store import StartCosts, cost_file, costs_at_start
from specplug.interfaces import Verifier
from specplug.settings.model import Settings
from specplug.types.step import Draft, StepCost
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms
from specplug_transformers.runner import ModelRunner

CONTEXT = 256
"""Tokens of each row's context, or half of the most that the engine accepts."""

_known: dict[str, StartCosts] = {}
"""The costs of this process's engines by their cache file, so that each further engine of a model starts at once."""


def costs_of(settings: Settings, runner: ModelRunner, verifier: Verifier, rows: int, max_length: int) -> StartCosts:
    """Return what steps of up to so many rows cost; time them if neither this process nor a cache file knows it."""
    key = _key(settings, runner, rows, max_length)
    longest = settings.num_speculative_tokens
    name = cost_file(key).name
    if name not in _known:
        context = min(CONTEXT, max_length // 2)
        tokens = rows * (1 + longest)
        limits = StepLimits(rows, tokens, range(1 + min(longest, max_length - context - 1)), pads=True)
        run = partial(_run, runner, verifier, context)
        _known[name] = costs_at_start(key, lambda: _timed(runner, run, limits, settings.costs.seconds))
    return _known[name]


def _timed(runner: ModelRunner, run: partial[list[StepCost]], limits: StepLimits, seconds: float) -> Measurement:
    try:
        return measure(run, step_sizes(limits), seconds)
    finally:
        runner.cache.free()


@torch.no_grad()
def _run(runner: ModelRunner, verifier: Verifier, context: int, size: StepSize, count: int) -> list[StepCost]:
    """Run so many steps of a size, with drafts of random tokens, and return their costs."""
    rows = size.requests
    length = max(size.lengths)
    runner.cache.reserve(rows, context + 1 + length)
    ids = np.random.default_rng(0).integers(0, runner.vocab_size, (rows, 1 + length))
    token_ids = torch.from_numpy(ids).to(runner.device)
    draft = Draft.of_rows(ids[:, 1:].tolist(), [[0.5] * length] * rows, length, device=runner.device)
    sampling = SamplingBatch(temperature=torch.zeros(rows, device=runner.device), all_greedy=True)
    numbers = torch.zeros(rows, length + 1, dtype=torch.float64, device=runner.device)
    uniforms = Uniforms(numbers[:, :length], numbers)
    found = []
    for _ in range(count):
        began = time.perf_counter()
        logits = runner.forward([*range(rows)], [context] * rows, token_ids)
        verifier.verify(draft, TargetLogits.dense(logits), sampling, uniforms).token_ids.tolist()
        seconds = time.perf_counter() - began
        found.append(StepCost(rows, size.tokens, rows * context, 0, seconds))  # drafting is left out
    return found


def _key(settings: Settings, runner: ModelRunner, rows: int, max_length: int) -> dict[str, object]:
    """Return everything that the costs of an engine's steps depend on."""
    model = runner.model
    device = runner.device
    on_gpu = device.type == "cuda"
    config = model.config.to_json_string(use_diff=False)
    return {
        "engine": f"transformers {transformers.__version__}",
        "torch": torch.__version__,
        "model": [model.config.model_type, hashlib.sha256(config.encode()).hexdigest()[:16], str(model.dtype)],
        "attention": model.config.get_text_config()._attn_implementation,
        "device": torch.cuda.get_device_name(device) if on_gpu else str(device),
        "host": socket.gethostname(),
        "threads": None if on_gpu else torch.get_num_threads(),
        "affinity": None if on_gpu or not hasattr(os, "sched_getaffinity") else sorted(os.sched_getaffinity(0)),
        "rows": rows,
        "max_length": max_length,
        "verifier": settings.verifier,
        "draft_length": settings.num_speculative_tokens,
        "seconds": settings.costs.seconds,
    }
