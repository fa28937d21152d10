"""Launches whose drafts by SGLang's own draft models cannot be planned end at start-up, with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engines.sglang.launch import SMALL
from tests.engines.sglang.test_registration import outcome

PLANNED = json.dumps({"proposer": "engine"})


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}, ["chains only", "eagle-topk 4"]),
        ({"enable_lora": True, "lora_paths": ["a=/a"], "max_lora_rank": 8}, ["adapters", "--enable-lora True"]),
        ({"speculative_adaptive": True}, ["specplug's policy", "--speculative-adaptive True"]),
        ({"speculative_algorithm": "NGRAM"}, ["cannot be planned", "--speculative-algorithm NGRAM", "STANDALONE"]),
        ({"plant": "a_drafter_that_skips"}, ["steps without drafts", "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1"]),
        ({"plant": "drafts_that_moved"}, ["SGLang has moved", "Req.fly is gone"]),
        ({"settings": '{"proposer": "engine", "verifier": "trtri"}'}, ["verifier"]),
    ],
)
def test_what_is_not_supported_is_refused(arguments, parts, baseline):
    given = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1, **arguments}
    planted = {name: given.pop(name) for name in ("plant", "settings") if name in given}
    found = baseline.call(outcome, arguments={**SMALL, **given}, **{"settings": PLANNED, **planted})
    assert found.startswith("ValueError: "), found
    assert all(part in found for part in parts), found


def refusal(engine: Any, plant: str) -> str:
    """Return what the arguments of a server with an EAGLE head meet if specplug cannot be set up."""
    import os
    from types import SimpleNamespace

    from sglang.srt.plugins.hook_registry import HookRegistry

    from specplug_sglang.config import HANDLES_ARGUMENTS
    from tests.engines.sglang import test_registration

    os.environ["SPECPLUG_CONFIG"] = PLANNED
    restore = getattr(test_registration, plant)()
    try:
        _, hook, _ = HookRegistry._hooks[HANDLES_ARGUMENTS].pop()
        hook(None, None, SimpleNamespace(speculative_algorithm="EAGLE"))
    except ValueError as error:
        return str(error)
    finally:
        restore()
    return ""


@pytest.mark.parametrize(
    ("plant", "part"), [("an_algorithm_that_moved", "Req.fly"), ("hooks_that_break", "no such hook")]
)
def test_a_server_whose_drafts_cannot_be_planned_does_not_start(baseline, plant, part):
    assert part in baseline.call(refusal, plant=plant)


def test_other_settings_leave_sglangs_drafters_alone(baseline):
    given = {**SMALL, "speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 4}
    given |= {"speculative_num_draft_tokens": 8}
    for settings in (None, '{"proposer": "ngram"}'):
        assert baseline.call(outcome, arguments=given, settings=settings) == "started"


def test_specplugs_own_algorithm_has_no_drafter_of_sglangs(baseline):
    found = baseline.call(outcome, arguments=SMALL, settings=PLANNED)
    assert "the engine's own drafter is not used here" in found
