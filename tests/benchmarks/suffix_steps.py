"""Random runs of the suffix decoding that the GPU benchmark compares with."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from benchmarks.gpu.suffix import Corpus, SuffixDrafts
from tests.pipeline.transfers import view_of


def random_run(random: Random, device: torch.device) -> list[dict[str, Tensor]]:
    """Return all that each step of a random run wrote, on the CPU; the next run of an equal `random` is the same run.

    Texts have few tokens, so that matches abound; responses are copies from texts, and others, in a ring that is soon
    overwritten.  Rows come in any order, not all at each step, and statistics are halved at every third step.
    """
    slots, most, gamma = random.randint(1, 4), random.choice([3, 12, 60]), random.choice([1, 7, 15])
    corpus = Corpus(random.choice([8, 50, 400]), device)
    drafts = SuffixDrafts(corpus, slots, gamma, halved_every=3)
    tokens = random.randint(1, 4)
    texts = torch.tensor([[random.randrange(tokens) for _ in range(most)] for _ in range(slots)], dtype=torch.int32)
    lengths = torch.tensor([random.randint(1, random.choice([3, most])) for _ in range(slots)], dtype=torch.int32)
    found = []
    for _ in range(random.randint(1, 8)):
        for _ in range(random.randint(0, 3)):
            corpus.enter(_response(random, texts, tokens).to(device))
        rows = torch.tensor(random.sample(range(slots), random.randint(1, slots)))
        num_sampled = torch.tensor([random.randint(0, gamma + 1) for _ in rows], dtype=torch.int32)
        lengths[rows.long()] = torch.minimum(lengths[rows.long()] + num_sampled, torch.tensor(most)).int()
        out = torch.full((len(rows), gamma), -7, device=device)
        confidence = torch.full((len(rows), gamma), torch.nan, device=device)
        given = [view_of(random, tensor.to(device)) for tensor in (rows, lengths, texts, num_sampled)]
        drafts.draft(*given, out, confidence)
        written = {"out": out, "confidence": confidence, "last": drafts.last, "counts": drafts.counts}
        written |= {"ring": corpus.ring, "tables": corpus.tables}
        found.append({name: tensor.cpu().clone() for name, tensor in written.items()})
    return found


def _response(random: Random, texts: Tensor, tokens: int) -> Tensor:
    """Return a random piece of a text, or random tokens."""
    length = random.randint(1, 60)
    if random.random() < 0.5:
        return torch.tensor([random.randrange(tokens) for _ in range(length)], dtype=torch.int32)
    start = random.randrange(texts.shape[1])
    return texts[random.randrange(len(texts)), start : start + length].clone()
