"""Drafts, texts and requests as SGLang's worker has them, against plain loops over rows and nodes; without SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specplug.errors import EngineError
from specplug.requests import wire
from specplug.requests.clients import isolation_key
from specplug.steps.slots import MAX_STOP_IDS
from specplug.testing.batches import POISON
from specplug.types.caps import DraftLengthChange, EngineCaps
from specplug.types.request import Reference, RequestOptions
from specplug.types.step import Draft
from specplug_sglang import requests
from specplug_sglang.config import LADDER, ladder_up_to, largest_batches, least_captured, needed_batches
from specplug_sglang.requests import prompt_of, running_request
from specplug_sglang.scheduler.ranks import RankGroup
from specplug_sglang.verification.attention import check, max_cached, reads_mask
from specplug_sglang.verification.trees import Nodes, TokenTable, append, chain_sees, nodes, whole_mask

MOST, VOCAB = 7, 5

# Drafts.


@st.composite
def drafts(draw: st.DrawFn, trees: bool) -> tuple[Draft, torch.Tensor]:
    """Draw a draft, poisoned after its rows' ends, of so few tokens that siblings are often equal; and last tokens."""
    draft_length, rows = draw(st.integers(0, MOST)), draw(st.integers(1, 3))
    draft = Draft.allocate(rows, draft_length, trees=trees)
    draft.token_ids.fill_(POISON)
    if trees:
        draft.parents.copy_(
            torch.tensor(draw(grids(rows, draft_length, -1, draft_length)), dtype=torch.int32).view(rows, draft_length)
        )
    for row in range(rows):
        length = draw(st.integers(0, draft_length))
        draft.lengths[row] = length
        for node in range(length):
            draft.token_ids[row, node] = draw(st.integers(0, VOCAB - 1))
            if trees:
                draft.parents[row, node] = draw(st.integers(-1, node - 1))
    return draft, torch.tensor(draw(st.lists(st.integers(0, VOCAB - 1), min_size=rows, max_size=rows)))


def grids(rows: int, columns: int, low: int, high: int) -> st.SearchStrategy[list[list[int]]]:
    line = st.lists(st.integers(low, high), min_size=columns, max_size=columns)
    return st.lists(line, min_size=rows, max_size=rows)


def parents_in(draft: Draft, row: int) -> list[int]:
    """Return the parent of each node of a row, the root included; -1 for nodes without one.

    Those are the root, padding, and nodes whose token an earlier sibling has.
    """
    tokens, above = draft.token_ids[row].tolist(), [-1]
    for node in range(draft.draft_length):
        if node >= int(draft.lengths[row]):
            above.append(-1)
            continue
        parent = node if draft.parents is None else int(draft.parents[row, node]) + 1
        beside = [tokens[other - 1] for other in range(1, node + 1) if above[other] == parent]
        above.append(-1 if tokens[node] in beside else parent)
    return above


def path_of(parents: list[int], node: int) -> list[int]:
    """Return a node and those above it, the root last."""
    return [node] if parents[node] < 0 else [node, *path_of(parents, parents[node])]


def nodes_after(last: torch.Tensor, draft: Draft) -> Nodes:
    """Return the nodes of a draft after texts of one token."""
    table = TokenTable(len(last), 1, MOST + 1, torch.device("cpu"))
    table.tokens[:, 0] = last
    slots = torch.arange(len(last))
    return nodes(draft, table, slots, torch.zeros_like(slots))


def first(nodes: list[int]) -> int:
    return nodes[0] if nodes else -1


@pytest.mark.parametrize("trees", [False, True], ids=["chains", "trees"])
@given(data=st.data())
def test_nodes_are_those_of_plain_loops(trees, data):
    draft, last = data.draw(drafts(trees))
    found = nodes_after(last, draft)
    n = draft.draft_length + 1
    for row in range(draft.batch_size):
        parents, length = parents_in(draft, row), int(draft.lengths[row])
        drafted = draft.token_ids[row, :length].tolist()
        assert found.tokens[row].tolist() == [int(last[row]), *drafted, *[int(last[row])] * (n - 1 - length)]
        assert found.positions[row].tolist() == [len(path_of(parents, node)) - 1 for node in range(n)]
        children = [[child for child in range(n) if parents[child] == node] for node in range(n)]
        assert found.child[row].tolist() == [first(below) for below in children]
        beside = [[other for other in range(node + 1, n) if parents[other] == parents[node] >= 0] for node in range(n)]
        assert found.sibling[row].tolist() == [first(after) for after in beside]
        if found.sees is not None:
            above = [[other in path_of(parents, node) for other in range(n)] for node in range(n)]
            assert found.sees[row].tolist() == above
    assert (found.sees is None) is not trees


def test_each_node_of_a_chain_sees_those_before_it():
    """As in a tree without branches; what padding sees is nobody's business."""
    tree = Draft.allocate(2, 4, trees=True)
    tree.set_row(0, [1, 2, 3, 4], 0.5)
    tree.set_row(1, [1, 2], 0.5)
    sees = nodes_after(torch.tensor([0, 0]), tree).sees
    full = chain_sees(2, 5, torch.device("cpu"))
    for row, length in enumerate((4, 2)):
        assert torch.equal(full[row, : length + 1], sees[row, : length + 1])


def test_masks_take_little_more_than_a_byte_a_cell():
    """The mask of 256 rows of 9 nodes, each after 8k tokens, has 19 MB."""
    rows, n, length = 256, 9, 8192
    meta = torch.device("meta")
    sees, lengths = torch.ones(rows, n, n, dtype=torch.bool, device=meta), torch.ones(rows, device=meta).long()
    with Allocated() as made:
        mask = whole_mask(sees, lengths, rows * length)
    assert mask.numel() == rows * n * (length + n)
    assert made.bytes < 1.1 * mask.numel()


# What attention backends read.


def backend(name: str, **declared: Any) -> Any:
    """Stand in for a backend of SGLang, of a class of this name."""
    return type(name, (SimpleNamespace,), {"__hash__": object.__hash__})(**declared)


def verify_mask(is_read: bool) -> Any:
    return SimpleNamespace(is_read=is_read)


@pytest.mark.parametrize(
    ("attention", "chains"),
    [
        (backend("FlashAttentionBackend"), False),
        (backend("FlashInferAttnBackend"), True),
        (backend("TritonAttnBackend"), True),
        (backend("Unheard"), True),
        (backend("Unheard", verify_mask=verify_mask(False)), False),
        (backend("FlashAttentionBackend", verify_mask=None), False),
        (backend("HybridLinearAttnBackend", full_attn_backend=backend("TRTLLMMLABackend")), False),
        (backend("HybridLinearAttnBackend", full_attn_backend=backend("TritonAttnBackend")), True),
    ],
)
def test_masks_are_built_where_a_backend_reads_them(attention, chains):
    assert reads_mask(attention, trees=False) is chains
    for drafts_decode in (True, False):
        sides = {"decode_backend": attention, "prefill_backend": backend("Unheard")}
        hybrid = backend("HybridAttnBackend", spec_attn_is_decode=drafts_decode, **sides)
        assert reads_mask(hybrid, trees=False) is (chains if drafts_decode else True)


def test_trees_need_a_backend_that_reads_masks():
    for attention in (backend("FlashAttentionBackend"), backend("Unheard", verify_mask=verify_mask(True))):
        assert reads_mask(attention, trees=True)
        check(attention, trees=True)
    ignores_masks = backend("FlashMLABackend", verify_mask=verify_mask(False))
    check(ignores_masks, trees=False)
    with pytest.raises(EngineError, match="verifies chains only; found FlashMLABackend"):
        check(ignores_masks, trees=True)


def test_a_backend_that_cannot_verify_is_refused():
    with pytest.raises(EngineError, match=r"cannot verify drafts.*found TorchNativeAttnBackend"):
        check(backend("HybridLinearAttnBackend", full_attn_backend=backend("TorchNativeAttnBackend")), trees=False)


@given(data=st.data())
def test_whole_masks_are_those_of_plain_loops_with_room_at_the_end_if_only_the_device_knows_their_size(data):
    """The backend finds the same cells at the same places, whether the host knew the lengths or a bound."""
    rows, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    sees = torch.tensor(data.draw(grids(rows * n, n, 0, 1))).bool().view(rows, n, n)
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))
    slots = [length + data.draw(st.integers(0, 9)) for length in lengths]
    reqs = [SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=held)) for held in slots]
    known = SimpleNamespace(reqs=reqs, seq_lens=torch.tensor(lengths), seq_lens_cpu=torch.tensor(lengths))
    bound = SimpleNamespace(reqs=reqs, seq_lens=torch.tensor(lengths), seq_lens_cpu=None)
    exact = whole_mask(sees, known.seq_lens, max_cached(known, 8))
    larger = whole_mask(sees, bound.seq_lens, max_cached(bound, 8))
    lines = [[True] * length + sees[row, node].tolist() for row, length in enumerate(lengths) for node in range(n)]
    assert exact.tolist() == [value for line in lines for value in line]
    assert exact.numel() <= larger.numel() <= rows * n * (8 + n)
    assert torch.equal(larger[: exact.numel()], exact)


class Allocated(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make, those that live for a moment too."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        if not (func.is_view or func._schema.is_mutable):
            self.bytes += sum(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result


@given(data=st.data())
def test_drafts_arrive_on_other_ranks_as_they_were_sent(data):
    draft, _ = data.draw(drafts(trees=data.draw(st.booleans())))
    sent: list[torch.Tensor] = []

    def broadcast(packed: torch.Tensor, src: int) -> None:
        packed.copy_(sent[0]) if sent else sent.append(packed.clone())

    empty = Draft.allocate(draft.batch_size, draft.draft_length, trees=draft.parents is not None)
    for rank, own in enumerate((draft, empty)):
        ranks = RankGroup(SimpleNamespace(world_size=2, rank_in_group=rank, broadcast=broadcast))
        found = ranks.share(own)
        found.validate()
        assert torch.equal(found.token_ids, draft.token_ids)
        assert torch.equal(found.lengths, draft.lengths)
        assert (found.parents is None) is (draft.parents is None)
        assert draft.parents is None or torch.equal(found.parents, draft.parents)


def test_one_rank_has_nothing_to_share():
    ranks = RankGroup(SimpleNamespace(world_size=1, rank_in_group=0))
    assert ranks.is_alone
    assert ranks.agree(5) == 5


# Texts.


@given(data=st.data())
def test_a_table_holds_what_was_written(data):
    """Masks are right at any lengths, whatever other slots hold.  Entries after the longest text may be overwritten."""
    slots, longest, most = 4, 6, 3
    table = TokenTable(slots, longest, most, torch.device("cpu"))
    table.tokens.fill_(POISON)
    texts: list[list[int]] = [[] for _ in range(slots)]
    for slot in range(slots):
        texts[slot] = data.draw(st.lists(st.integers(0, VOCAB), max_size=longest))
        table.write(slot, np.array(texts[slot], dtype=np.int64))
    for _ in range(data.draw(st.integers(0, 5))):
        batch = data.draw(st.lists(st.integers(0, slots - 1), min_size=1, unique=True))
        draft_length = data.draw(st.integers(1, most))
        emitted = data.draw(grids(len(batch), draft_length, 0, VOCAB))
        lengths = [len(texts[slot]) + data.draw(st.sampled_from([0, 0, longest])) for slot in batch]
        index = torch.arange(len(batch) * draft_length).view(len(batch), -1)
        predict = torch.tensor(emitted, dtype=torch.int32).flatten()
        append(table, torch.tensor(batch), torch.tensor(lengths) - 1, predict, index, torch.ones(len(batch)).int())
        for slot, length, tokens in zip(batch, lengths, emitted, strict=True):
            if length == len(texts[slot]):  # others have run past the end, and nobody reads them
                texts[slot] = (texts[slot] + tokens[: data.draw(st.integers(1, draft_length))])[:longest]
    for slot, text in enumerate(texts):
        assert table.tokens[slot, : len(text)].tolist() == text


# Requests.


def params(**given: Any) -> SimpleNamespace:
    """SGLang's sampling parameters, as normalised: greedy is top_k 1."""
    default = {
        **{"temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, "sampling_seed": None, "custom_params": None},
        **{"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0},
        **{"max_new_tokens": 10, "stop_token_ids": None, "ignore_eos": False},
    }
    return SimpleNamespace(**{**default, **given})


def req(sampling: dict[str, Any] | None = None, **given: Any) -> SimpleNamespace:
    default = {
        **{"rid": "r", "origin_input_ids": [1, 2, 3], "origin_input_ids_unpadded": [1, 2, 3], "output_ids": []},
        **{"sampling_params": params(**(sampling or {})), "lora_id": None, "grammar": None, "extra_key": None},
        **{"cache_salt": None, "eos_token_ids": None, "tokenizer": None, "input_embeds": None},
        **{"positional_embed_overrides": None, "multimodal_inputs": None, "custom_logit_processor": None},
    }
    return SimpleNamespace(**{**default, **given})


def test_a_request_as_plug_ins_see_it(monkeypatch):
    monkeypatch.setattr(requests, "can_roll_back", lambda grammar: True)
    options = RequestOptions(num_speculative_tokens=2, proposer="oracle")
    custom = {wire.WIRE_KEY: wire.encode(options, (Reference.of([5, 6], "x"),), "me")}
    sampling = {"temperature": 0.5, "top_k": 1 << 30, "top_p": 0.9, "sampling_seed": 7, "custom_params": custom}
    found = running_request(req(sampling, grammar=object(), lora_id="lora"), 100)
    request = found.request
    assert (request.request_id, request.prompt_length, request.max_tokens, found.end) == ("r", 3, 10, 13)
    assert request.temperature == 0.5
    assert request.options == options
    assert request.references == (Reference.of([5, 6], "x"),)
    assert request.tenant == "me"
    assert request.isolation_key == isolation_key("me", lora_id="lora")
    assert request.grammar


@pytest.mark.parametrize(("most", "longest", "end"), [(10, 100, 13), (10, 8, 8), (None, 50, 50)])
def test_where_a_request_ends_at_the_latest(most, longest, end):
    assert running_request(req({"max_new_tokens": most}), longest).end == end


def test_stop_ids():
    tokenizer = SimpleNamespace(eos_token_id=2, additional_stop_token_ids={9})
    given = req({"stop_token_ids": [7, 2]}, eos_token_ids=[2, 5], tokenizer=tokenizer)
    assert running_request(given, 100).stop_ids == (2, 5, 9, 7)
    assert running_request(req(eos_token_ids=[5]), 100).stop_ids == (5,)
    assert running_request(req({"ignore_eos": True}, eos_token_ids=[5]), 100).stop_ids == ()
    many = running_request(req({"stop_token_ids": list(range(20))}, eos_token_ids=[30]), 100).stop_ids
    assert (len(many), many[0]) == (MAX_STOP_IDS, 30)
    nothing = SimpleNamespace(eos_token_id=None, additional_stop_token_ids=None)
    assert running_request(req(tokenizer=nothing), 100).stop_ids == ()


def test_isolation_keys():
    alone: list[dict[str, Any]] = [
        {"extra_key": "a"},
        {"extra_key": "a", "cache_salt": "b"},
        {"cache_salt": "b"},
        {"extra_key": "alora", "lora_id": "lora"},
    ]
    keys = [running_request(req(**given), 100).request.isolation_key for given in ({}, *alone)]
    assert keys[0] == ""
    assert len(set(keys)) == len(keys)


def images(*offsets: list[tuple[int, int]] | None) -> SimpleNamespace:
    return SimpleNamespace(mm_items=[SimpleNamespace(offsets=each) for each in offsets])


def test_barriers_are_what_is_no_text():
    """SGLang's offsets end with an image's last position, barriers with the one after it."""
    found = running_request(req(multimodal_inputs=images([(0, 0)], [(1, 2)])), 100)
    assert found.barriers == ((0, 1), (1, 3))
    unknown = (
        req(multimodal_inputs=images([(0, 0)], None)),
        req(multimodal_inputs=images([(0, 0)]), origin_input_ids_unpadded=[1, 2]),
    )
    assert [running_request(given, 100).barriers for given in unknown] == [((0, 3),)] * 2
    for name in ("input_embeds", "positional_embed_overrides"):
        assert running_request(req(**{name: [[0.5]]}), 100).barriers == ((0, 3),)


def test_the_text_of_a_request():
    assert prompt_of(req(output_ids=[8, 9])).tolist() == [1, 2, 3, 8, 9]
    assert prompt_of(req(origin_input_ids_unpadded=[1, 7, 3])).tolist() == [1, 7, 3]  # padded ids are an image's hash
    assert prompt_of(req(origin_input_ids_unpadded=[1, 3])).tolist() == [1, 2, 3]
    assert prompt_of(req()).dtype == np.int64


# Draft lengths.


@pytest.mark.parametrize("draft_length", [0, 1, 5, 8, 32, 40])
def test_draft_lengths_on_a_gpu_are_a_ladder_up_to_the_widest(draft_length):
    ladder = ladder_up_to(draft_length)
    assert ladder == tuple(sorted(set(ladder)))
    assert ladder[-1] == draft_length
    assert set(ladder) == {step for step in LADDER if step <= draft_length} | {draft_length}


@pytest.mark.parametrize(
    ("largest", "expected"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8])],
)
def test_batches_are_captured_up_to_the_least_that_holds_the_largest(largest, expected):
    assert needed_batches([8, 1, 4, 2], largest) == expected
    assert needed_batches(None, largest) is None


def test_each_draft_length_has_its_largest_batch():
    def longest(batch_size: int) -> int:
        return 8 if batch_size <= 2 else 3 if batch_size <= 5 else 0

    assert largest_batches((0, 1, 2, 4, 8, 16), longest, 7) == {0: 7, 1: 5, 2: 5, 4: 2, 8: 2, 16: 0}


def test_a_step_takes_the_least_captured_length_that_holds_its_drafts():
    caps = EngineCaps(8, captured_draft_lengths=(0, 1, 4, 8), draft_length_change=DraftLengthChange.CAPTURED)
    assert [least_captured(caps, longest) for longest in (0, 1, 2, 4, 5, 8)] == [0, 1, 4, 4, 8, 8]
    assert least_captured(EngineCaps(8), 3) == 3
