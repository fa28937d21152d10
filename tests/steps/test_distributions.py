"""Distributions that proposers state: who is given them, in what memory, and as softmax(logits / temperature)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.types.caps import Distribution, EngineCaps
from tests.steps.tools import SLOTS, VOCAB, Recorder, Rig, drafts, rig_of, rows
from tests.verify.full_probs import full_probs

ONE_HOT, PROBS, LOGITS = Distribution.ONE_HOT, Distribution.PROBS, Distribution.LOGITS
IDS = [9, 1, 4]


def takes(distribution: Distribution) -> EngineCaps:
    return EngineCaps(4, draft_input=distribution)


def logits_of(row: int, place: int, size: int = VOCAB) -> Tensor:
    """Return [size], different for each row and place, with negative numbers among them."""
    return torch.randn(size, generator=torch.Generator().manual_seed(10 * row + place)) * 3


def probs_of(row: int, place: int, heat: float = 1.0, size: int = VOCAB) -> Tensor:
    return torch.softmax(logits_of(row, place, size) / heat, 0)


def states(distribution: Distribution, *ids: int, size: int = VOCAB, **caps: bool) -> Recorder:
    """Return a proposer that drafts these ids where it may, and states a distribution if it is given the memory."""

    def write(_batch, limits, draft):
        for row, limit in enumerate(limits.tolist()):
            if limit:
                draft.set_row(row, ids, 0.5)
                for place in range(len(ids)):
                    if draft.draft_logits is not None:
                        draft.draft_logits[row, place] = logits_of(row, place, size)
                    if draft.draft_probs is not None:
                        draft.draft_probs[row, place] = probs_of(row, place, size=size)

    return Recorder(write, distribution=distribution, **caps)


def started(rig: Rig, *names: str) -> Rig:
    """Start requests, each with the proposer of its name if there is one."""
    for name in names:
        rig.start(name, [1], proposer=name if name in rig.proposers else None)
    return rig


def stated(draft) -> Tensor:
    return draft.draft_logits if draft.draft_probs is None else draft.draft_probs


@pytest.mark.parametrize("needs_host", [False, True])
def test_each_row_has_its_own_temperature(needs_host):
    rig = started(rig_of(states(LOGITS, 5, 6, needs_host=needs_host), caps=takes(PROBS)), "a", "b", "c")
    assert rig.stage.distribution is PROBS
    for heat in ([1.0, 0.5, 2.0], [0.25, 1.0, 1.0]):  # the second step finds the first one's probabilities
        draft = rig.draft(temperature=heat)
        assert drafts(draft) == [[5, 6]] * 3
        assert (draft.distribution, draft.draft_logits) == (PROBS, None)
        draft.validate()
        for row, own in enumerate(heat):
            for place in range(2):
                torch.testing.assert_close(draft.draft_probs[row, place], probs_of(row, place, own))


@pytest.mark.parametrize(("states_", "given"), [(PROBS, PROBS), (LOGITS, PROBS), (LOGITS, LOGITS)])
def test_rows_of_others_are_one_hot_and_rows_change_hands(states_, given):
    """Also where an earlier step has left distributions in the buffer, which is the only one."""
    rig = Rig({"plain": Recorder(rows([7, 8], [7, 8])), "model": states(states_, 5)}, caps=takes(given))
    heat, memory = 2.0, SLOTS * 4 * VOCAB * 4
    assert (rig.stage.distribution, rig.stage.distribution_bytes) == (given, memory)
    for order in (("plain", "model"), ("model", "plain")):
        draft = started(rig, *order).draft(temperature=[heat] * 2)
        own, other = order.index("model"), order.index("plain")
        assert drafts(draft) == [[5] if name == "model" else [7, 8] for name in order]
        assert draft.distribution is given
        assert [draft.drawn[own, 0].item(), *draft.drawn[other, :2].tolist()] == [True, False, False]
        expected = logits_of(own, 0) if given is LOGITS else probs_of(own, 0, heat if states_ is LOGITS else 1.0)
        torch.testing.assert_close(stated(draft)[own, 0], expected)
        assert stated(draft).untyped_storage().nbytes() == memory
        one_hot = torch.nn.functional.one_hot(torch.tensor([7, 8]), VOCAB).double()
        assert torch.equal(full_probs(draft, torch.full((2,), heat), VOCAB)[other, :2], one_hot)
        for name in order:
            rig.leave(name)


@pytest.mark.parametrize("order", [("model", "probs"), ("probs", "model")])
def test_there_is_one_buffer_for_the_first_that_states_either_kind(order):
    by_name = {"model": states(LOGITS, 5), "probs": states(PROBS, 6)}
    rig = started(Rig({name: by_name[name] for name in order}, caps=takes(PROBS)), "model", "probs")
    draft = rig.draft(temperature=[1.0, 1.0])
    assert drafts(draft) == [[5], [6]]
    assert draft.drawn[:, 0].tolist() == [order[0] == "model", order[0] == "probs"]
    assert stated(draft).untyped_storage().nbytes() == rig.stage.distribution_bytes == SLOTS * 4 * VOCAB * 4


@pytest.mark.parametrize("distribution", [PROBS, LOGITS])
def test_a_draft_vocabulary_makes_the_buffer_small_and_others_draft_what_it_lacks(distribution):
    model, heat = states(distribution, 1, size=len(IDS)), 0.5
    model.draft_vocab = torch.tensor(IDS)
    rig = Rig({"model": model, "plain": Recorder(rows([], [7]))}, caps=takes(PROBS))
    assert rig.stage.distribution_bytes == SLOTS * 4 * len(IDS) * 4
    draft = started(rig, "model", "plain").draft(temperature=[heat] * 2)
    assert (drafts(draft), draft.draft_vocab.tolist()) == ([[1], [7]], IDS)
    expected = probs_of(0, 0, heat if distribution is LOGITS else 1.0, len(IDS))
    torch.testing.assert_close(draft.draft_probs[0, 0], expected)
    probs = full_probs(draft, torch.full((2,), heat), VOCAB)[:, 0]
    assert probs[0].count_nonzero() == len(IDS)
    torch.testing.assert_close(probs[0, IDS], expected.double(), atol=1e-6, rtol=0)
    assert float(probs[1, 7]) == 1.0


@pytest.mark.parametrize("ids", [[], [1, 1], [-1, 2], [VOCAB], [[1]], [1.0]])
def test_a_malformed_draft_vocabulary_stops_start_up(ids):
    model = states(PROBS, 1)
    model.draft_vocab = torch.tensor(ids)
    with pytest.raises(ContractError, match="draft vocabulary"):
        rig_of(model, caps=takes(PROBS))


@pytest.mark.parametrize(("given", "budget", "left"), [(ONE_HOT, None, 1), (LOGITS, None, 1), (PROBS, 1, 0)])
def test_a_draft_is_one_hot_if_the_engine_does_not_take_its_distribution_or_it_was_trimmed(given, budget, left):
    rig = started(rig_of(states(PROBS, 5), caps=takes(given)), "a", "b")
    draft = rig.draft(budget=budget)
    assert drafts(draft) == [[5], [5] * left]
    assert (draft.distribution, draft.draft_probs, draft.draft_logits) == (ONE_HOT, None, None)


@pytest.mark.parametrize("heat", [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
def test_drafts_of_greedy_rows_are_one_hot_whatever_their_logits_are(heat):
    draft = started(rig_of(states(LOGITS, 5, 6), caps=takes(PROBS)), "a", "b").draft(temperature=heat)
    assert draft.distribution is PROBS
    assert draft.drawn[:, :2].tolist() == [[own > 0] * 2 for own in heat]
    assert bool(torch.isfinite(draft.draft_probs[draft.drawn & draft.mask()]).all())
