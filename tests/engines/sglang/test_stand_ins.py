"""The stand-ins for SGLang's kernels against references in plain Python."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sgl_kernel import (
    verify_tree_greedy_cpu,
)
from sgl_kernel.seeds import murmur_hash32_cpu
from specplug_test_sglang_cpu.attention import attend, masks_of

from tests.engines.sglang.forests import ancestors, children, forests, linked, mask_of, outputs


@given(forests(), st.data())
def test_greedy_verification_of_trees(forest, data):
    rows, n = len(forest), len(forest[0])
    depth = data.draw(st.integers(1, n))
    tokens, choices = (
        data.draw(st.lists(st.lists(st.integers(0, 2), min_size=n, max_size=n), min_size=rows, max_size=rows))
        for _ in range(2)
    )
    made, out = linked(forest), outputs(rows, n, depth)
    del made["positions"]
    verify_tree_greedy_cpu(**out, **made, candidates=torch.tensor(tokens), target_predict=torch.tensor(choices))
    for row, parents in enumerate(forest):
        path, emitted = [0], [choices[row][0]]
        while len(path) < depth:
            fitting = [child for child in children(parents, path[-1]) if tokens[row][child] == emitted[-1]]
            if not fitting:
                break
            path.append(fitting[0])
            emitted.append(choices[row][fitting[0]])
        places = [row * n + node for node in path]
        assert out["accept_token_num"][row] == len(path) - 1
        assert out["accept_index"][row].tolist() == places + [-1] * (depth - len(path))
        assert out["predicts"][places].tolist() == emitted


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
