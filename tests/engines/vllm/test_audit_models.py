"""`specplug audit` on models with recurrent state and on several ranks: it passes, and fails with a planted mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from specplug.audit.probe import DraftCounts, Probe
from specplug.audit.run import Report, run
from specplug.audit.texts import Greedy
from specplug.client.answers import Answer
from tests.engines.auditing import TEXTS, statuses
from tests.engines.engines import Engine
from tests.engines.plain import ids
from tests.engines.recurrent_models import model
from tests.engines.recurrent_requests import TOKENS, drawn
from tests.engines.sglang.continuations import continuations
from tests.engines.vllm.test_recurrent import VARYING, hybrid
from tests.engines.vllm.test_recurrent_mutants import plant
from tests.engines.vllm.test_tensor_parallel import two_ranks, v2_ranks

__all__ = ["hybrid", "two_ranks", "v2_ranks"]

NUMBERS = [" ".join(map(str, prompt)) for prompt in drawn(3, 9, 17, 30, 41, 8, 25, 12)]


class TokenSide:
    """A `Side` of token ids over whatever continues them, counted by a function in the engine's process."""

    def __init__(self, answered: Callable[[list[Probe]], list[list[int]]], counts: Callable[[], Any] | None) -> None:
        self._answered, self._counts = answered, counts

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split())) if text in NUMBERS else tuple(ids(text))

    def answer(self, probes: Sequence[Probe], together: int, done: Callable[[], None]) -> list[Answer]:
        return [Answer(token_ids=tuple(found)) for found in self._answered(list(probes))]

    def draft_counts(self) -> DraftCounts | None:
        return None if self._counts is None else DraftCounts(*self._counts())

    def describe(self) -> str:
        return "token ids"


def served(engine: Engine, counts: str | None) -> TokenSide:
    """Return a side over an engine of the pool."""

    def answered(probes: list[Probe]) -> list[list[int]]:
        params = [
            {
                "max_tokens": probe.max_tokens,
                "ignore_eos": True,
                "detokenize": False,
                "extra_args": {"specplug": {"references": [{"token_ids": list(probe.expected)}]}} if counts else None,
            }
            for probe in probes
        ]
        prompts = [list(probe.prompt) for probe in probes]
        found = engine.call("inside.generate", prompts=prompts, params=params) if probes else []
        return [one["token_ids"] for one in found]

    return TokenSide(answered, None if counts is None else lambda: engine.call(counts))


def by_the_model(name: str) -> TokenSide:
    """Return a side of the model's own text, without an engine."""

    def answered(probes: list[Probe]) -> list[list[int]]:
        texts = continuations(model(name), [list(probe.prompt) for probe in probes], TOKENS) if probes else []
        return [text[: probe.max_tokens] for text, probe in zip(texts, probes, strict=True)]

    return TokenSide(answered, None)


def audited(side: TokenSide, control: TokenSide, texts: list[str]) -> Report:
    @contextmanager
    def opened(which: TokenSide) -> Iterator[TokenSide]:
        yield which

    return run(
        audited=lambda: opened(side),
        control=lambda: opened(control),
        texts=texts,
        checks=[Greedy()],
        max_tokens=TOKENS,
        together=len(texts),
        progress=lambda title, total: lambda: None,
    )


def test_a_stale_recurrent_state_fails(hybrid):
    """Steps without drafts that read the state before accepted drafts, as in vLLM 55504."""
    engine = hybrid("v1", "falcon_h1", VARYING)
    sides = served(engine, "auditing.counts"), by_the_model("falcon_h1")
    report = audited(*sides, NUMBERS)
    assert report.passed, report
    engine.call(plant, mutant="before_the_drafts_where_none_follow")
    try:
        report = audited(*sides, NUMBERS)
    finally:
        engine.call(plant, mutant=None)
    assert statuses(report) == {"greedy": "failed"}


@pytest.mark.slow  # two ranks in Triton's interpreter
def test_drafts_that_differ_by_rank_fail(v2_ranks, baseline_v1):
    sides = served(v2_ranks, "ranks.counts"), served(baseline_v1, None)
    report = audited(*sides, TEXTS)
    assert report.passed, report
    v2_ranks.call("ranks.set_apart", apart=True)
    try:
        report = audited(*sides, TEXTS)
    finally:
        v2_ranks.call("ranks.set_apart", apart=False)
    assert statuses(report) == {"greedy": "failed"}
