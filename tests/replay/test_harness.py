"""The project's own loop, and a plain harness around `harness_factory`, count the same."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specplug.replay
from specplug.errors import SettingsError
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import PolicySpec
from specplug.replay.harness import HarnessProposer, Tree, harness_factory
from specplug.replay.run import replay
from specplug.replay.setup import Setup
from tests.replay.tools import ITEMS, Planted, harness, item, registry

POLICIES = [name for name in ("fixed", "none", "batch") if name in default_registry().entries(PolicySpec)]
CONFIG = '{"options": {"ngram-reference": {"min_n": 1}, "fixed": {"token_budget": %d}, "batch": {"saturation": %d}}}'
PLAIN = {"SPECPLUG_REPLAY_PROPOSER": "ngram-reference", "SPECPLUG_REPLAY_POLICY": "fixed"}


@given(
    ITEMS,
    st.sampled_from(["ngram", "ngram-reference"]),
    st.sampled_from(POLICIES),
    st.sampled_from(["cold", "serving"]),
    st.sampled_from([1, 8, 64]),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_harness_and_the_native_loop_agree(items, proposer, policy, mode, batch, fast_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECPLUG_REPLAY_PROPOSER", proposer)
        patch.setenv("SPECPLUG_REPLAY_POLICY", policy)
        patch.setenv("SPECPLUG_REPLAY_BATCH", str(batch))
        patch.setenv("SPECPLUG_REPLAY_LENGTH", "256")
        patch.setenv("SPECPLUG_CONFIG", CONFIG % (3 * batch, 3 * batch))
        theirs = harness(harness_factory(5, mode), items, 5, mode)
        ours = replay(items, Setup(proposer, policy, 5, fast_path=fast_path), mode=mode, batch=batch)
    assert ours.counts.histogram == theirs
    assert not ours.faults


def test_the_budget_of_that_comparison_binds():
    items = [item([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECPLUG_CONFIG", CONFIG % (24, 24))
        found = replay(items, Setup("ngram-reference", "fixed", 5), batch=8)
        assert max(key[0] for key in found.counts.histogram) == 3


def test_the_environment_is_read(monkeypatch):
    assert specplug.replay.harness_factory is harness_factory
    monkeypatch.setenv("SPECPLUG_REPLAY_PROPOSER", "ngrm")
    with pytest.raises(SettingsError, match="ngram"):
        harness_factory(4, "cold")
    monkeypatch.setenv("SPECPLUG_REPLAY_PROPOSER", "ngram")
    monkeypatch.setenv("SPECPLUG_REPLAY_BATCH", "0")
    with pytest.raises(SettingsError, match="SPECPLUG_REPLAY_BATCH"):
        harness_factory(4, "cold")


def test_documents_count_only_when_requested():
    items = [item([1, 2], [3, 4, 5, 6, 7], documents=[[2, 3, 4, 5, 6, 7]])]
    plain = HarnessProposer.from_environment(4, PLAIN)
    assert harness(plain, items, 4, "serving") == {(0, 0, 1): 5}
    given_them = HarnessProposer.from_environment(4, PLAIN | {"SPECPLUG_REPLAY_REFERENCES": "1"})
    assert harness(given_them, items, 4, "serving") == {(4, 4, 5): 1}


def test_less_than_gamma_may_be_requested_for():
    proposer = HarnessProposer.from_environment(4, PLAIN)
    first = item([1, 2, 3, 4, 5, 1, 2], [])
    proposer.start("a", first.prompt, [])
    assert proposer.propose("a", first.prompt, 2) == [3, 4]
    proposer.update("a", [3, 4, 7])
    proposer.update("a", [1, 2])
    assert proposer.propose("a", first.prompt, 9) == [3, 4, 7, 1]


def test_one_request_at_a_time():
    proposer = HarnessProposer.from_environment(4, {})
    proposer.start("a", item([1], []).prompt, [])
    with pytest.raises(ValueError, match="'a' still runs"):
        proposer.start("b", item([1], []).prompt, [])


class _Branches(Planted):
    """Drafts a tree of two branches: 1 or 2, and after 2 a 3."""

    def propose(self, batch, limits, draft):
        for row, limit in enumerate(limits.tolist()):
            if limit >= 3:
                draft.set_row(row, [1, 2, 3], 0.5, parents=[-1, -1, 1])


@pytest.mark.parametrize("harness_has_a_tree", [False, True])
def test_trees_come_as_the_harness_knows_them(monkeypatch, harness_has_a_tree):
    class Own(Tree):
        pass

    if harness_has_a_tree:
        monkeypatch.setitem(sys.modules, "replay", SimpleNamespace(Tree=Own))
    plugins = registry(lambda context: _Branches(), needs_host=True, trees=True)
    env = {
        "SPECPLUG_REPLAY_PROPOSER": "planted", "SPECPLUG_REPLAY_TREES": "1", "SPECPLUG_REPLAY_POLICY": "fixed"
    }  # fmt: skip
    items = [item([5], [4, 2, 3, 1, 1, 4])]
    proposer = HarnessProposer.from_environment(4, env, plugins)
    assert proposer.tree
    theirs = harness(proposer, items, 4, "serving")
    ours = replay(items, Setup(proposer="planted", policy="fixed", gamma=4, trees=True), registry=plugins)
    assert ours.counts.histogram == theirs == {(3, 2, 3): 1, (3, 1, 2): 1, (3, 0, 1): 1}
    proposer.start("a", items[0].prompt, [])
    assert type(proposer.propose("a", items[0].prompt, 4)) is (Own if harness_has_a_tree else Tree)


def test_without_trees_the_best_path_is_drafted():
    plugins = registry(lambda context: _Branches(), needs_host=True, trees=True)
    setup = Setup(proposer="planted", policy="fixed", gamma=4)
    found = replay([item([5], [4, 2, 3, 1, 1, 4])], setup, registry=plugins)
    assert {key[0] for key in found.counts.histogram} == {2}
