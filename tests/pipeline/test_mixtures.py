"""Several proposers in one batch: chosen per request, with and without full distributions, trees and chains."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from specplug.errors import ContractError
from specplug.types.caps import Distribution, EngineCaps
from specplug.types.request import Lifecycle
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms
from specplug.verify.reference import ReferenceVerifier
from tests.pipeline.tools import SLOTS, VOCAB, Recorder, Rig, drafts, rig_of, rows
from tests.verify.full_probs import full_probs


class TestSeveralProposers:
    def rig(self, **caps):
        self.up = Recorder(sources=("own", "other"), learns=True)
        self.down = Recorder(rows([9, 8], [9, 8], [9, 8]), learns=True)
        return Rig({"up": self.up, "down": self.down}, **caps)

    def test_requests_choose(self):
        rig = self.rig()
        rig.start("a", [1])
        rig.start("b", [1], proposer="down")
        rig.start("c", [1], proposer="up")
        draft = rig.draft()
        assert drafts(draft) == [[2, 3, 4, 5], [9, 8], [2, 3, 4, 5]]
        assert draft.sources == rig.stage.sources == ("up/own", "up/other", "down")
        assert draft.source.tolist() == [[0] * 4, [2, 2, -1, -1], [0] * 4]
        assert self.up.limits == [[4, 0, 4]]
        assert self.down.limits == [[0, 4, 0]]

    def test_all_of_them_ingest_every_row(self):
        rig = self.rig()
        rig.start("a", [1, 2])
        rig.start("b", [3], proposer="down")
        rig.draft()
        assert self.up.handed == self.down.handed == [{(0, 0): [1, 2], (1, 0): [3]}]

    def test_the_choice_belongs_to_the_slot_and_ends_with_the_request(self):
        rig = self.rig()
        rig.start("a", [1], proposer="down")
        assert drafts(rig.draft()) == [[9, 8]]
        rig.leave("a")
        rig.start("b", [1])
        assert drafts(rig.draft()) == [[2, 3, 4, 5]]

    def test_who_is_not_chosen_only_ingests(self):
        rig = self.rig()
        rig.start("a", [1])
        rig.draft()
        assert (len(self.up.limits), len(self.down.limits)) == (1, 0)
        assert len(self.up.handed) == len(self.down.handed) == 1
        rig.start("b", [1], proposer="down")
        rig.draft()
        rig.leave("b")
        rig.draft()
        assert (len(self.up.limits), len(self.down.limits)) == (3, 1)
        assert len(self.up.handed) == len(self.down.handed) == 3

    def test_a_resumed_request_keeps_its_choice(self):
        rig = self.rig()
        rig.start("a", [1], proposer="down")
        text = rig.leave("a", Lifecycle.PREEMPTED)
        rig.start("a", text, slot=3, proposer="down", kind=Lifecycle.RESUMED)
        assert drafts(rig.draft()) == [[9, 8]]

    def test_each_observes_the_whole_batch_with_its_own_sources(self):
        rig = self.rig()
        rig.start("a", [1])
        rig.start("b", [1], proposer="down")
        rig.draft()
        rig.verify({"a": 1, "b": 2})
        [(_, up, _)], [(_, down, verdict)] = self.up.observed, self.down.observed
        assert drafts(up) == drafts(down) == [[2, 3, 4, 5], [9, 8]]
        assert (up.source.tolist(), up.sources) == ([[0] * 4, [-1] * 4], ("up/own", "up/other"))
        assert (down.source.tolist(), down.sources) == ([[-1] * 4, [0, 0, -1, -1]], ("down",))
        assert verdict.accepted.tolist() == [1, 2]
        by_source = rig.metrics.snapshot().by_source
        assert {name: counts.accepted for name, counts in by_source.items()} == {
            "up/own": 1,
            "up/other": 0,
            "down": 2,
            "none": 0,
        }


def distribution_writer(distribution, token, value):
    """Return a `write` that drafts one token per row, with probability `value` if full distributions are accepted."""

    def write(_batch, _limits, draft):
        for row in range(draft.batch_size):
            draft.set_row(row, [token], 0.5)
        full = draft.draft_probs if distribution is Distribution.PROBS else draft.draft_logits
        if full is not None:
            full.fill_(0.0)
            full[:, 0, token] = value

    return write


class TestFullDistributions:
    @pytest.mark.parametrize(
        ("distribution", "takes"),
        [(Distribution.PROBS, Distribution.PROBS), (Distribution.LOGITS, Distribution.LOGITS)],
    )
    def test_rows_of_others_are_one_hot_drafts(self, distribution, takes):
        sampler = Recorder(distribution_writer(distribution, 5, 0.25), distribution=distribution)
        rig = Rig({"sampler": sampler, "plain": Recorder(rows([], [7, 8]))}, caps=EngineCaps(4, draft_input=takes))
        rig.start("a", [1])
        rig.start("b", [1], proposer="plain")
        rig.draft()  # leaves stale distributions in the buffer
        draft = rig.draft()
        assert draft.distribution is distribution
        distribution = draft.draft_probs if distribution is Distribution.PROBS else draft.draft_logits
        assert distribution[0, 0, 5] == 0.25
        assert distribution[0, 0].count_nonzero() == 1
        assert draft.drawn[0].all()
        expected = torch.zeros(2, VOCAB, dtype=torch.float64)
        expected[0, 7] = expected[1, 8] = 1.0
        assert torch.equal(full_probs(draft, torch.ones(2), VOCAB)[1, :2], expected)

    def test_the_same_rows_change_hands(self):
        sampler = Recorder(distribution_writer(Distribution.PROBS, 5, 0.25), distribution=Distribution.PROBS)
        rig = Rig(
            {"plain": Recorder(rows([7], [7])), "sampler": sampler},
            caps=EngineCaps(4, draft_input=Distribution.PROBS),
        )
        rig.start("a", [1])
        assert not rig.draft(names=["a"]).drawn[0, 0]
        rig.leave("a")
        rig.start("b", [1], proposer="sampler")
        rig.start("c", [1])
        draft = rig.draft()
        assert (float(draft.draft_probs[0, 0, 5]), float(draft.draft_probs[0, 0].sum())) == (0.25, 0.25)
        assert draft.drawn[:, 0].tolist() == [True, False]

    def test_there_is_one_buffer_however_many_state_one(self):
        """A second proposer's drafts become one-hot; the merged draft has no distributions of its own."""
        first, second = (
            Recorder(distribution_writer(Distribution.PROBS, token, 0.25), distribution=Distribution.PROBS)
            for token in (5, 6)
        )
        rig = Rig(
            {"plain": Recorder(rows([7], [], [])), "first": first, "second": second},
            caps=EngineCaps(4, draft_input=Distribution.PROBS),
        )
        assert rig.stage.distribution_bytes == SLOTS * 4 * VOCAB * 4
        rig.start("a", [1])
        rig.start("b", [1], proposer="first")
        rig.start("c", [1], proposer="second")
        draft = rig.draft()
        assert drafts(draft) == [[7], [5], [6]]
        assert draft.drawn[:, 0].tolist() == [False, True, False]
        assert draft.draft_probs.untyped_storage().nbytes() == rig.stage.distribution_bytes

    def test_a_draft_vocabulary_makes_the_buffer_small_and_others_draft_what_it_lacks(self):
        sampler = Recorder(distribution_writer(Distribution.PROBS, 1, 0.25), distribution=Distribution.PROBS)
        sampler.draft_vocab = torch.tensor([9, 1, 4])
        rig = Rig(
            {"sampler": sampler, "plain": Recorder(rows([], [7]))}, caps=EngineCaps(4, draft_input=Distribution.PROBS)
        )
        assert rig.stage.distribution_bytes == SLOTS * 4 * 3 * 4
        rig.start("a", [1])
        rig.start("b", [1], proposer="plain")
        draft = rig.draft()
        assert drafts(draft) == [[1], [7]]
        assert draft.draft_vocab.tolist() == [9, 1, 4]
        probs = full_probs(draft, torch.ones(2), VOCAB)
        assert (float(probs[0, 0, 1]), float(probs[1, 0, 7])) == (1.0, 1.0)

    @pytest.mark.parametrize("ids", [[], [1, 1], [-1, 2], [VOCAB], [[1]], [1.0]])
    def test_a_malformed_draft_vocabulary_stops_start_up(self, ids):
        sampler = Recorder(distribution_writer(Distribution.PROBS, 1, 0.25), distribution=Distribution.PROBS)
        sampler.draft_vocab = torch.tensor(ids)
        with pytest.raises(ContractError, match="draft vocabulary"):
            rig_of(sampler, caps=EngineCaps(4, draft_input=Distribution.PROBS))

    @pytest.mark.parametrize("takes", [Distribution.ONE_HOT, Distribution.LOGITS])
    def test_an_engine_that_does_not_take_a_distribution_is_not_given_one(self, takes):
        sampler = Recorder(distribution_writer(Distribution.PROBS, 5, 0.25), distribution=Distribution.PROBS)
        rig = rig_of(sampler, caps=EngineCaps(4, draft_input=takes))
        rig.start("a", [1])
        rig.start("b", [1])
        draft = rig.draft()
        assert drafts(draft) == [[5], [5]]
        assert (draft.distribution, draft.draft_probs, draft.draft_logits) == (Distribution.ONE_HOT, None, None)

    def test_a_trimmed_draft_is_verified_as_one_hot(self):
        sampler = Recorder(distribution_writer(Distribution.PROBS, 5, 0.25), distribution=Distribution.PROBS)
        rig = rig_of(sampler, caps=EngineCaps(4, draft_input=Distribution.PROBS))
        rig.start("a", [1])
        rig.start("b", [1])
        draft = rig.draft(budget=1)
        assert drafts(draft) == [[5], []]
        assert (draft.distribution, draft.draft_probs) == (Distribution.ONE_HOT, None)

    def test_trimming_by_the_drawn_token_stays_lossless(self):
        """Keep a token only if it is token 0, as a confidence that depends on the token does."""
        q, p, output = torch.zeros(VOCAB), torch.zeros(VOCAB), torch.zeros(VOCAB, dtype=torch.float64)
        q[:2], p[:2] = torch.tensor([0.9, 0.1]), 0.5
        for drawn in (0, 1):
            rig = rig_of(
                Recorder(partial(draw, drawn, q), distribution=Distribution.PROBS),
                caps=EngineCaps(1, draft_input=Distribution.PROBS),
            )
            rig.start("a", [1])
            rig.start("b", [1])
            draft = rig.draft(1, budget=1)
            assert drafts(draft) == ([[0], []] if drawn == 0 else [[], [0]])
            output += q[drawn] * first_token_distribution(draft, p)
        assert torch.allclose(output, p.double())


def draw(drawn, q, batch, _limits, draft):
    """Draft `drawn` for the first row, sure of itself if it is 0, and 0 for the second; state q."""
    draft.set_row(0, [drawn], 1.0 if drawn == 0 else 0.0)
    draft.set_row(1, [0], 0.5)
    draft.draft_probs.zero_()
    draft.draft_probs[:, 0] = q


def first_token_distribution(draft, p):
    """Return the distribution [V] of row 0's first token, for the target's `p` [V], over all random numbers."""
    distribution, grid = torch.zeros(len(p), dtype=torch.float64), (torch.arange(20, dtype=torch.float64) + 0.5) / 20
    one_row = draft.view(1, draft.draft_length)
    for accept in grid:
        for number in grid:
            numbers = Uniforms(accept.expand(1, draft.draft_length), number.expand(1, draft.draft_length + 1))
            target = TargetLogits.dense(p.log().expand(1, draft.draft_length + 1, -1))
            found = ReferenceVerifier().verify(one_row, target, SamplingBatch(torch.ones(1)), numbers)
            distribution[found.token_ids[0, 0]] += 1 / 400
    return distribution


def fork(_batch, limits, draft):
    """Draft a weak branch, and a strong one of two nodes, where a row may be drafted."""
    for row, limit in enumerate(limits.tolist()):
        if limit:
            parents = None if draft.parents is None else [-1, -1, 1]
            draft.set_row(row, [10, 20, 21], [0.3, 0.6, 0.9], parents=parents)


class TestTrees:
    def test_they_stay_trees_where_the_engine_takes_them(self):
        rig = rig_of(Recorder(fork, trees=True), caps=EngineCaps(4, trees=True))
        rig.start("a", [1])
        draft = rig.draft()
        assert drafts(draft) == [[10, 20, 21]]
        assert draft.parents[0, :3].tolist() == [-1, -1, 1]
        rig.verify({"a": 2})

    def test_a_chain_chosen_from_a_tree_is_verified_as_one_hot(self):
        def with_distribution(batch, limits, draft):
            fork(batch, limits, draft)
            draft.draft_probs.fill_(1 / VOCAB)

        caps = EngineCaps(4, draft_input=Distribution.PROBS)
        rig = rig_of(Recorder(with_distribution, trees=True, distribution=Distribution.PROBS), caps=caps)
        rig.start("a", [1])
        draft = rig.draft()
        assert drafts(draft) == [[20, 21]]
        assert (draft.distribution, draft.draft_probs) == (Distribution.ONE_HOT, None)

    def test_elsewhere_they_become_their_best_chain(self):
        rig = rig_of(Recorder(fork, trees=True))
        rig.start("a", [1])
        draft = rig.draft()
        assert draft.parents is None
        assert drafts(draft) == [[20, 21]]
        assert rig.draft(0).parents is None

    def test_beside_chains(self):
        rig = Rig({"tree": Recorder(fork, trees=True), "chain": Recorder()}, caps=EngineCaps(4, trees=True))
        rig.start("a", [1])
        rig.start("b", [1], proposer="chain")
        draft = rig.draft()
        assert drafts(draft) == [[10, 20, 21], [2, 3, 4, 5]]
        assert draft.parents.tolist() == [[-1, -1, 1, -1], [-1, 0, 1, 2]]

    def test_what_is_observed_has_them_too(self):
        proposer = Recorder(fork, trees=True, learns=True)
        rig = rig_of(proposer, caps=EngineCaps(4, trees=True))
        rig.start("a", [1])
        rig.draft()
        rig.verify({"a": 2})
        [(_, seen, _)] = proposer.observed
        assert seen.parents.tolist() == [[-1, -1, 1, -1]]

    def test_a_budget_keeps_the_likeliest_nodes(self):
        rig = rig_of(Recorder(fork, trees=True), caps=EngineCaps(4, trees=True))
        rig.start("a", [1])
        draft = rig.draft(budget=2)
        assert drafts(draft) == [[20, 21]]
        assert draft.parents[0, :2].tolist() == [-1, 0]
