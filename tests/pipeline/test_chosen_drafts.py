"""Draft tokens that any component chooses by value leave the target's distribution unchanged.

Exact: every draft that can be drawn is sent through the real code and the reference verifier, and what is emitted is
summed up over a grid of random numbers on which all probabilities are multiples.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from specplug.grammar.drafts import complete
from specplug.grammar.states import AllowedState
from specplug.interfaces import Trimmer
from specplug.testing.batches import make_batch
from specplug.trim import SurvivalTrimmer
from specplug.types.caps import Distribution, EngineCaps
from specplug.types.draft import Draft
from specplug.types.plan import Price, StepPlan
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms
from specplug.verify.reference import ReferenceVerifier
from specplug_vllm.worker.drafting import Drafting
from tests.pipeline.tools import Recorder, rig_of

TARGET = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)  # token 2 is what the grammar forbids
DRAWN_FROM = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)
CELLS = 20


class Shortener(Trimmer):
    """Keeps confident tokens without calling `Draft.keep`."""

    def trim(self, draft, token_budget):
        draft.shorten((draft.confidence > 0.5).sum(1))
        return draft


def written(*tokens, trees=False):
    """Return a draft of one row that states where its tokens were drawn from and is sure of token 0 only."""
    draft = Draft.allocate(1, len(tokens), trees=trees, distribution=Distribution.PROBS, vocab_size=3)
    write(tokens, draft, parents=[-1] * len(tokens) if trees else None)
    return draft


def write(tokens, draft, parents=None):
    draft.set_row(0, tokens, [1.0 if token == 0 else 0.25 for token in tokens], parents=parents)
    draft.draft_probs[0, :, :3] = DRAWN_FROM


def kept(token):
    draft = written(token)
    return draft.keep(draft.token_ids == 0)


def trimmed(token, trimmer=None, **limits):
    """Trim by limits that a trimmer of another author does not read."""

    def one_row(_batch, _limits, draft):
        write([token], draft)

    caps = EngineCaps(1, draft_input=Distribution.PROBS)
    rig = rig_of(Recorder(one_row, distribution=Distribution.PROBS), caps=caps, trimmer=trimmer or Shortener())
    rig.start("a", [1])
    draft = rig.draft(1, **limits or {"budget": 0})
    return draft if draft.draft_probs is None else replace(draft, draft_probs=draft.draft_probs[..., :3])


def completed(token):
    state = AllowedState(lambda text: {0, 1}, [])
    return complete(written(token), [state], [1]).draft


def cut_by_the_scheduler(token):
    """vLLM's worker drafts, and its scheduler cuts what the grammar forbids."""
    drafting = object.__new__(Drafting)
    drafting.plan = StepPlan(draft_length=1)
    stage = SimpleNamespace(propose=lambda *_: written(token), trim=lambda _batch, draft, _plan: draft)
    drafting.stage = SimpleNamespace(observe=lambda *_: None, **vars(stage))
    draft = drafting.step(make_batch([[1]], grammar=[True], vocab_size=3), None, torch.ones(1, dtype=torch.int32))
    draft.shorten(torch.tensor([int(token != 2)]))
    return draft


def best_path(*tokens):
    return written(*tokens, trees=True).as_chain()


CHOOSERS = {
    "nodes that are kept": (kept, 1),
    "the best path of a tree": (best_path, 2),
    "a trimmer of another author": (trimmed, 1),
    "a price": (partial(trimmed, trimmer=SurvivalTrimmer(), prices=(Price(0.5),)), 1),
    "a grammar": (completed, 1),
    "vLLM's scheduler": (cut_by_the_scheduler, 1),
}


def emitted(choose, count):
    """Return [3] float64: the distribution of the first token, over all drafts of `count` drawn tokens."""
    total = torch.zeros(3, dtype=torch.float64)
    for tokens in itertools.product(range(3), repeat=count):
        total += DRAWN_FROM[list(tokens)].prod() * first_token(choose(*tokens))
    return total


def first_token(draft):
    """Return [3] float64: the distribution of the first token emitted for a draft of one row."""
    numbers = (torch.arange(CELLS, dtype=torch.float64) + 0.5) / CELLS
    cells = torch.cartesian_prod(numbers, numbers)
    rows = len(cells)
    names = ("token_ids", "lengths", "confidence", "source", "base_len", "draft_probs", "drawn")
    found = {name: getattr(draft, name) for name in names}
    many = {name: t if t is None else t.expand(rows, *t.shape[1:]) for name, t in found.items()}
    uniforms = Uniforms(cells[:, :1].expand(-1, draft.draft_length), cells[:, 1:].expand(-1, draft.draft_length + 1))
    target = TargetLogits.dense(TARGET.log().expand(rows, draft.draft_length + 1, -1))
    many_rows = replace(draft, **many)
    tokens = ReferenceVerifier().verify(many_rows, target, SamplingBatch(torch.ones(rows)), uniforms).token_ids[:, 0]
    return torch.bincount(tokens, minlength=3) / rows


@pytest.mark.parametrize("chooser", CHOOSERS)
def test_what_is_emitted_follows_the_target(chooser):
    assert torch.allclose(emitted(*CHOOSERS[chooser]), TARGET, atol=1e-9)


def test_judged_by_what_they_were_drawn_from_they_would_not():
    def forgotten(token):
        draft = written(token)
        draft.shorten(torch.tensor([int(token == 0)]))
        return draft

    assert not torch.allclose(emitted(forgotten, 1), TARGET, atol=0.02)
