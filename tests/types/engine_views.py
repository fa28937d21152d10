"""The four recorded states as the types that proposers see, and drafts as each engine takes them.

This is what adapters do, without the engines.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.request import Request
from tests.types.recorded_states import JUNK, SGLANG, TRANSFORMERS, VLLM_V1, VLLM_V2, VOCAB


def ints(values) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def drafts(rows: list[list[int]], draft_length: int) -> Draft:
    """The drafts that an engine verified, as the pipeline remembers them."""
    draft = Draft.allocate(len(rows), draft_length, sources=("ngram",))
    for row, token_ids in enumerate(rows):
        draft.set_row(row, token_ids, 0.5)
    return draft


def text(batch: EngineBatch, row: int) -> list[int]:
    return batch.tokens[batch.rows[row], : batch.lengths[row]].tolist()


def new_tokens(batch: EngineBatch, row: int) -> list[int]:
    return text(batch, row)[int(batch.lengths[row] - batch.num_new[row]) :]


def vllm_v2_batch() -> EngineBatch:
    state = {name: torch.from_numpy(array) for name, array in VLLM_V2["req_states"].items()}
    slots = torch.from_numpy(VLLM_V2["idx_mapping"])
    lengths = state["total_len"][slots]
    sampled = torch.from_numpy(VLLM_V2["num_sampled"])
    fresh = torch.isin(slots, ints(VLLM_V2["new_slots"]))
    return EngineBatch(
        slots=slots,
        generations=torch.from_numpy(VLLM_V2["generation"])[slots],
        rows=slots,
        tokens=state["all_token_ids"],
        lengths=lengths,
        num_new=torch.where(fresh, lengths, sampled),
        sampled=sampled > 0,
        room=torch.from_numpy(VLLM_V2["max_total_len"])[slots] - lengths,
        temperature=state["temperature"][slots],
        grammar=torch.from_numpy(VLLM_V2["has_grammar"])[slots],
        vocab_size=VOCAB,
        reset_slots=tuple(VLLM_V2["new_slots"]),
    )


def vllm_v1_steps() -> tuple[EngineBatch, EngineBatch, np.ndarray]:
    """The batches before and after "a" left, and the runner's own array."""
    array = VLLM_V1["token_ids_cpu"].copy()
    before = _vllm_v1_batch(array, VLLM_V1["before"], num_new=[4, 5, 4])
    frozen = before.to_host()
    for old, new in VLLM_V1["after"]["moves"].items():
        array[new] = array[old]
    for row, tokens in VLLM_V1["after"]["appended"].items():
        end = VLLM_V1["after"]["num_tokens_no_spec"][row]
        array[row, end - len(tokens) : end] = tokens
    num_new = [len(tokens) for tokens in VLLM_V1["after"]["sampled_token_ids"]]
    return frozen, _vllm_v1_batch(array, VLLM_V1["after"], num_new), array


def _vllm_v1_batch(array: np.ndarray, step: dict, num_new: list[int]) -> EngineBatch:
    slot_of = {request_id: slot for slot, request_id in enumerate(VLLM_V1["before"]["req_ids"])}  # the adapter's
    ids = step["req_ids"]
    lengths = torch.from_numpy(step["num_tokens_no_spec"])
    known = [VLLM_V1["requests"][request_id] for request_id in ids]
    most = [min(r["prompt"] + r["max_tokens"], VLLM_V1["max_model_len"]) for r in known]
    return EngineBatch(
        slots=ints([slot_of[request_id] for request_id in ids]),
        generations=torch.zeros(len(ids), dtype=torch.int64),
        rows=torch.arange(len(ids)),
        tokens=torch.from_numpy(array),
        lengths=lengths,
        num_new=ints(num_new),
        sampled=torch.tensor([bool(n) for n in num_new]),
        room=ints(most) - lengths,
        temperature=torch.tensor([r["temperature"] for r in known]),
        grammar=torch.tensor([r["grammar"] for r in known]),
        vocab_size=VOCAB,
        request_ids=tuple(ids),
        requests=tuple(
            Request(i, r["prompt"], r["max_tokens"], r["temperature"], grammar=r["grammar"])
            for i, r in zip(ids, known, strict=True)
        ),
    )


def sglang_batch() -> EngineBatch:
    pool = torch.full((SGLANG["pool_size"], SGLANG["context_length"]), JUNK, dtype=torch.int32)
    lengths, num_new = [], []
    for row, req in enumerate(SGLANG["reqs"]):
        known = req["origin_input_ids"] + req["output_ids"]
        missing = SGLANG["seq_lens_cpu"][row] + 1 - len(known)
        assert missing in (0, SGLANG["accept_lens"][row])
        start = row * SGLANG["speculative_num_draft_tokens"]
        known = known + SGLANG["accept_tokens"][start : start + missing].tolist()
        pool[req["req_pool_idx"], : len(known)] = ints(known)
        lengths.append(len(known))
        num_new.append(missing or len(known))
    ids = [req["rid"] for req in SGLANG["reqs"]]
    prompts = [len(req["origin_input_ids"]) for req in SGLANG["reqs"]]
    slots = torch.tensor([req["req_pool_idx"] for req in SGLANG["reqs"]])
    return EngineBatch(
        slots=slots,
        generations=torch.zeros(len(ids), dtype=torch.int64),
        rows=slots,
        tokens=pool,
        lengths=ints(lengths),
        num_new=ints(num_new),
        sampled=torch.ones(len(ids), dtype=torch.bool),
        room=ints([p + SGLANG["max_new_tokens"][i] for i, p in zip(ids, prompts, strict=True)]) - ints(lengths),
        temperature=torch.tensor([SGLANG["temperature"][i] for i in ids]),
        grammar=torch.zeros(len(ids), dtype=torch.bool),
        vocab_size=VOCAB,
        request_ids=tuple(ids),
    )


def sglang_tree(batch: EngineBatch, draft: Draft) -> tuple[Tensor, Tensor]:
    """Tokens [bs * n] int64, node 0 being the last real token, and the mask [bs * n * n] of what each node sees."""
    size, n = draft.batch_size, draft.draft_length + 1
    last = batch.tokens[batch.rows, batch.lengths.long() - 1]
    tokens = torch.zeros(size, n, dtype=torch.int64)
    tokens[:, 0] = last
    tokens[:, 1:] = draft.token_ids.clamp(min=0)
    mask = torch.eye(n, dtype=torch.bool).repeat(size, 1, 1)
    for row in range(size):
        for node in range(int(draft.lengths[row])):
            parent = node - 1 if draft.parents is None else int(draft.parents[row, node])
            mask[row, node + 1] |= mask[row, parent + 1]
    return tokens.reshape(-1), mask.reshape(-1)


def transformers_batch() -> EngineBatch:
    slots = torch.tensor(TRANSFORMERS["running"])
    held = {name: torch.from_numpy(TRANSFORMERS[name])[slots] for name in ("generation", "length", "remaining")}
    return EngineBatch(
        slots=slots,
        generations=held["generation"],
        rows=slots,
        tokens=torch.from_numpy(TRANSFORMERS["tokens"]),
        lengths=held["length"],
        num_new=ints(TRANSFORMERS["emitted"]),
        sampled=torch.ones(len(slots), dtype=torch.bool),
        room=held["remaining"],
        temperature=torch.from_numpy(TRANSFORMERS["temperature"])[slots],
        grammar=torch.zeros(len(slots), dtype=torch.bool),
        vocab_size=VOCAB,
    )
