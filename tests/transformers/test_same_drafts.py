"""A third party's proposer drafts here as it does in vLLM and SGLang; see `tests.engines.same_drafts`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specplug.trace import TraceRow
from specplug_transformers import Engine, GenerateRequest, SamplingParams
from tests.engines import plain, same_drafts
from tests.trace_reader import read_trace

Serve = Callable[..., list[TraceRow]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Serve prompts on the tiny model; return the trace."""

    def serve(count: int | None = None, mutant: str | None = None) -> list[TraceRow]:
        given, path = same_drafts.requested(count), tmp_path / f"{mutant}.jsonl"
        settings: dict[str, Any] = {
            **same_drafts.SETTINGS,
            "num_speculative_tokens": same_drafts.DRAFT_LENGTH,
            "trace": {"path": str(path)},
        }
        engine = Engine(plain.model(), settings=settings, max_num_seqs=5, registry=same_drafts.registry())
        params = SamplingParams(max_tokens=same_drafts.MAX_TOKENS)
        requests = [GenerateRequest(prompt=ids, params=params, request_id=name) for name, ids in given.items()]
        with same_drafts.planted(engine._drafts, mutant):
            outputs = engine.generate(requests)
        engine.close()
        assert not engine.metrics.snapshot().faults
        same_drafts.assert_answers({output.request_id: output.token_ids for output in outputs})
        return read_trace(path)

    return serve


def test_drafts_are_the_same(serve):
    same_drafts.assert_drafts(serve(), before_first=True)


@pytest.mark.parametrize("mutant", same_drafts.MUTANTS)
def test_drafts_of_a_mutant_are_not(mutant, serve):
    with pytest.raises(AssertionError):
        same_drafts.assert_drafts(serve(4, mutant), 4, before_first=True)
    same_drafts.assert_drafts(serve(4), 4, before_first=True)


def test_every_answer_is_unambiguous():
    """No other kernel, and no other machine, may answer differently."""
    for prompt in same_drafts.requested().values():
        text = torch.tensor([[*prompt, *same_drafts.answer(prompt)]])
        with torch.inference_mode():
            logits = plain.model()(input_ids=text).logits[0, len(prompt) - 1 : -1]
        best, second = logits.topk(2).values.unbind(1)
        assert float((best - second).min()) > 0.5
