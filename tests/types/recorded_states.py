"""Recorded states of the four engines when a proposer is called, as plain data.

Names, shapes, dtypes and conventions are the engines' own; the sizes are cut down to a few rows, and what lies beyond a
row's length is junk on purpose.  `VOCAB` is the vocabulary size of all of them.
"""

from __future__ import annotations

import numpy as np

VOCAB = 100
JUNK = 99999  # no valid id: whoever reads beyond a length is found out


def table(rows: list[list[int]], length: int) -> np.ndarray:
    """A token table as engines allocate it: int32, every row padded with junk."""
    return np.array([row + [JUNK] * (length - len(row)) for row in rows], dtype=np.int32)


# vLLM's V2 runner: everything on the device, indexed by slot; rows of the batch reach it through idx_mapping.
# max_num_reqs = 4, max_model_len = 16, num_speculative_tokens = 3, async scheduling.
# Row 0 (slot 2) drafted 2 tokens and one padding token, all accepted; row 1 (slot 0) drafted 3, of which 1 was
# accepted; row 2 (slot 3) is a new request in the midst of its prefill.
VLLM_V2 = {
    "req_states": {
        "all_token_ids": table(
            [
                [5, 6, 7, 5, 6, 8, 9],
                [],
                [11, 12, 13, 11, 12, 13, 13, 14],
                [21, 22, 23, 24, 25, 26],
            ],
            16,
        ),
        "total_len": np.array([7, 0, 8, 6], dtype=np.int32),
        "last_sampled": np.array([[9], [0], [14], [0]], dtype=np.int64),
        "temperature": np.array([0.0, 0.0, 0.7, 0.0], dtype=np.float32),
    },
    "idx_mapping": np.array([2, 0, 3], dtype=np.int32),
    "num_sampled": np.array([4, 2, 0], dtype=np.int32),
    "num_rejected": np.array([0, 2, 0], dtype=np.int32),
    # what the adapter keeps by slot, from the pre-hook on execute_model
    "generation": np.array([3, 0, 1, 5], dtype=np.int64),
    "max_total_len": np.array([12, 0, 16, 10], dtype=np.int32),
    "has_grammar": np.array([False, False, False, True]),
    "new_slots": [3],
    # the drafts that this step verified, by row
    "drafts": [[12, 13], [7, 8, 9], []],
    "num_speculative_tokens": 3,
}

# vLLM's V1 runner: numpy on the host, batch order; rows move when a request leaves, requests keep their ids.
# Between the two steps "a" finished and condense() moved "c" into its row.  "b" is bound by a grammar, which cut its
# draft from 3 tokens to 2; "c" had its draft cut from 3 tokens to 1 by the scheduler's token budget.
VLLM_V1 = {
    "token_ids_cpu": table([[31, 32, 33, 31], [41, 42, 43, 41, 42], [51, 52, 51, 52]], 16),
    "before": {
        "req_ids": ["a", "b", "c"],
        "num_tokens_no_spec": np.array([4, 5, 4], dtype=np.int32),
        "drafts": [[32], [43, 41, 42], [51, 52, 51]],
    },
    "after": {
        "req_ids": ["c", "b"],
        "moves": {2: 0},  # condense(): row 2 moved to row 0
        "appended": {0: [51, 53], 1: [43, 44]},
        "num_tokens_no_spec": np.array([6, 7], dtype=np.int32),
        "sampled_token_ids": [[51, 53], [43, 44]],
        "scheduled_spec_decode_tokens": {"b": [43, 41], "c": [51]},
    },
    "requests": {
        "a": {"prompt": 3, "max_tokens": 2, "temperature": 0.0, "grammar": False},
        "b": {"prompt": 4, "max_tokens": 4, "temperature": 0.0, "grammar": True},
        "c": {"prompt": 2, "max_tokens": 8, "temperature": 1.0, "grammar": False},
    },
    "max_model_len": 16,
}

# SGLang under overlap: Python lists per request, and the last step's tokens flat with a stride, perhaps not yet in the
# lists.  A draft length of 4 counts the root, so 3 draft tokens.  "x" lags by the 3 tokens of the step before (2 draft
# tokens accepted and the bonus); "y" has just been prefilled and lags by nothing.
SGLANG = {
    "reqs": [
        {"rid": "x", "req_pool_idx": 5, "origin_input_ids": [61, 62, 63], "output_ids": [61]},
        {"rid": "y", "req_pool_idx": 1, "origin_input_ids": [71, 72, 73, 71], "output_ids": [72]},
    ],
    "seq_lens_cpu": [6, 4],  # committed KV: all tokens but the newest
    "accept_tokens": np.array([62, 63, 64, 0, 72, 0, 0, 0], dtype=np.int64),
    "accept_lens": np.array([3, 1], dtype=np.int32),
    "speculative_num_draft_tokens": 4,
    "verified_before": {"x": [62, 63]},  # real drafts of the step before; 4 were verified for the whole batch
    "max_new_tokens": {"x": 10, "y": 3},
    "temperature": {"x": 0.0, "y": 0.6},
    "pool_size": 8,
    "context_length": 16,
}

# The transformers engine: a table of its own on the model's device, indexed by slot.  Slot 1 emitted 3 tokens, the
# first of which was its stop token; slot 0 had no draft.
TRANSFORMERS = {
    "tokens": table([[81, 82, 83, 81], [1, 2, 3, 1, 2, 0, 7, 8], []], 12),
    "length": np.array([4, 8, 0], dtype=np.int32),
    "running": [1, 0],
    "generation": np.array([0, 2, 7], dtype=np.int64),
    "remaining": np.array([6, 3, 0], dtype=np.int32),
    "temperature": np.array([0.0, 1.0, 0.0], dtype=np.float32),
    "drafts": [[0, 7, 9], []],
    "num_accepted": [2, 0],
    "emitted": [3, 1],
    "after_stop": [2, 0],
}

# What each engine's start-up says about it.
LAUNCH = {
    "vllm_v2": {
        "num_speculative_tokens": 8,
        "graph_draft_lengths": [0, 1, 2, 4, 8],
        "varlen_graphs": False,
        "tp": 2,
        "dp": 1,
    },
    "vllm_v2_dp": {"num_speculative_tokens": 8, "graph_draft_lengths": [8], "varlen_graphs": False, "tp": 1, "dp": 2},
    "vllm_v1": {"num_speculative_tokens": 5},
    "sglang": {"speculative_num_draft_tokens": 8, "captured": [1, 2, 4, 8], "speculative_eagle_topk": 4, "tp": 1},
    "transformers": {"num_speculative_tokens": 16},
}
