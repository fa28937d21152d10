"""The draft model that the benchmark distils: what it learns from is the target's own, and it learns."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.real_models import draft_model
from specplug.tools.demo import model_path


@pytest.fixture
def target(monkeypatch):
    monkeypatch.setattr(draft_model, "ROWS", 3)
    monkeypatch.setattr(draft_model, "LENGTH", 20)
    monkeypatch.setattr(draft_model, "WIDTH", 64)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_pretrained(model_path("tiny"), dtype=torch.float32).eval()


def test_likeliest_tokens_are_the_targets_at_their_positions(target):
    start = [5, 6, 7]
    texts = draft_model.write(target, start, minutes=0)
    assert texts.ids.shape == (3, 20)
    assert texts.ids[:, :3].tolist() == [start] * 3
    with torch.no_grad():
        expected = target(texts.ids[:, :-1]).logits[:, 2:].softmax(-1)
    found = torch.zeros_like(expected).scatter(-1, texts.likeliest, texts.probabilities)
    kept = expected * (found > 0)
    torch.testing.assert_close(found, kept / kept.sum(-1, keepdim=True), atol=1e-4, rtol=1e-3)
    assert texts.likeliest.shape == (3, 17, draft_model.LIKELIEST)
    assert bool((texts.ids[:, 3:, None] == texts.likeliest).any(-1).all()), "texts are sampled from these"


def test_the_draft_model_learns_what_the_target_finds_likely(target):
    texts = draft_model.write(target, [5, 6, 7], minutes=0)
    draft = draft_model.make(target)
    assert draft.config.vocab_size == target.config.vocab_size
    assert draft.num_parameters() < target.num_parameters()
    entropy = -(texts.probabilities * texts.probabilities.clamp_min(1e-9).log()).sum(-1).mean()
    optimizer = torch.optim.AdamW(draft.parameters(), lr=draft_model.RATE)
    losses = []
    for _ in range(30):
        loss, same = draft_model.loss_of(draft, texts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > losses[-1] > entropy.item() - 1e-4
    assert 0 <= same.item() <= 1
