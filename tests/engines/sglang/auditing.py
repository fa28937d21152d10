"""Mistakes to plant in a scheduler's process; see `tests.engines.suites.audit`."""

from __future__ import annotations

from typing import Any

import torch

from tests.engines.sglang import trees


def swap_rows(scheduler: Any) -> None:
    """Verify the drafts of the first two rows by each other's logits."""
    from specplug_sglang.verification import acceptance

    verify = acceptance.verify

    def swapped(runner: Any, batch: Any, logits: Any, mask: Any) -> Any:
        if len(batch.reqs) > 1:
            rows = logits.next_token_logits.view(len(batch.reqs), -1, logits.next_token_logits.shape[-1])
            logits.next_token_logits = torch.cat([rows[:2].flip(0), rows[2:]]).flatten(0, 1)
        return verify(runner, batch, logits, mask)

    trees.put(acceptance, "verify", swapped)


def shift_slots(scheduler: Any) -> None:
    """Write keys and values of verified tokens to their neighbours' positions."""
    from specplug_sglang.scheduler import worker

    prepare = worker.prepare

    def shifted(batch: Any, *nodes: Any) -> None:
        prepare(batch, *nodes)
        batch.out_cache_loc = batch.out_cache_loc.roll(1)

    trees.put(worker, "prepare", shifted)
