"""Drafts of a model on the GPU: with CUDA graphs as with the operations that they hold, and the time of a step."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu.device import Device
from specplug.interfaces import PluginContext
from specplug.plugins.specs import ProposerSpec
from specplug.testing.driver import Driver
from specplug.tools.demo import model_path
from specplug.types.caps import Distribution, ProposerCaps
from specplug.types.step import Draft

NEEDED = ("transformers", "tokenizers", "safetensors")
DRAFTS = ("tiny-draft", "tiny-draft-other")
GRAPHS, OPERATIONS = "graphs", "operations"
VOCAB = 2048
TEXT = "def add(first, second):\n    return first + second\n\n\ndef sub(first, second):\n    return first - second\n"


def measure(device: Device, batches: Sequence[int], gamma: int, rounds: int, deadline: float) -> dict[str, Any]:
    """Compare the drafts of both arms over some steps, then time a step of each, in turns.

    Args:
        device: where the draft models run.
        batches: numbers of requests.
        gamma: draft tokens.
        rounds: timed rounds.
        deadline: of `time.monotonic`, after which no case begins.
    """
    found: dict[str, Any] = {"cases": [], "wrong": [], "left_out": []}
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        found["left_out"].append(f"everything, because these packages are missing: {', '.join(missing)}")
        return found
    for draft in DRAFTS:
        for batch_size in batches:
            case = f"{draft}, batch {batch_size}"
            if time.monotonic() > deadline:
                found["left_out"].append(case)
                continue
            arms = {name: _driver(device.device, draft, batch_size, gamma) for name in (GRAPHS, OPERATIONS)}
            arms[OPERATIONS].proposer._step.loop.graphs._graphs.clear()  # type: ignore[attr-defined]
            found["wrong"] += [f"{case}: {stated}" for stated in _differences(arms, gamma)]
            times: dict[str, list[float | None]] = {name: [] for name in arms}
            for _ in range(rounds):
                for name, driver in arms.items():
                    times[name].append(_time(device, driver, gamma))
            found["cases"].append({"draft": draft, "batch": batch_size, "device_us": times})
            print(f"  {case}: {times}", flush=True)
            for driver in arms.values():
                driver.close()
    return found


def _driver(device: torch.device, draft: str, batch_size: int, gamma: int) -> Driver:
    """Return a proposer of its own, with running requests whose texts begin alike."""
    from specplug.text.tokenizers import load_tokenizer
    from specplug_crosstok.proposer import CrossTok

    tokenizer = load_tokenizer(str(model_path("tiny"))).library

    def build(context: PluginContext) -> CrossTok:
        return CrossTok(replace(context, target_tokenizer=tokenizer), on_host=False)

    caps = ProposerCaps(distribution=Distribution.LOGITS, learns=True)
    options = "specplug_crosstok.options:CrossTokSettings"
    spec = ProposerSpec(name="crosstok", factory=build, summary="", options=options, caps=caps)
    own = {"model": str(model_path(draft)), "max_requests": batch_size, "max_context": 512}
    sizes = {"max_slots": batch_size, "max_draft_length": gamma, "max_length": 1024}
    driver = Driver(spec, own, vocab_size=VOCAB, device=device, **sizes)
    ids: list[int] = tokenizer.encode(TEXT, add_special_tokens=False)
    for request in range(batch_size):
        driver.start(str(request), ids[: len(ids) - request % len(ids) // 2])
    return driver


def _differences(arms: dict[str, Driver], gamma: int) -> list[str]:
    """Return the steps in which the arms draft differently; requests go on with some of what is drafted."""
    wrong = []
    for step in range(8):
        both = {name: driver.step(gamma) for name, driver in arms.items()}
        drafts = {name: {key: row.token_ids for key, row in it.by_request().items()} for name, it in both.items()}
        if drafts[GRAPHS] != drafts[OPERATIONS]:
            wrong.append(f"step {step}: {drafts[GRAPHS]} with graphs, {drafts[OPERATIONS]} without")
        if step and not any(drafts[GRAPHS].values()):
            wrong.append(f"step {step}: nothing is drafted")
        answers = {key: [*ids[: step % 4], 5] for key, ids in drafts[GRAPHS].items()}
        for name, driver in arms.items():
            driver.settle(both[name], answers)
    return wrong


def _time(device: Device, driver: Driver, gamma: int) -> float | None:
    """Return the microseconds that the device takes for a steady step; None if it waited for the host at every try."""
    batch, proposer = driver.batch(), driver.proposer
    limits = torch.full((batch.batch_size,), gamma, dtype=torch.int32, device=batch.device)
    given: dict[str, Any] = {"device": batch.device, "distribution": Distribution.LOGITS, "sources": proposer.sources}
    draft = Draft.allocate(batch.batch_size, gamma, draft_vocab=proposer.draft_vocab, **given)
    proposer.step(batch, limits, draft)
    return device.valid_time(lambda: proposer.step(batch, limits, draft))
