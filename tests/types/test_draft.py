"""Draft: its buffer, and its arithmetic against brute force over root paths."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.errors import ContractError
from specplug.types.caps import Distribution
from specplug.types.draft import NO_TOKEN
from specplug.types.paths import ROOT, survival_in_rounds
from specplug.types.step import Draft

DRAFT_LENGTH = 7
NAN = float("nan")
quick = settings(max_examples=40)


@st.composite
def parent_lists(draw):
    """Parents of one tree, each before its children."""
    return [draw(st.integers(ROOT, node - 1)) for node in range(draw(st.integers(0, DRAFT_LENGTH)))]


@st.composite
def forests(draw, trees=True):
    """A draft of up to 3 rows whose token ids name row and node, and whose places beyond the lengths are poison."""
    rows = draw(st.lists(parent_lists(), min_size=1, max_size=3))
    draft = Draft.allocate(len(rows), DRAFT_LENGTH, trees=trees, distribution=Distribution.PROBS, vocab_size=300)
    for row, parents in enumerate(rows):
        levels = [draw(st.integers(0, 4)) / 4 for _ in parents]
        ids = [100 * row + node for node in range(len(parents))]
        draft.set_row(row, ids, levels, source=ids, parents=parents if trees else None)
        draft.confidence[row, len(parents) :] = NAN
        draft.source[row, len(parents) :] = 99
        draft.draft_probs[row] = NAN
        draft.draft_probs[row, : len(parents)] = torch.tensor(ids, dtype=torch.float32)[:, None]
    return draft


def root_path(draft, row, node):
    """Nodes from the context to `node`."""
    path = []
    while node != ROOT:
        path.insert(0, node)
        node = node - 1 if draft.parents is None else int(draft.parents[row, node])
    return path


def survival_of(draft, row, path):
    """Probability that each node of a path is reached and accepted."""
    return [float(draft.confidence[row, path[: end + 1]].prod()) for end in range(len(path))]


class TestBuffer:
    @given(forests())
    @quick
    def test_reset_empties_a_used_buffer_and_copy_copies_everything(self, draft):
        twin = Draft.allocate(
            draft.batch_size, DRAFT_LENGTH, trees=True, distribution=Distribution.PROBS, vocab_size=300
        )
        draft.base_len.fill_(3)
        twin.copy_(draft)
        for name in ("token_ids", "lengths", "confidence", "source", "base_len", "parents", "draft_probs"):
            mine, theirs = getattr(twin, name), getattr(draft, name)
            assert torch.equal(mine.nan_to_num(), theirs.nan_to_num()), name
            assert mine.data_ptr() != theirs.data_ptr()
        draft.reset(torch.full((draft.batch_size,), 4, dtype=torch.int32))
        fresh = Draft.allocate(draft.batch_size, DRAFT_LENGTH, trees=True)
        for name in ("token_ids", "lengths", "confidence", "source", "parents"):
            assert torch.equal(getattr(draft, name), getattr(fresh, name)), name
        assert draft.base_len.tolist() == [4] * draft.batch_size
        draft.clear()
        assert draft.base_len.tolist() == [4] * draft.batch_size

    def test_set_row_replaces_the_row_before(self):
        draft = Draft.allocate(1, 3, trees=True)
        draft.set_row(0, [1, 2, 3], [0.9, 0.8, 0.7], source=[2, 0, 1], parents=[-1, -1, -1])
        assert draft.source.tolist() == [[2, 0, 1]]
        draft.set_row(0, [4, 5], 0.5)
        assert draft.token_ids.tolist() == [[4, 5, -1]]
        assert draft.confidence.tolist() == [[0.5, 0.5, 0.0]]
        assert draft.parents.tolist() == [[-1, 0, -1]]  # without parents it is a chain, also in a tree buffer
        assert (draft.lengths.tolist(), draft.source.tolist()) == ([2], [[0, 0, -1]])
        draft.set_row(0, [], [])
        assert (draft.lengths.tolist(), draft.source.tolist()) == ([0], [[-1] * 3])

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ({"token_ids": [1, 2, 3], "confidence": 0.5}, "draft too long; found 3; expected <= 2"),
            ({"token_ids": [1, 2], "confidence": [0.5]}, "'confidence': 1, 'source': 2, 'parents': 2}; expected 2"),
            ({"token_ids": [1, 2], "confidence": 0.5, "parents": [-1]}, "'source': 2, 'parents': 1}; expected 2"),
            ({"token_ids": [1, 2], "confidence": 0.5, "source": [0]}, "'confidence': 2, 'source': 1, 'parents': 2}"),
            ({"token_ids": [1], "confidence": 0.5, "parents": [-1]}, "takes no trees; expected parents=None"),
        ],
    )
    def test_set_row_refuses(self, args, message):
        draft = Draft.allocate(1, 2)
        with pytest.raises(ContractError, match=message):
            draft.set_row(0, **args)
        assert draft.lengths.tolist() == [0]
        assert draft.token_ids.tolist() == [[-1, -1]]

    @given(forests(), st.lists(st.integers(-1, DRAFT_LENGTH + 1), min_size=3, max_size=3))
    @quick
    def test_shorten_cuts_rows_to_prefixes(self, draft, limits):
        before = draft.token_ids.clone()
        expected = [min(n, max(0, limit)) for n, limit in zip(draft.lengths.tolist(), limits, strict=False)]
        draft.shorten(torch.tensor(limits[: draft.batch_size]))
        assert draft.lengths.tolist() == expected
        for row, length in enumerate(expected):
            assert draft.token_ids[row, :length].equal(before[row, :length])
            assert draft.token_ids[row, length:].eq(NO_TOKEN).all()
            assert draft.confidence[row, length:].eq(0).all()
            assert draft.parents[row, length:].eq(ROOT).all()
        assert draft.source.equal(draft.token_ids)

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("token_ids", torch.zeros(2, 3, dtype=torch.int64)),
            ("lengths", torch.zeros(3, dtype=torch.int32)),
            ("confidence", torch.zeros(2, 3, dtype=torch.float64)),
            ("source", torch.zeros(2, dtype=torch.int64)),
            ("base_len", torch.zeros(2, 1, dtype=torch.int32)),
            ("parents", torch.zeros(2, 2, dtype=torch.int32)),
            ("draft_probs", None),
            ("draft_probs", torch.zeros(2, 2, 4)),
            ("lengths", torch.zeros(2, dtype=torch.int32, device="meta")),
            ("parents", torch.zeros(2, 3, dtype=torch.int32, device="meta")),
            ("draft_probs", torch.zeros(2, 3, 4, device="meta")),
        ],
    )
    def test_validate_names_what_is_malformed(self, name, wrong):
        draft = Draft.allocate(2, 3, trees=True, distribution=Distribution.PROBS, vocab_size=4)
        draft.validate()
        with pytest.raises(ContractError, match=rf"Draft\.{name} is .*malformed; found|{name} is missing"):
            replace(draft, **{name: wrong}).validate()


class TestCopy:
    def test_a_chain_stays_one_in_a_tree_buffer_and_an_unwanted_distribution_is_left_out(self):
        chain = Draft.allocate(1, 3, distribution=Distribution.PROBS, vocab_size=9)
        tree = Draft.allocate(1, 3, trees=True)
        chain.set_row(0, [1, 2, 3], 0.5)
        tree.set_row(0, [4, 5, 6], 0.5, parents=[-1, -1, -1])
        tree.copy_(chain)
        tree.validate()
        assert (tree.parents.tolist(), tree.distribution) == ([[-1, 0, 1]], Distribution.ONE_HOT)

    @pytest.mark.parametrize(
        ("buffer", "other"),
        [
            ({}, {"trees": True}),
            ({"distribution": Distribution.PROBS}, {}),
            ({"distribution": Distribution.LOGITS}, {"distribution": Distribution.PROBS}),
        ],
    )
    def test_refuses_what_it_would_misstate(self, buffer, other):
        with pytest.raises(ContractError, match=r"Draft\.copy_: cannot hold that draft; found .*; expected "):
            Draft.allocate(1, 2, **buffer).copy_(Draft.allocate(1, 2, **other))


class TestPaths:
    @given(st.booleans().flatmap(forests))
    @quick
    def test_survival_and_expected_accepted(self, draft):
        survival, expected = draft.survival(), draft.expected_accepted()
        for row, length in enumerate(draft.lengths.tolist()):
            assert survival[row, length:].eq(0).all()
            for node in range(length):
                along = survival_of(draft, row, root_path(draft, row, node))
                assert float(survival[row, node]) == pytest.approx(along[-1], abs=1e-6)
                assert float(expected[row, node]) == pytest.approx(sum(along), abs=1e-6)

    @given(forests())
    @quick
    def test_survival_in_rounds_is_that_of_the_paths(self, draft):
        certain = torch.where(draft.mask(), draft.confidence, 0.0)
        assert torch.allclose(survival_in_rounds(certain, draft.parents), draft.survival(), rtol=1e-6, atol=0)

    @given(forests())
    @quick
    def test_as_chain_is_a_best_root_path(self, draft):
        chain = draft.as_chain()
        chain.validate()
        assert chain.parents is None
        for row, length in enumerate(draft.lengths.tolist()):
            paths = [root_path(draft, row, node) for node in range(length)]
            gains = {tuple(100 * row + n for n in path): sum(survival_of(draft, row, path)) for path in paths}
            kept = int(chain.lengths[row])
            ids = tuple(chain.token_ids[row, :kept].tolist())
            assert chain.token_ids[row, kept:].eq(NO_TOKEN).all()
            assert chain.confidence[row, kept:].eq(0).all()
            if not length:
                assert kept == 0
                continue
            assert gains[ids] == pytest.approx(max(gains.values()), abs=1e-6)
            assert chain.confidence[row, :kept].equal(draft.confidence[row, [i % 100 for i in ids]])
            assert (chain.distribution, chain.draft_probs) == (Distribution.ONE_HOT, None)
            assert chain.source[row].equal(chain.token_ids[row])

    def test_as_chain_keeps_a_chain_whole(self):
        draft = Draft.allocate(1, 4, trees=True)
        draft.set_row(0, [5, 6, 7], 0.0)
        assert draft.as_chain().token_ids.tolist() == [[5, 6, 7, -1]]
        chain = Draft.allocate(1, 4)
        assert chain.as_chain() is chain

    @given(st.booleans().flatmap(forests), st.data())
    @quick
    def test_keep_moves_nodes_together(self, draft, data):
        wanted = torch.tensor(data.draw(st.lists(st.booleans(), min_size=3 * DRAFT_LENGTH, max_size=3 * DRAFT_LENGTH)))
        mask = wanted.view(3, DRAFT_LENGTH)[: draft.batch_size].clone()
        for row, length in enumerate(draft.lengths.tolist()):
            for node in range(length):
                mask[row, node] &= all(bool(mask[row, above]) for above in root_path(draft, row, node))
        before, survival = draft.token_ids.clone(), draft.survival()
        kept = draft.keep(mask, torch.tensor([True, False, False])[: draft.batch_size])
        kept.validate()
        assert draft.token_ids.equal(before)
        assert draft.keep(mask).draft_probs is None
        for row, length in enumerate(draft.lengths.tolist()):
            nodes = [node for node in range(length) if mask[row, node]]
            count = len(nodes)
            assert int(kept.lengths[row]) == count
            assert kept.token_ids[row].tolist() == [100 * row + n for n in nodes] + [NO_TOKEN] * (DRAFT_LENGTH - count)
            assert kept.confidence[row, count:].eq(0).all()
            if row == 0:  # the row that was looked at
                assert not kept.drawn[row].any()
            else:
                assert kept.drawn[row].all()
                assert kept.draft_probs[row, :count, 0].tolist() == [100 * row + n for n in nodes]
            assert kept.source[row].equal(kept.token_ids[row])
            for place, node in enumerate(nodes):
                assert [nodes[n] for n in root_path(kept, row, place)] == root_path(draft, row, node)
            assert torch.allclose(kept.survival()[row, :count], survival[row, nodes])

    @pytest.mark.parametrize(("rows", "draft_length"), [(0, 0), (0, 3), (2, 0)])
    @pytest.mark.parametrize("trees", [False, True])
    def test_empty_drafts(self, rows, draft_length, trees):
        draft = Draft.allocate(rows, draft_length, trees=trees)
        for result in (
            draft.as_chain(),
            draft.keep(torch.ones(rows, draft_length, dtype=torch.bool)),
            draft.view(0, 0),
        ):
            result.validate()
            assert result.lengths.sum() == 0
        assert draft.survival().shape == draft.expected_accepted().shape == (rows, draft_length)
