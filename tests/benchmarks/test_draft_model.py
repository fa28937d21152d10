"""The draft model that the benchmark distils: it learns what the target finds likely."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from benchmarks.real_models import draft_model
from specplug.tools.demo import model_path


def test_the_draft_model_learns_what_the_target_finds_likely(monkeypatch):
    monkeypatch.setattr(draft_model, "WIDTH", 64)
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_pretrained(model_path("tiny"), dtype=torch.float32).eval()
    ids = torch.randint(5, 200, (3, 20))
    with torch.no_grad():
        probabilities, likeliest = target(ids[:, 2:-1]).logits.softmax(-1).topk(draft_model.LIKELIEST)
    texts = draft_model.Texts(ids, likeliest, probabilities / probabilities.sum(-1, keepdim=True))
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
