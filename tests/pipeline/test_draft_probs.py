"""Logits that a proposer fills in reach an engine that takes probabilities as softmax(logits / temperature)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specplug.types.caps import Distribution, EngineCaps
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms
from specplug.verify.reference import ReferenceVerifier
from tests.pipeline.tools import SLOTS, VOCAB, Recorder, Rig, drafts, rig_of, rows
from tests.verify.full_probs import full_probs

TAKES_PROBS = EngineCaps(4, draft_input=Distribution.PROBS)
IDS = [9, 1, 4]


def logits_of(row: int, place: int, size: int = VOCAB) -> Tensor:
    """Return [size], different for each row and place, with negative numbers among them."""
    return torch.randn(size, generator=torch.Generator().manual_seed(10 * row + place)) * 3


def states(*ids: int, size: int = VOCAB, **caps: bool) -> Recorder:
    """Return a proposer that drafts these ids for each row that it may draft for, and fills in `logits_of`."""

    def write(_batch, limits, draft):
        for row, limit in enumerate(limits.tolist()):
            if limit:
                draft.set_row(row, ids, 0.5)
                for place in range(len(ids)):
                    if draft.draft_logits is not None:
                        draft.draft_logits[row, place] = logits_of(row, place, size)

    return Recorder(write, distribution=Distribution.LOGITS, **caps)


def started(rig: Rig, *names: str) -> Rig:
    for name in names:
        rig.start(name, [1])
    return rig


@pytest.mark.parametrize("needs_host", [False, True])
def test_each_row_has_its_own_temperature(needs_host):
    rig = started(rig_of(states(5, 6, needs_host=needs_host), caps=TAKES_PROBS), "a", "b", "c")
    assert rig.stage.distribution is Distribution.PROBS
    for heat in ([1.0, 0.5, 2.0], [0.25, 1.0, 1.0]):  # the second step finds the first one's probabilities
        draft = rig.draft(temperature=heat)
        assert drafts(draft) == [[5, 6]] * 3
        assert (draft.distribution, draft.draft_logits) == (Distribution.PROBS, None)
        draft.validate()
        for row, own in enumerate(heat):
            for place in range(2):
                expected = torch.softmax(logits_of(row, place) / own, 0)
                torch.testing.assert_close(draft.draft_probs[row, place], expected)


def test_it_takes_no_memory_of_its_own():
    rig = started(rig_of(states(5), caps=TAKES_PROBS), "a")
    assert rig.stage.distribution_bytes == SLOTS * 4 * VOCAB * 4
    draft = rig.draft(temperature=[1.0])
    assert draft.draft_probs.untyped_storage().nbytes() == rig.stage.distribution_bytes


def test_columns_of_a_draft_vocabulary():
    proposer = states(1, size=len(IDS))
    proposer.draft_vocab = torch.tensor(IDS)
    draft = started(rig_of(proposer, caps=TAKES_PROBS), "a").draft(temperature=[0.5])
    assert draft.draft_vocab.tolist() == IDS
    torch.testing.assert_close(draft.draft_probs[0, 0], torch.softmax(logits_of(0, 0, 3) / 0.5, 0))
    found = full_probs(draft, torch.tensor([0.5]), VOCAB)[0, 0]
    assert found.count_nonzero() == len(IDS)
    torch.testing.assert_close(found[IDS], torch.softmax(logits_of(0, 0, 3).double() / 0.5, 0), atol=1e-6, rtol=0)


def test_rows_of_others_stay_one_hot():
    rig = Rig({"plain": Recorder(rows([7], [7])), "model": states(5)}, caps=TAKES_PROBS)
    rig.start("a", [1])
    rig.start("b", [1], proposer="model")
    draft = rig.draft(temperature=[2.0, 2.0])
    assert drafts(draft) == [[7], [5]]
    assert draft.drawn[:, 0].tolist() == [False, True]
    torch.testing.assert_close(draft.draft_probs[1, 0], torch.softmax(logits_of(1, 0) / 2, 0))


def test_the_first_that_states_either_kind_is_chosen():
    probs = Recorder(rows([7], [7]), distribution=Distribution.PROBS)
    for order in (("model", "probs"), ("probs", "model")):
        by_name = {"model": states(5), "probs": probs}
        rig = Rig({name: by_name[name] for name in order}, caps=TAKES_PROBS)
        rig.start("a", [1], proposer="model")
        rig.start("b", [1], proposer="probs")
        assert rig.draft(temperature=[1.0, 1.0]).drawn[:, 0].tolist() == [order[0] == "model", order[0] == "probs"]


def verified(draft, heat: list[float], target: Tensor) -> list[list[int]]:
    """Return what the reference verifier emits, for random numbers that accept whatever may be accepted."""
    count, places = draft.batch_size, draft.draft_length
    numbers = Uniforms(torch.full((count, places), 1e-12).double(), torch.full((count, places + 1), 0.5).double())
    logits = TargetLogits.dense(target.expand(count, places + 1, VOCAB))
    found = ReferenceVerifier().verify(draft, logits, SamplingBatch(torch.tensor(heat)), numbers)
    return [[token for token in row if token >= 0] for row in found.token_ids.tolist()]


@pytest.mark.parametrize("heat", [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
def test_greedy_rows_emit_what_is_most_likely(heat):
    """A greedy draft is accepted if it is the target's own token, whatever its logits are, and otherwise replaced."""
    target = torch.zeros(VOCAB)
    target[5] = 4.0
    rig = started(rig_of(states(5, 6), caps=TAKES_PROBS), "a", "b")
    draft = rig.draft(temperature=heat)
    assert draft.distribution is Distribution.PROBS
    for row, found in enumerate(verified(draft, heat, target)):
        if heat[row] == 0:
            assert found == [5, 5]
        else:
            assert bool(torch.isfinite(draft.draft_probs[row, :2]).all())


def test_an_engine_that_takes_logits_gets_them_as_they_are():
    rig = started(rig_of(states(5), caps=replace(TAKES_PROBS, draft_input=Distribution.LOGITS)), "a")
    draft = rig.draft(temperature=[0.5])
    assert (draft.distribution, draft.draft_probs) == (Distribution.LOGITS, None)
    assert torch.equal(draft.draft_logits[0, 0], logits_of(0, 0))
    assert rig.stage.distribution is Distribution.LOGITS
