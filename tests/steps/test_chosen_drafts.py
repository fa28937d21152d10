"""Draft tokens that any component chooses by value are verified as one-hot drafts.

Those are lossless however they were chosen (`tests/verify/test_lossless.py`); judged by what they were drawn from, they
would bias the output.
"""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from specplug.grammar.drafts import complete
from specplug.grammar.states import AllowedState
from specplug.interfaces import Trimmer
from specplug.steps.device_step import EngineTensors
from specplug.steps.trim import SurvivalTrimmer
from specplug.testing.batches import make_batch
from specplug.types.caps import Distribution, EngineCaps
from specplug.types.step import Draft, StepPlan
from specplug_vllm.worker.drafting import Drafting
from tests.steps.tools import Recorder, rig_of
from tests.steps.trim_tools import each_costs

DRAWN_FROM = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)


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
    return draft


def completed(token):
    state = AllowedState(lambda text: {0, 1}, [])
    return complete(written(token), [state], [1]).draft


def cut_by_the_scheduler(token):
    """vLLM's worker drafts, and its scheduler cuts what the grammar forbids."""
    drafting = object.__new__(Drafting)
    drafting.plan, drafting.grammars, drafting.scheduled, drafting.vocab_size = StepPlan(1), {}, {}, 3
    drafting.stops = SimpleNamespace(after=lambda *_: None)
    drafting.stage = SimpleNamespace(
        observe=lambda *_: None, propose=lambda *_: written(token), trim=lambda _batch, draft, _plan: draft
    )
    batch = make_batch([[1]], grammar=[True], vocab_size=3)
    rows = SimpleNamespace(names=("a",), batch=lambda *_, **__: batch, caps=torch.ones(1), caps_of=lambda plan: None)
    one = torch.ones(1, dtype=torch.int32)
    draft = drafting.take(rows, EngineTensors(one - 1, one, batch.tokens, one, one - 1))
    draft.shorten(torch.tensor([int(token != 2)]))
    return draft


def best_path(*tokens):
    return written(*tokens, trees=True).as_chain()


CHOOSERS = {
    "nodes that are kept": (kept, 1),
    "the best path of a tree": (best_path, 2),
    "a trimmer of another author": (trimmed, 1),
    "a cost": (partial(trimmed, trimmer=SurvivalTrimmer(), costs=each_costs(0.5)), 1),
    "a grammar": (completed, 1),
    "vLLM's scheduler": (cut_by_the_scheduler, 1),
}


@pytest.mark.parametrize("chooser", CHOOSERS)
def test_whatever_is_chosen_is_one_hot(chooser):
    choose, count = CHOOSERS[chooser]
    for tokens in itertools.product(range(3), repeat=count):
        assert written(*tokens).drawn.all()
        draft = choose(*tokens)
        assert draft.distribution is Distribution.ONE_HOT or not (draft.drawn & draft.mask()).any()
