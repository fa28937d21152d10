"""Mistakes to plant in an engine's process; see `tests.engines.suites.audit`."""

from __future__ import annotations

from typing import Any

import torch

from tests.engines.vllm.inside import runner

SHORT = 20
"""Texts up to this length are left alone: a mistake at their beginning would be too easy to find."""


def swap_rows(llm: Any) -> None:
    """V1: hand the first two rows of a verification each other's tokens."""
    sampler = runner(llm).rejection_sampler
    forward = sampler.forward

    def swapped(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        rows = output.sampled_token_ids
        output.sampled_token_ids = torch.cat([rows[:2].flip(0), rows[2:]])
        return output

    sampler.forward = swapped


def shift_slots(llm: Any) -> None:
    """V1: write keys and values of verified tokens one position too early."""
    tables = runner(llm).input_batch.block_table
    compute = tables.compute_slot_mapping

    def shifted(num_reqs: int, starts: Any, positions: Any) -> None:
        is_long = (positions.shape[0] > num_reqs) & (positions > SHORT)
        compute(num_reqs, starts, positions - is_long.to(positions.dtype))

    tables.compute_slot_mapping = shifted


def restore(llm: Any) -> None:
    """Undo what was planted."""
    own = runner(llm)
    for owner, name in ((own.rejection_sampler, "forward"), (own.input_batch.block_table, "compute_slot_mapping")):
        vars(owner).pop(name, None)
    assert llm.reset_prefix_cache()
