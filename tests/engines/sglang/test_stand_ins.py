"""The stand-ins for SGLang's kernels against plain Python, where no text of an engine would show a mistake."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sgl_kernel.sampling import tree_speculative_sampling_target_only
from sgl_kernel.seeds import murmur_hash32_cpu
from sgl_kernel.speculative import reconstruct_indices_from_tree_mask
from specplug_test_sglang_cpu.attention import attend, masks_of

from specplug_sglang.verification.acceptance import departed


@st.composite
def forests(draw: st.DrawFn, most: int = 7) -> list[list[int]]:
    """Draft trees of one size: the parent of each node, which precedes it, or -1 for the root and for padding."""
    n = draw(st.integers(1, most))
    rows = draw(st.integers(1, 3))
    return [[-1, *(draw(st.integers(-1, node - 1)) for node in range(1, n))] for _ in range(rows)]


def ancestors(parents: list[int], node: int) -> list[int]:
    """Return a node and those above it."""
    found = [node]
    while parents[found[-1]] >= 0:
        found.append(parents[found[-1]])
    return found


def mask_of(forest: list[list[int]]) -> torch.Tensor:
    n = len(forest[0])
    mask = torch.zeros(len(forest), n, n, dtype=torch.bool)
    for row, parents in enumerate(forest):
        for node in range(n):
            mask[row, node, ancestors(parents, node)] = True
    return mask


def linked(forest: list[list[int]], lengths: list[int] | None = None) -> dict[str, torch.Tensor]:
    """Return what the stand-in makes of trees; poisoned before."""
    rows, n = len(forest), len(forest[0])
    made = {
        "positions": torch.full((rows * n,), -77),
        "retrive_index": torch.full((rows, n), -77),
        "retrive_next_token": torch.full((rows, n), -77),
        "retrive_next_sibling": torch.full((rows, n), -77),
    }
    lens = torch.tensor(lengths or [0] * rows)
    reconstruct_indices_from_tree_mask(mask_of(forest).flatten(), lens, *made.values(), rows, n)
    return made


def outputs(rows: int, n: int, depth: int) -> dict[str, Any]:
    return {
        "predicts": torch.full((rows * n,), -77, dtype=torch.int32),
        "accept_index": torch.full((rows, depth), -1, dtype=torch.int32),
        "accept_token_num": torch.full((rows,), -77, dtype=torch.int32),
    }


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=3), st.data())
def test_hashes_of_seeds_and_positions(rows, data):
    columns = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3))
    seeds, positions = (torch.tensor(values, dtype=torch.uint64) for values in zip(*rows, strict=True))
    found = murmur_hash32_cpu(seeds, positions, torch.tensor(columns))
    keys = [seed.to_bytes(8, "little") + place.to_bytes(4, "little") for seed, place in rows]
    expected = [[murmur3(key + column.to_bytes(4, "little")) for column in columns] for key in keys]
    assert found.tolist() == expected
    assert torch.equal(found, torch.ops.sgl_kernel.murmur_hash32_cpu.default(seeds, positions, torch.tensor(columns)))


def murmur3(key: bytes, seed: int = 0) -> int:
    """Return MurmurHash3_x86_32 of whole blocks of 4 bytes, as its author wrote it down."""
    whole, hashed = 0xFFFFFFFF, seed
    for start in range(0, len(key), 4):
        k = int.from_bytes(key[start : start + 4], "little") * 0xCC9E2D51 & whole
        k = (k << 15 | k >> 17) & whole
        hashed ^= k * 0x1B873593 & whole
        hashed = (hashed << 13 | hashed >> 19) & whole
        hashed = (hashed * 5 + 0xE6546B64) & whole
    hashed ^= len(key)
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & whole
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & whole
    return hashed ^ hashed >> 16


@pytest.mark.parametrize(
    ("key", "seed", "hashed"), [(b"", 1, 0x514E28B7), (b"\xff" * 4, 0, 0x76293B50), (b"test", 0, 0xBA6BD213)]
)
def test_published_hashes(key, seed, hashed):
    assert murmur3(key, seed) == hashed


@given(forests(most=4), st.integers(0, 3))
def test_attention_of_drafts(forest, length):
    """Against softmax(q k) v written out, with two query heads per key; slots that are not the request's are poison."""
    rows, n, heads, kv_heads, size, scale = len(forest), len(forest[0]), 4, 2, 3, 0.5
    generator = torch.Generator().manual_seed(rows * 100 + n * 10 + length)
    used = rows * (length + n)
    order = torch.randperm(used + 5, generator=generator).int()
    slots = list(order[:used].view(rows, -1))
    queries = torch.randn(rows * n, heads, size, generator=generator)
    keys, values = (torch.randn(used + 5, kv_heads, size, generator=generator) for _ in range(2))
    keys[order[used:].long()] = values[order[used:].long()] = math.nan
    masks = masks_of(mask_of(forest).flatten(), [length] * rows, n, 4)
    found = attend(queries, keys, values, slots, masks, scale)
    for row, node in itertools.product(range(rows), range(n)):
        parents = forest[row]
        seen = [*range(length), *(length + above for above in sorted(ancestors(parents, node)))]
        for head in range(heads):
            query = queries[row * n + node, head].double()
            places = [int(slots[row][place]) for place in seen]
            scores = [scale * float(query @ keys[place, head // 2].double()) for place in places]
            total = sum(math.exp(score) for score in scores)
            expected = sum(
                math.exp(score) / total * values[place, head // 2].double()
                for score, place in zip(scores, places, strict=True)
            )
            assert torch.allclose(found[row * n + node, head].double(), expected, atol=1e-5)


@given(forests(), st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_masks_are_trees_only_in_engines_started_for_trees(forest, lengths):
    rows, n = len(forest), len(forest[0])
    lengths = lengths[:rows]
    trees = [
        [[True] * before + [other in ancestors(parents, node) for other in range(n)] for node in range(n)]
        for parents, before in zip(forest, lengths, strict=True)
    ]
    chains = [[[True] * (before + node + 1) + [False] * (n - 1 - node) for node in range(n)] for before in lengths]
    squares = mask_of(forest).flatten()
    whole = torch.tensor([seen for tree in trees for node in tree for seen in node])
    assert [mask.tolist() for mask in masks_of(squares, lengths, n, 4)] == trees
    assert [mask.tolist() for mask in masks_of(whole, lengths, n, 4)] == trees
    for topk in (1, None):
        assert [mask.tolist() for mask in masks_of(squares, lengths, n, topk)] == chains
    with pytest.raises(ValueError, match="tree mask"):
        masks_of(squares[1:], lengths, n, 4)


@pytest.mark.parametrize(("single", "acc"), [(1.0, 1.0), (0.3, 1.0), (1.0, 0.5), (0.3, 0.5)])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.4, 0.8, 1.0])
def test_the_departure_of_lossy_acceptance_is_how_much_more_often_a_draft_is_accepted(single, acc, chance):
    """One draft token at every number of a fine grid, by the rule that SGLang's options state."""
    rows = 1000
    coins = (torch.arange(rows) + 0.5) / rows
    made, out = linked([[-1, 0]] * rows), outputs(rows, 2, 2)
    del made["positions"]
    probs = torch.tensor([1 - chance, chance]).expand(rows, 2, 2)
    candidates = torch.tensor([[0, 1]]).expand(rows, 2)
    tree_speculative_sampling_target_only(
        **out,
        **made,
        candidates=candidates,
        uniform_samples=torch.stack([coins, coins], 1),
        uniform_samples_for_final_sampling=torch.full((rows,), 0.5),
        target_probs=probs,
        draft_probs=torch.zeros_like(probs),
        threshold_single=single,
        threshold_acc=acc,
        deterministic=True,
    )
    accepted = out["accept_token_num"].double().mean().item()
    assert accepted == pytest.approx(1.0 if chance >= single else min(1.0, chance / acc), abs=1e-3)
    found = departed(probs, candidates, out["accept_index"], out["accept_token_num"], single=single, acc=acc)
    assert found.double().mean().item() == pytest.approx(accepted - chance, abs=1e-3)
