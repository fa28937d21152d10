"""Plans and counts for SGLang's own draft models, and the limits of single rows.  Needs no SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specplug_sglang.scheduler.engine_drafting import EngineDrafting

from specplug.metrics import NO_SOURCE, OFF_SOURCE
from specplug.requests import wire
from specplug.settings import ResolvedSettings, Settings
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged
from specplug.types.request import RequestOptions
from specplug_sglang.scheduler import engine_drafting, planned_steps

LADDER = (0, 1, 2, 4)
PARAMS = {
    "max_new_tokens": 8,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "min_p": 0.0,
    "top_k": 1,
    "custom_params": None,
}


class Ranks:
    """One of several ranks, which hears of rank 0's plans."""

    def __init__(self, rank: int = 0, first: int | None = None) -> None:
        self.rank, self.first = rank, first

    def agree(self, number: int) -> int:
        return number if self.first is None else self.first


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the drafting of a server with `settings`."""

    def made(ranks: Any = None, **settings: Any) -> EngineDrafting:
        given = {"policy": "fixed", **settings}
        caps = EngineCaps(
            4,
            captured_draft_lengths=LADDER,
            ragged=Ragged.PADDED,
            draft_length_change=DraftLengthChange.CAPTURED,
        )
        found = ResolvedSettings(Settings(proposer="engine", num_speculative_tokens=4, **given), {})
        for name, value in {"engine_caps": caps, "engine_method": "EAGLE", "resolved": found}.items():
            module = engine_drafting if name == "engine_method" else planned_steps
            monkeypatch.setattr(module, name, lambda server_args, value=value: value)
        model = SimpleNamespace(vocab_size=8, context_len=64, model_path="m", hf_config=None)
        return EngineDrafting(None, model, slots=8, device=torch.device("cpu"), ranks=ranks or Ranks())

    return made


def request(rid: str, cap: int | None = None, *, finished: bool = False, **params: Any) -> Any:
    fields = None if cap is None else {wire.WIRE_KEY: wire.encode(RequestOptions(num_speculative_tokens=cap), (), None)}
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=[1, 2, 3],
        output_ids=[4],
        custom_logit_processor=None,
        grammar=None,
        sampling_params=SimpleNamespace(**{**PARAMS, "custom_params": fields, **params}),
        finished=lambda: finished,
    )


def step(drafting: EngineDrafting, reqs: list[Any], accepted: list[int]) -> int:
    """Run one step; return its draft length."""
    drafting.plan(reqs)
    length = drafting.length
    drafting.launched(reqs)
    drafting.verified(accepted)
    drafting.settle()
    return length


def totals(drafting: EngineDrafting) -> tuple[int, int, int, int]:
    found = drafting.counts.snapshot({}).total
    return found.target_steps, found.verified, found.accepted, found.emitted


def test_a_step_has_the_policys_length_and_counts_what_was_accepted(make):
    drafting = make()
    reqs = [request("a"), request("b")]
    assert step(drafting, reqs, [4, 1]) == 4
    assert drafting.limits is None
    assert totals(drafting) == (2, 8, 5, 7)
    step(drafting, [request("c"), request("d", 0)], [2, 0])  # d is no evidence on the drafter
    by_source = drafting.counts.snapshot({}).by_source
    assert {name: by_source[name].target_steps for name in by_source} == {"eagle": 3, NO_SOURCE: 0, OFF_SOURCE: 1}


def test_rank_0s_length_counts_and_every_rank_finds_the_limits_itself(make):
    drafting = make(Ranks(rank=1, first=2))
    assert step(drafting, [request("a"), request("b", 1)], [2, 1]) == 2
    assert drafting.limits == [4, 1]
    assert totals(drafting)[1] == 3


def test_a_request_that_ended_while_sglang_ran_ahead_is_not_counted(make):
    drafting = make()
    step(drafting, [request("a", finished=True), request("b")], [4, 0])
    assert totals(drafting) == (1, 4, 0, 1)


def test_first_tokens_of_prefills_count_as_rows_without_drafts(make):
    drafting = make()
    drafting.prefilled([request("a"), request("b"), request("c", 0)])
    assert totals(drafting) == (3, 0, 0, 3)
    assert drafting.counts.snapshot({}).by_source[OFF_SOURCE].target_steps == 1


def test_results_of_a_step_that_it_did_not_see_are_dropped(make):
    drafting = make()
    drafting.verified([1])
    drafting.plan([request("a")])
    drafting.launched([request("a")])
    drafting.verified([1, 1])
    drafting.verified([1])
    assert totals(drafting) == (0, 0, 0, 0)


def test_an_id_that_another_request_takes_over_has_that_requests_limit(make):
    drafting = make()
    step(drafting, [request("a", 1), request("b")], [1, 4])
    step(drafting, [request("a", 2), request("b")], [2, 4])
    assert drafting.limits == [2, 4]
    step(drafting, [request("b")], [4])
    assert drafting.limits is None
