"""Parts that the benchmarks of draft models on the transformers engine share: models, tasks, engines and answers."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from specplug.testing import judge_greedy
from specplug.tools.demo import model_path
from specplug.tools.demo.tasks import KINDS, Task, make_tasks
from specplug_transformers import Engine, GenerateRequest, SamplingParams

GAMMA = 5
MAX_TOKENS = 256
PLAIN: dict[str, Any] = {"policy": "none"}


@functools.cache
def model(name: str = "tiny") -> Any:
    """Return a shipped model by its name, or the model of a folder, in float32."""
    return AutoModelForCausalLM.from_pretrained(folder(name), dtype=torch.float32).eval()


@functools.cache
def tokenizer(name: str = "tiny") -> Any:
    """Return the tokenizer of such a model."""
    return AutoTokenizer.from_pretrained(folder(name))


def folder(name: str) -> str:
    """Return the folder of a shipped model, or the folder itself."""
    return str(model_path(name)) if name.startswith("tiny") else name


def tasks_of(count: int, seed: int) -> list[Task]:
    """Return held-out tasks, so many of each kind, kind by kind."""
    return [task for kind in KINDS for task in make_tasks(kind, "held-out", count, seed)]


def prompts_of(tasks: Sequence[Task]) -> list[list[int]]:
    """Return the tasks' prompts as ids of the target."""
    return [tokenizer()(task.prompt).input_ids for task in tasks]


def settings(draft: str, route: str = "auto") -> dict[str, Any]:
    """Return settings that draft `GAMMA` tokens a step with a model, for as long as it takes."""
    return {
        "proposer": "crosstok",
        "policy": "fixed",
        "num_speculative_tokens": GAMMA,
        "faults": {"host_deadline_ms": None},
        "options": {"crosstok": {"model": folder(draft), "route": route, "max_ms": None}},
    }


@contextmanager
def serving(chosen: Mapping[str, Any], batch: int) -> Iterator[Engine]:
    """Serve the shipped target for a while."""
    engine = Engine(model(), tokenizer(), settings=chosen, max_num_seqs=batch)
    try:
        yield engine
    finally:
        engine.close()


@dataclass
class Answers:
    """Outputs and counts of one arm.

    Attributes:
        token_ids: the output of each task.
        seconds: wall-clock time.
        steps: target steps of each task that emitted tokens.
        drafted, tested, accepted: draft tokens, as `specplug.metrics.SourceCounts` counts them.
    """

    token_ids: list[list[int]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    seconds: float = 0.0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        """Return the number of output tokens."""
        return sum(map(len, self.token_ids))

    @property
    def tau(self) -> float:
        """Return the output tokens per target step."""
        return self.tokens / sum(self.steps)

    @property
    def rate(self) -> float:
        """Return the output tokens per second."""
        return self.tokens / self.seconds

    def add(self, other: Answers) -> None:
        """Add further tasks."""
        self.token_ids += other.token_ids
        self.steps += other.steps
        for name in ("seconds", "drafted", "tested", "accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def figures(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        share = self.accepted / self.drafted if self.drafted else None
        tested = self.accepted / self.tested if self.tested else None
        return {
            "tokens": self.tokens,
            "steps": sum(self.steps),
            "tau": self.tau,
            "drafted": self.drafted,
            "accepted_of_drafted": share,
            "accepted_of_tested": tested,
            "seconds": self.seconds,
        }


def answer(engine: Engine, prompts: Sequence[Sequence[int]], temperature: float = 0.0) -> Answers:
    """Serve prompts together, each with a seed of its own."""
    requests = [
        GenerateRequest(
            prompt=prompt, params=SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, seed=place)
        )
        for place, prompt in enumerate(prompts)
    ]
    before, began = engine.metrics.snapshot(), time.perf_counter()
    outputs = engine.generate(requests)
    seconds = time.perf_counter() - began
    counts = engine.metrics.snapshot()
    if counts.faults:
        raise RuntimeError(f"the proposer failed: {counts.faults}")
    total = (counts - before).total
    return Answers(
        [list(output.token_ids) for output in outputs],
        [output.steps for output in outputs],
        seconds,
        total.proposed,
        total.tested,
        total.accepted,
    )


@dataclass
class Check:
    """Comparison of greedy outputs with those of plain decoding; near ties of logits are told apart from failures."""

    outputs: int = 0
    identical: int = 0
    near_ties: int = 0
    failures: int = 0

    def compare(
        self, prompts: Sequence[Sequence[int]], expected: Sequence[Sequence[int]], found: Sequence[Sequence[int]]
    ) -> bool:
        """Compare outputs; return whether none of them failed."""
        report = judge_greedy(_forward, prompts, expected, found)
        self.outputs += report.total
        self.identical += report.identical
        self.near_ties += len(report.near_ties)
        self.failures += len(report.failures)
        return not report.failures

    def __str__(self) -> str:
        return (
            f"greedy outputs: {self.identical} of {self.outputs} are those of plain decoding, {self.near_ties} differ "
            f"at a near tie, {self.failures} differ otherwise"
        )


@torch.no_grad()
def _forward(context: Sequence[int]) -> Tensor:
    logits: Tensor = model()(input_ids=torch.tensor([list(context)])).logits[0, -1].float()
    return logits
