"""Each of EngineBatch, Draft, Verdict and EngineCaps, built from recorded states of all four engines."""

from __future__ import annotations

import pickle

import numpy as np
import torch

from specplug.types.batch import EngineBatch
from specplug.types.caps import Distribution, DraftLengthChange, EngineCaps, Ragged
from specplug.types.draft import Draft
from specplug.types.verdict import Outcome, Verdict
from tests.types.engine_views import (
    drafts,
    ints,
    new_tokens,
    sglang_batch,
    sglang_tree,
    text,
    transformers_batch,
    vllm_v1_steps,
    vllm_v2_batch,
)
from tests.types.recorded_states import JUNK, LAUNCH, SGLANG, TRANSFORMERS, VLLM_V1, VLLM_V2, VOCAB


def check_batch(batch: EngineBatch) -> None:
    """Check what holds for every engine: the view is well formed, and all its tokens are real."""
    batch.validate()
    for row in range(batch.batch_size):
        assert text(batch, row)
        assert max(text(batch, row)) < VOCAB < JUNK


def fates(verdict: Verdict) -> dict[str, list[int]]:
    return {name: getattr(verdict, name).tolist() for name in Verdict.__slots__}


class TestVllmV2:
    """State on the device, indexed by slot."""

    def test_batch_is_a_view_of_the_slot_indexed_state(self):
        batch = vllm_v2_batch()
        check_batch(batch)
        assert batch.tokens.data_ptr() == VLLM_V2["req_states"]["all_token_ids"].ctypes.data
        assert batch.slots.data_ptr() == VLLM_V2["idx_mapping"].ctypes.data
        assert new_tokens(batch, 0) == [12, 13, 13, 14]
        assert new_tokens(batch, 1) == [8, 9]
        assert new_tokens(batch, 2) == [21, 22, 23, 24, 25, 26]

    def test_last_real_token_is_the_last_sampled_one(self):
        batch = vllm_v2_batch()
        last = VLLM_V2["req_states"]["last_sampled"][VLLM_V2["idx_mapping"], 0]
        assert [text(batch, row)[-1] for row in (0, 1)] == last[:2].tolist()

    def test_a_prefill_chunk_gets_no_draft(self):
        assert vllm_v2_batch().limits(3).tolist() == [3, 3, 0]
        assert vllm_v2_batch().limits(8).tolist() == [7, 4, 0]

    def test_accepted_padding_counts_for_nobody(self):
        sampled, rejected = (torch.from_numpy(VLLM_V2[name]) for name in ("num_sampled", "num_rejected"))
        accepted = (sampled - 1).clamp(min=0)
        outcome = Outcome(verified=accepted + rejected, accepted=accepted, emitted=sampled)
        verdict = Verdict.build(drafts(VLLM_V2["drafts"], 3).lengths, outcome)
        assert outcome.accepted.tolist() == [3, 1, 0]
        assert fates(verdict) == {
            "proposed": [2, 3, 0],
            "verified": [2, 3, 0],
            "accepted": [2, 1, 0],
            "cut_by_grammar": [0, 0, 0],
            "emitted": [4, 2, 0],
            "after_stop": [0, 0, 0],
        }
        assert verdict.tested().tolist() == [2, 2, 0]

    def test_engine_takes_valid_ids_everywhere(self):
        draft = drafts(VLLM_V2["drafts"], VLLM_V2["num_speculative_tokens"])
        last = torch.from_numpy(VLLM_V2["req_states"]["last_sampled"])[VLLM_V2["idx_mapping"], 0]
        returned = torch.where(draft.mask(), draft.token_ids, last[:, None])
        assert returned.dtype is torch.int64
        assert returned.tolist() == [[12, 13, 14], [7, 8, 9], [0, 0, 0]]
        assert draft.token_ids.tolist() == [[12, 13, -1], [7, 8, 9], [-1, -1, -1]]

    def test_caps(self):
        launch = LAUNCH["vllm_v2"]
        caps = EngineCaps(
            max_draft_length=launch["num_speculative_tokens"],
            captured_draft_lengths=tuple(launch["graph_draft_lengths"]),
            ragged=Ragged.NATIVE if launch["varlen_graphs"] else Ragged.COSTS_FULL_GRAPH,
            draft_length_change=DraftLengthChange.CAPTURED,
            draft_input=Distribution.LOGITS,
            tensor_parallel_size=launch["tp"],
        )
        assert [caps.fit_draft_length(draft_length) for draft_length in (0, 1, 3, 7, 8, 20)] == [0, 1, 2, 4, 8, 8]
        assert pickle.loads(pickle.dumps(caps)) == caps  # made in the scheduler's process, used in the workers'

    def test_caps_with_data_parallelism_fix_the_draft_length(self):
        launch = LAUNCH["vllm_v2_dp"]
        caps = EngineCaps(
            max_draft_length=launch["num_speculative_tokens"],
            captured_draft_lengths=tuple(launch["graph_draft_lengths"]),
            ragged=Ragged.COSTS_FULL_GRAPH,
            draft_length_change=DraftLengthChange.FIXED if launch["dp"] > 1 else DraftLengthChange.CAPTURED,
        )
        assert caps.fit_draft_length(3) == 3  # the step stays 8 wide, a row may draft fewer


class TestVllmV1:
    """State on the host, in batch order: a request's row moves, its slot does not."""

    def test_batch_shares_the_runners_array(self):
        _, batch, array = vllm_v1_steps()
        check_batch(batch)
        assert np.shares_memory(batch.tokens.numpy(), array)
        assert batch.lengths.data_ptr() == VLLM_V1["after"]["num_tokens_no_spec"].ctypes.data

    def test_rows_move_and_slots_stay(self):
        before, after, _ = vllm_v1_steps()
        check_batch(before)
        assert after.rows.tolist() == [0, 1]
        assert after.slots.tolist() == [2, 1]
        assert text(after, 0) == [*text(before, 2), 51, 53]
        assert text(after, 1) == [*text(before, 1), 43, 44]
        assert [new_tokens(after, row) for row in (0, 1)] == VLLM_V1["after"]["sampled_token_ids"]
        assert after.room.tolist() == [4, 1]
        assert after.limits(5).tolist() == [3, 0]

    def test_grammar_cut_and_never_verified_are_reported_apart(self):
        before, after, _ = vllm_v1_steps()
        all_drafts = drafts(VLLM_V1["before"]["drafts"], 3)
        proposed = all_drafts.lengths[[before.slots.tolist().index(slot) for slot in after.slots.tolist()]]
        step = VLLM_V1["after"]
        verified = ints([len(step["scheduled_spec_decode_tokens"].get(i, ())) for i in step["req_ids"]])
        emitted = ints([len(tokens) for tokens in step["sampled_token_ids"]])
        cut = torch.where(after.grammar, proposed - verified, 0)
        verdict = Verdict.build(proposed, Outcome(verified, (emitted - 1).clamp(min=0), emitted, cut_by_grammar=cut))
        assert fates(verdict) == {
            "proposed": [3, 3],
            "verified": [1, 2],
            "accepted": [1, 1],
            "cut_by_grammar": [0, 1],
            "emitted": [2, 2],
            "after_stop": [0, 0],
        }
        assert verdict.tested().tolist() == [1, 2]

    def test_engine_takes_lists(self):
        draft = drafts(VLLM_V1["before"]["drafts"], 3)
        pairs = zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)
        assert [row[:length] for row, length in pairs] == VLLM_V1["before"]["drafts"]

    def test_caps(self):
        caps = EngineCaps(
            max_draft_length=LAUNCH["vllm_v1"]["num_speculative_tokens"],
            draft_input=Distribution.PROBS,
        )
        assert caps.ragged is Ragged.NATIVE
        assert [caps.fit_draft_length(draft_length) for draft_length in (0, 3, 9)] == [0, 3, 5]


class TestSglang:
    """Lists per request, a flat tensor of the newest tokens, and a table that only the adapter can hold."""

    def test_batch_holds_the_tokens_that_the_lists_lack(self):
        batch = sglang_batch()
        check_batch(batch)
        assert text(batch, 0) == [61, 62, 63, 61, 62, 63, 64]
        assert new_tokens(batch, 0) == [62, 63, 64]
        assert new_tokens(batch, 1) == text(batch, 1) == [71, 72, 73, 71, 72]
        assert batch.limits(3).tolist() == [3, 1]

    def test_verdict_takes_the_bonus_off_and_forgets_padding(self):
        ids = [req["rid"] for req in SGLANG["reqs"]]
        proposed = drafts([SGLANG["verified_before"].get(i, []) for i in ids], 3).lengths
        decoded = torch.tensor([i in SGLANG["verified_before"] for i in ids])
        lens = torch.from_numpy(SGLANG["accept_lens"])
        verified = decoded.int() * (SGLANG["speculative_num_draft_tokens"] - 1)
        verdict = Verdict.build(proposed, Outcome(verified, accepted=lens - 1, emitted=lens))
        assert fates(verdict) == {
            "proposed": [2, 0],
            "verified": [2, 0],
            "accepted": [2, 0],
            "cut_by_grammar": [0, 0],
            "emitted": [3, 1],
            "after_stop": [0, 0],
        }

    def test_engine_takes_a_chain(self):
        tokens, mask = sglang_tree(sglang_batch(), drafts([[61, 62], []], 3))
        assert tokens.tolist() == [64, 61, 62, 0, 72, 0, 0, 0]
        first, second = mask.view(2, 4, 4).int().tolist()
        assert first == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]  # padding sees only itself
        assert second == torch.eye(4, dtype=torch.int32).tolist()

    def test_engine_takes_a_tree(self):
        draft = Draft.allocate(2, 4, trees=True)
        draft.set_row(0, [61, 65, 62, 66], [0.7, 0.2, 0.5, 0.1], parents=[-1, -1, 0, 1])
        tokens, mask = sglang_tree(sglang_batch(), draft)
        assert tokens.view(2, 5)[0].tolist() == [64, 61, 65, 62, 66]
        assert mask.view(2, 5, 5)[0].int().tolist() == [
            [1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 0, 1, 0, 0],
            [1, 1, 0, 1, 0],
            [1, 0, 1, 0, 1],
        ]

    def test_caps_do_not_count_the_root(self):
        launch = LAUNCH["sglang"]
        caps = EngineCaps(
            max_draft_length=launch["speculative_num_draft_tokens"] - 1,
            captured_draft_lengths=tuple(draft_length - 1 for draft_length in launch["captured"]),
            ragged=Ragged.PADDED,
            draft_length_change=DraftLengthChange.CAPTURED,
            trees=launch["speculative_eagle_topk"] > 1,
            tensor_parallel_size=launch["tp"],
        )
        assert caps.trees
        assert [caps.fit_draft_length(draft_length) for draft_length in (0, 2, 3, 6, 7)] == [0, 1, 3, 3, 7]


class TestTransformers:
    """A table of the adapter's own, everything in one process."""

    def test_batch(self):
        batch = transformers_batch()
        check_batch(batch)
        assert batch.tokens.data_ptr() == TRANSFORMERS["tokens"].ctypes.data
        assert [new_tokens(batch, row) for row in (0, 1)] == [[0, 7, 8], [81]]
        assert batch.limits(16).tolist() == [2, 5]

    def test_verdict_tells_tokens_behind_a_stop(self):
        draft = drafts(TRANSFORMERS["drafts"], 3)
        outcome = Outcome(
            verified=draft.lengths,
            accepted=ints(TRANSFORMERS["num_accepted"]),
            emitted=ints(TRANSFORMERS["emitted"]),
            after_stop=ints(TRANSFORMERS["after_stop"]),
        )
        assert fates(Verdict.build(draft.lengths, outcome)) == {
            "proposed": [3, 0],
            "verified": [0, 0],
            "accepted": [0, 0],
            "cut_by_grammar": [0, 0],
            "emitted": [3, 1],
            "after_stop": [2, 0],
        }

    def test_caps(self):
        caps = EngineCaps(
            max_draft_length=LAUNCH["transformers"]["num_speculative_tokens"],
            ragged=Ragged.LONGEST,
            draft_input=Distribution.PROBS,
        )
        assert [caps.fit_draft_length(draft_length) for draft_length in (-1, 5, 17)] == [0, 5, 16]
