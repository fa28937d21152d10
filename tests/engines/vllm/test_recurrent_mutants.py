"""Planted mistakes with recurrent states: the comparison with the model's own text sees each of them.

The first ones are those of vLLM's issues (55504: steps without drafts that read the state before accepted drafts); the
others undo what specplug fixes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engines.recurrent_requests import drawn, prompts
from tests.engines.vllm import inside
from tests.engines.vllm.referee import RUNNERS
from tests.engines.vllm.test_recurrent import DRAFT_LENGTH, HYBRIDS, VARYING, assert_right, hybrid, joining, wrong

__all__ = ["hybrid"]

GIVEN = prompts(8, DRAFT_LENGTH)
PAIRS = [(kind, name) for kind in RUNNERS for name in HYBRIDS]
FAST = [("v1", "falcon_h1")]
SPLIT = [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS]

Rows = tuple[torch.Tensor, torch.Tensor]
"""Of rows that decode: accepted tokens [B], the bonus included, and blocks [B, 1 + K] with the state after each token.

A mutant is given these, and how many tokens the rows have in this step [B].
"""


def before_the_drafts(accepted: torch.Tensor, blocks: torch.Tensor, lengths: torch.Tensor) -> Rows:
    """Start from the state before the drafts of the last step."""
    return torch.ones_like(accepted), blocks


def before_the_drafts_where_none_follow(accepted: torch.Tensor, blocks: torch.Tensor, lengths: torch.Tensor) -> Rows:
    """Do so for rows without drafts alone."""
    return torch.where(lengths == 1, 1, accepted), blocks


_LAST: dict[int, int] = {}


def after_all_drafts(accepted: torch.Tensor, blocks: torch.Tensor, lengths: torch.Tensor) -> Rows:
    """Start from the state after all drafts of the last step, accepted or not."""
    owners = blocks[:, 0].tolist()
    kept = [_LAST.get(owner, count) for owner, count in zip(owners, accepted.tolist(), strict=True)]
    _LAST.update(zip(owners, lengths.tolist(), strict=True))
    return torch.where(accepted == 1, accepted, torch.tensor(kept, dtype=accepted.dtype)), blocks


def count_of_the_next_row(accepted: torch.Tensor, blocks: torch.Tensor, lengths: torch.Tensor) -> Rows:
    return accepted.roll(1), blocks


def state_of_the_next_row(accepted: torch.Tensor, blocks: torch.Tensor, lengths: torch.Tensor) -> Rows:
    return accepted, blocks.roll(1, 0)


MUTANTS: dict[str, Callable[..., Rows]] = {
    mutant.__name__: mutant
    for mutant in (
        before_the_drafts,
        before_the_drafts_where_none_follow,
        after_all_drafts,
        count_of_the_next_row,
        state_of_the_next_row,
    )
}
FIELDS = {  # of row starts and of blocks, in the metadata of Mamba-2 and LFM2, and of Qwen3-Next
    "BaseMambaAttentionMetadataBuilder._compute_common_metadata": ("query_start_loc_d", "state_indices_tensor_d"),
    "GDNAttentionMetadataBuilder.build": ("spec_query_start_loc", "spec_state_indices_tensor"),
}


def plant(llm: Any, mutant: str | None) -> None:
    """Plant a mistake in what vLLM's layers are given, or take it back."""
    from vllm.v1.attention.backends import gdn_attn, mamba_attn

    for path, (starts, blocks) in FIELDS.items():
        owner, method = path.split(".")
        builder = getattr(mamba_attn if owner.startswith("Base") else gdn_attn, owner)
        original = getattr(getattr(builder, method), "specplug_test_original", getattr(builder, method))
        setattr(builder, method, original if mutant is None else mutated(original, MUTANTS[mutant], starts, blocks))


def mutated(original: Any, mutant: Callable[..., Rows], starts: str, blocks: str) -> Any:
    def build(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        accepted, indices, begins = found.num_accepted_tokens, getattr(found, blocks), getattr(found, starts)
        if accepted is None or begins is None:  # no row decodes
            return found
        accepted, indices = mutant(accepted, indices, begins.diff())
        return dataclasses.replace(found, **{"num_accepted_tokens": accepted, blocks: indices})

    build.specplug_test_original = original  # type: ignore[attr-defined]
    return build


@pytest.mark.parametrize(("kind", "name"), SPLIT)
def test_a_wrong_state_is_seen(kind, name, hybrid):
    served, requests = hybrid(kind, name, VARYING), joining(name, GIVEN)
    found = {}
    interpreted = kind != "v1" and name == FAST[0][1]  # two suffice there, as others run elsewhere
    for mutant in ("before_the_drafts_where_none_follow", "state_of_the_next_row") if interpreted else MUTANTS:
        served.call(plant, mutant=mutant)
        try:
            found[mutant] = wrong(served.call("inside.drive", requests=requests), name, GIVEN)
        finally:
            served.call(plant, mutant=None)
    assert min(found.values()) > 0, found
    assert_right(served, name, GIVEN)


def pad_new_requests(llm: Any, most: int) -> int:
    """Let the scheduler pad new requests with up to so many placeholder drafts; return the number before."""
    scheduler = inside.scheduler(llm)
    before, scheduler._most_placeholders = scheduler._most_placeholders, most
    return int(before)


@pytest.mark.parametrize(("kind", "name"), SPLIT)
def test_placeholders_of_a_new_prompt_of_one_token_are_seen(kind, name, hybrid):
    """vLLM pads such a prompt, if others decode, and runs it as a prefill, which keeps the last state alone."""
    served, given = hybrid(kind, name, VARYING), drawn(3, *[1] * 9)
    assert_right(served, name, given)
    assert served.call(pad_new_requests, most=DRAFT_LENGTH) == 0
    try:
        found = wrong(served.call("inside.drive", requests=joining(name, given)), name, given)
    finally:
        served.call(pad_new_requests, most=0)
    assert found > 0  # else vLLM has been fixed


def sort_rows(llm: Any, ours: bool) -> None:
    """Let V2 order rows as specplug does or as vLLM does."""
    from vllm.v1.worker.gpu import model_runner

    if not hasattr(model_runner, "specplug_test_sort"):
        model_runner.specplug_test_sort = model_runner.sort_batch_req_ids
    order = model_runner.specplug_test_sort
    model_runner.sort_batch_req_ids = order if ours else order._specplug_original


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS if pair[0] != "v1"],
)
def test_rows_as_v2_orders_them_are_seen(kind, name, hybrid):
    """Prompts of the length of a verification come before rows that decode one token."""
    served, given, caps = hybrid(kind, name, VARYING), drawn(*[DRAFT_LENGTH + 1] * 10), [0, DRAFT_LENGTH, 0]
    requests = joining(name, given, num_speculative_tokens=caps)
    assert_right(served, name, given, num_speculative_tokens=caps)
    served.call(sort_rows, ours=False)
    try:
        found = wrong(served.call("inside.drive", requests=requests), name, given)
    finally:
        served.call(sort_rows, ours=True)
    assert found > 0 or name == "qwen3_next"  # which takes rows by their drafts; else vLLM has been fixed
