"""The stand-ins for SGLang's kernels against references in plain Python."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sgl_kernel import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_tree_kernel_efficient_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)
from sgl_kernel.seeds import murmur_hash32_cpu
from specplug_test_sglang_cpu.attention import attend, masks_of, within
from specplug_test_sglang_cpu.recurrent import extend, read, take_back

from tests.engines.sglang.forests import ancestors, children, forests, linked, mask_of, outputs


@given(forests(), st.integers(0, 50))
def test_links_of_trees(forest, length):
    rows, n = len(forest), len(forest[0])
    made = linked(forest, [length + row for row in range(rows)])
    for row, parents in enumerate(forest):
        for node in range(n):
            siblings = children(parents, parents[node]) if parents[node] >= 0 else [node]
            assert made["positions"][row * n + node] == length + row + len(ancestors(parents, node)) - 1
            assert made["retrive_index"][row, node] == row * n + node
            assert made["retrive_next_token"][row, node] == next(iter(children(parents, node)), -1)
            assert made["retrive_next_sibling"][row, node] == next((s for s in siblings if s > node), -1)


@given(st.integers(1, 5), st.lists(st.integers(0, 50), min_size=1, max_size=3))
def test_links_of_chains(n, lengths):
    """As those of trees whose nodes hang one below the other."""
    forest = [list(range(-1, n - 1))] * len(lengths)
    expected = linked(forest, lengths)
    made = {name: torch.full_like(tensor, -77) for name, tensor in expected.items()}
    mask = torch.zeros(len(lengths) * n * n, dtype=torch.bool)
    build_tree_kernel_efficient_cpu(None, None, torch.tensor(lengths), mask, *made.values(), 1, n - 1, n, 1)
    assert {name: tensor.tolist() for name, tensor in made.items()} == {
        name: tensor.tolist() for name, tensor in expected.items()
    }
    assert mask.tolist() == mask_of(forest).flatten().tolist()


@given(st.lists(st.lists(st.integers(0, 99), min_size=4, max_size=4), min_size=1, max_size=3), st.data())
def test_last_emitted_tokens(tokens, data):
    lengths = [data.draw(st.integers(1, 4)) for _ in tokens]
    found = torch.full((len(tokens),), -77, dtype=torch.int32)
    fill_bonus_tokens_cpu(torch.tensor(tokens, dtype=torch.int32).flatten(), torch.tensor(lengths), found, 4)
    assert found.tolist() == [row[length - 1] for row, length in zip(tokens, lengths, strict=True)]


@given(st.lists(st.integers(0, 10), min_size=1, max_size=3), st.integers(1, 3))
def test_slots_of_drafts(lengths, steps):
    table = torch.randint(0, 1000, (6, 16), dtype=torch.int32)
    rows = list(range(5, 5 - len(lengths), -1))
    found = torch.full((len(lengths) * steps,), -77)
    assign_draft_cache_locs_contiguous_cpu(torch.tensor(rows), table, torch.tensor(lengths), found, 16, 1, steps)
    expected = [table[row, at : at + steps].tolist() for row, at in zip(rows, lengths, strict=True)]
    assert found.tolist() == [slot for own in expected for slot in own]


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


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 6)), min_size=1, max_size=4), st.randoms())
def test_slots_of_positions(ranges, random):
    """Values that are written for some positions are read back for them, and nothing else changes."""
    rows = random.sample(range(6), len(ranges))
    starts, ends = ([start for start, _ in ranges], [start + length for start, length in ranges])
    total = sum(length for _, length in ranges)
    slots = random.sample(range(1000), total)
    table = torch.full((6, 16), -77, dtype=torch.int32)
    where = (torch.tensor(rows), table, torch.tensor(starts), torch.tensor(ends))
    assign_req_to_token_pool_cpu(*where, torch.tensor(slots, dtype=torch.int64), 16)
    expected, left = [[-77] * 16 for _ in range(6)], iter(slots)
    for row, start, end in zip(rows, starts, ends, strict=True):
        for position in range(start, end):
            expected[row][position] = next(left)
    assert table.tolist() == expected
    read = torch.full((total + 2,), -77)
    assign_extend_cache_locs_cpu(*where, read, 16)
    assert read.tolist() == [*slots, -77, -77]


@given(st.lists(st.lists(st.integers(-1, 9), min_size=3, max_size=3), min_size=1, max_size=3))
def test_slots_of_accepted_drafts(accepted):
    slots = torch.arange(10) * 7 + 3
    found = torch.zeros(9, dtype=torch.int64)
    fill_accept_out_cache_loc_cpu(torch.tensor(accepted, dtype=torch.int32), slots, found)
    expected = [place * 7 + 3 for row in accepted for place in row if place >= 0]
    assert found.tolist() == expected + [0] * (9 - len(expected))


@given(st.data())
def test_rows_of_the_cache_move_at_once(data):
    """Sources and destinations may overlap, and each buffer has its own row size."""
    buffers = [torch.randn(8, 2, 3), torch.randn(8, 5, dtype=torch.float64)]
    count = data.draw(st.integers(0, 8))
    targets, sources = (data.draw(st.permutations(range(8)))[:count] for _ in range(2))
    expected = [[row.tolist() for row in buffer] for buffer in buffers]
    for lists in expected:
        for target, row in zip(targets, [lists[source] for source in sources], strict=True):
            lists[target] = row
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    strides = torch.tensor([buffer[0].nbytes for buffer in buffers])
    copy_all_layer_kv_cache_cpu(addresses, strides, torch.tensor(targets), torch.tensor(sources))
    assert [buffer.tolist() for buffer in buffers] == expected


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


def test_what_is_not_needed_says_so():
    with pytest.raises(NotImplementedError, match="rotate_input_ids_cpu"):
        rotate_input_ids_cpu()
    with pytest.raises(NotImplementedError, match="in chains only"):
        build_tree_kernel_efficient_cpu(*[None] * 8, 2, 3, 4, 1)


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


@given(forests(), st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(0, 6))
def test_windows_slide_along_texts(forest, lengths, window):
    """Windows do not slide along nodes: two siblings see equally far back."""
    rows, n = len(forest), len(forest[0])
    masks = masks_of(mask_of(forest).flatten(), lengths[:rows], n, 4)
    for parents, before, mask in zip(forest, lengths, masks, strict=False):
        for node, found in enumerate(within(mask, window).tolist()):
            above = sorted(ancestors(parents, node))
            text = [*range(before), *(before + other for other in above)]  # where its text lies
            assert [place for place, seen in enumerate(found) if seen] == text[-window - 1 :]


@given(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_convolutions_go_on_from_what_was_taken_back(kernel, lengths, data):
    """Texts that are read in parts, and drafts that are taken back, against one convolution of each whole text."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    channels, rows, kept = 2, len(lengths), kernel - 1
    weight, bias = torch.randn(channels, kernel, generator=generator), torch.randn(channels, generator=generator)
    texts = [torch.randn(channels, length, generator=generator) for length in lengths]
    slots = torch.tensor(data.draw(st.permutations(range(5)))[:rows])
    states = torch.full((1, 5, channels, kept), math.nan)
    starts = torch.tensor([0, *itertools.accumulate(lengths)])
    fresh = torch.zeros(rows, dtype=torch.bool)
    shared = {"conv_states": states[0], "cache_indices": slots, "activation": None}
    out = read(torch.cat(texts, 1), weight, bias, query_start_loc=starts, has_initial_state=fresh, **shared)
    emitted = list(out.split(lengths, 1))
    for n in data.draw(st.lists(st.integers(1, 3), max_size=3)):
        drafts = torch.randn(rows, channels, n, generator=generator)
        windows = torch.full((1, rows, 3, channels, kept), math.nan)
        order = torch.tensor(data.draw(st.permutations(range(rows))))
        after = extend(drafts, states[0], weight, bias, None, slots, windows[0], order)
        accepted = [data.draw(st.integers(1, n)) for _ in range(rows)]
        take_back(states, windows, slots, torch.tensor(accepted) - 1, order)
        for row, count in enumerate(accepted):
            texts[row] = torch.cat([texts[row], drafts[row, :, :count]], 1)
            emitted[row] = torch.cat([emitted[row], after[row, :, :count]], 1)
    last = torch.randn(rows, channels, generator=generator)
    after = extend(last, states[0], weight, bias, None, slots)
    for row, text in enumerate(texts):
        whole = torch.cat([torch.zeros(channels, kept), text, last[row][:, None]], 1)
        expected = (whole.unfold(1, kernel, 1) * weight[:, None]).sum(-1) + bias[:, None]
        assert torch.allclose(torch.cat([emitted[row], after[row][:, None]], 1), expected, atol=1e-5)
