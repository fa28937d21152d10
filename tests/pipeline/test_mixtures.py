"""Several proposers in one batch: chosen per request; trees and chains."""

from __future__ import annotations

from specplug.types.caps import Distribution, EngineCaps
from tests.pipeline.tools import VOCAB, Recorder, Rig, drafts, rig_of, rows, started


class TestSeveralProposers:
    def rig(self, **caps):
        self.up = Recorder(sources=("own", "other"), learns=True)
        self.down = Recorder(rows([9, 8], [9, 8], [9, 8]), learns=True)
        return Rig({"up": self.up, "down": self.down}, **caps)

    def test_requests_choose(self):
        rig = started(self.rig(), a=[1])
        rig.start("b", [1], proposer="down")
        rig.start("c", [1], proposer="up")
        draft = rig.draft()
        assert drafts(draft) == [[2, 3, 4, 5], [9, 8], [2, 3, 4, 5]]
        assert draft.sources == rig.stage.sources == ("up/own", "up/other", "down")
        assert draft.source.tolist() == [[0] * 4, [2, 2, -1, -1], [0] * 4]
        assert self.up.limits == [[4, 0, 4]]
        assert self.down.limits == [[0, 4, 0]]
        assert self.up.handed == self.down.handed == [{(0, 0): [1], (1, 0): [1], (2, 0): [1]}], "all ingest every row"

    def test_who_is_not_chosen_only_ingests(self):
        rig = started(self.rig(), a=[1])
        rig.draft()
        assert (len(self.up.limits), len(self.down.limits)) == (1, 0)
        assert len(self.up.handed) == len(self.down.handed) == 1
        rig.start("b", [1], proposer="down")
        rig.draft()
        rig.leave("b")
        rig.start("c", [1])  # in its slot: the choice ends with the request
        assert drafts(rig.draft()) == [[2, 3, 4, 5]] * 2
        assert (len(self.up.limits), len(self.down.limits)) == (3, 1)
        assert len(self.up.handed) == len(self.down.handed) == 3

    def test_each_observes_the_whole_batch_with_its_own_sources(self):
        rig = started(self.rig(), a=[1])
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


def fork(_batch, limits, draft):
    """Draft a weak branch, and a strong one of two nodes, where a row may be drafted."""
    for row, limit in enumerate(limits.tolist()):
        if limit:
            parents = None if draft.parents is None else [-1, -1, 1]
            draft.set_row(row, [10, 20, 21], [0.3, 0.6, 0.9], parents=parents)


class TestTrees:
    def test_they_stay_trees_where_the_engine_takes_them_also_for_those_who_observe(self):
        proposer = Recorder(fork, trees=True, learns=True)
        rig = started(rig_of(proposer, caps=EngineCaps(4, trees=True)), a=[1])
        draft = rig.draft()
        assert drafts(draft) == [[10, 20, 21]]
        rig.verify({"a": 2})
        [(_, seen, _)] = proposer.observed
        assert seen.parents.tolist() == draft.parents.tolist() == [[-1, -1, 1, -1]]

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
        rig = started(rig_of(Recorder(fork, trees=True)), a=[1])
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
