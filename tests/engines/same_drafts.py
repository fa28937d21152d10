"""One proposer of a third party, in one file, drafts alike on every engine for the same texts.

The file is what `specplug new` makes a proposer of: the plug-ins of these tests link to it.  Each engine runs
it on the same prompts, and the trace of its drafts is held against the proposer without any engine.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from specplug.plugins.registry import Registry
from specplug.plugins.specs import ProposerSpec
from specplug.steps.tracer import StepTracer
from specplug.testing.driver import Driver
from specplug.trace import TraceRow, TraceWriter
from tests.engines.launch import PLUGINS
from tests.engines.plain import greedy, model, prompts

PROPOSER = "example"
DRAFT_LENGTH = 8
MAX_TOKENS = 40
SETTINGS = {"proposer": PROPOSER, "policy": "fixed", "faults": {"host_deadline_ms": None}}

CHOSEN = (1, 2, 4, 5, 6, 8, 9, 12, 13, 16, 18, 20)
"""Prompts in whose answers no two logits are closer than 0.5, so that all engines answer alike, wherever they run."""


@dataclass(frozen=True)
class Drafted:
    """A draft: the length of the text before it, and what became of it."""

    base_len: int
    ids: tuple[int, ...]
    confidence: tuple[float, ...]
    accepted: int


def requested() -> dict[str, list[int]]:
    """Return the prompts by the ids of their requests."""
    return {f"same-{index}": list(prompts()[index]) for index in CHOSEN}


def answer(prompt: Sequence[int]) -> list[int]:
    """Return what every engine has to answer."""
    return list(greedy(tuple(prompt), MAX_TOKENS)["token_ids"])


def assert_answers(answers: Mapping[str, Sequence[int]]) -> None:
    """Compare an engine's answers to `requested` with the plain model's."""
    assert {name: list(ids) for name, ids in answers.items()} == {
        name: answer(prompt) for name, prompt in requested().items()
    }


def assert_trace(rows: Sequence[TraceRow], *, before_first: bool = False) -> None:
    """Compare the trace of an engine that gave these answers with them, and with what the proposer drafts alone.

    Args:
        rows: the trace of `requested`.
        before_first: whether the engine drafts for the first token of an answer, too.
    """
    for name, prompt in requested().items():
        own = [row for row in rows if row.request == name]
        assert [token for row in own for token in row.emitted] == answer(prompt)
        assert own[0].start == len(prompt)
        assert {row.reason for row in own if not row.ids} <= {"prefill", "nothing found", "last token"}
    found = drafts([row for row in rows if row.ids])
    assert found == {name: expected(tuple(prompt), before_first) for name, prompt in requested().items()}
    assert sum(max(0, step.accepted) for steps in found.values() for step in steps) > 300


def drafts(rows: Sequence[TraceRow]) -> dict[str, list[Drafted]]:
    """Return a trace's drafts by request, in order.

    Acceptance in a request's last step is left out: engines count the tokens after the end differently.
    """
    found: dict[str, list[Drafted]] = {}
    for row in rows:
        assert set(row.source) == {PROPOSER}
        accepted = -1 if row.reason == "stopped" else row.accepted
        found.setdefault(row.request, []).append(Drafted(row.base_len, row.ids, row.confidence, accepted))
    return found


@functools.cache
def expected(prompt: tuple[int, ...], before_first: bool) -> list[Drafted]:
    """Return what the proposer, without any engine, drafts at each step of decoding."""
    text = [*prompt, *answer(prompt)]
    base_len = len(prompt) + (not before_first)
    steps = []
    while base_len < len(text):
        room = len(prompt) + MAX_TOKENS - base_len - 1  # the token after the draft needs a place, too
        ids, confidence = plainly(tuple(text[:base_len]), min(DRAFT_LENGTH, room))
        accepted = common(ids, text[base_len:])
        ends = base_len + accepted + 1 > len(text)
        if ids:
            steps.append(Drafted(base_len, ids, confidence, -1 if ends else accepted))
        base_len += accepted + 1
    return steps


def plainly(text: tuple[int, ...], limit: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the proposer's draft for a text, without any engine: ids and confidences."""
    if limit <= 0:
        return (), ()
    spec = registry().get(ProposerSpec, PROPOSER)
    with Driver(spec, vocab_size=model().config.vocab_size, max_length=1024, max_draft_length=DRAFT_LENGTH) as driver:
        driver.start("alone", text)
        draft = driver.step(limit).draft
    count = int(draft.lengths[0])
    levels = [round(level, 6) for level in draft.confidence[0, :count].tolist()]
    return tuple(draft.token_ids[0, :count].tolist()), tuple(levels)


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many tokens two texts have in common, from their begin on."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(left), len(right)))


@functools.cache
def registry() -> Registry:
    """Return the plug-ins of a process in which the third party's package is installed, as it is in engines' own."""
    sys.path.append(str(PLUGINS))
    try:
        return Registry.discover()
    finally:
        sys.path.remove(str(PLUGINS))


# -- in an engine's process ------------------------------------------------------------------------------------------


@contextmanager
def traced(stage: Any, path: str) -> Iterator[None]:
    """Let a stage that runs without a trace write one meanwhile."""
    with closing(StepTracer(TraceWriter(path), stage.metrics.count_fault)) as tracer:
        stage.tracer = tracer
        reports = stage.has_observers
        stage.has_observers = True
        try:
            yield
        finally:
            stage.tracer = None
            stage.has_observers = reports
