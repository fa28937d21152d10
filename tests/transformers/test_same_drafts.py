"""A third party's proposer drafts here as it does in vLLM and SGLang; see `tests.engines.same_drafts`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specplug.trace import read_trace
from specplug_transformers import Engine, GenerateRequest, SamplingParams
from tests.engines import plain, same_drafts


def test_drafts_are_the_same(tmp_path: Path):
    given, path = same_drafts.requested(), tmp_path / "trace.jsonl"
    settings: dict[str, Any] = {
        **same_drafts.SETTINGS,
        "num_speculative_tokens": same_drafts.DRAFT_LENGTH,
        "trace": {"path": str(path)},
    }
    engine = Engine(plain.model(), settings=settings, max_num_seqs=5, registry=same_drafts.registry())
    params = SamplingParams(max_tokens=same_drafts.MAX_TOKENS)
    requests = [GenerateRequest(prompt=ids, params=params, request_id=name) for name, ids in given.items()]
    outputs = engine.generate(requests)
    engine.close()
    assert not engine.metrics.snapshot().faults
    same_drafts.assert_answers({output.request_id: output.token_ids for output in outputs})
    same_drafts.assert_trace([*read_trace(path)], before_first=True)


def test_every_answer_is_unambiguous():
    """No other kernel, and no other machine, may answer differently."""
    for prompt in same_drafts.requested().values():
        text = torch.tensor([[*prompt, *same_drafts.answer(prompt)]])
        with torch.inference_mode():
            logits = plain.model()(input_ids=text).logits[0, len(prompt) - 1 : -1]
        best, second = logits.topk(2).values.unbind(1)
        assert float((best - second).min()) > 0.5
