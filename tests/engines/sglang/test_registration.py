"""Anything that keeps specplug from serving ends the start, with one message that has the cause and the remedy.

SGLang swallows plug-ins' exceptions, and would report an unknown algorithm instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Engine, Raised
from tests.engines.sglang.launch import SMALL

OWN = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1}
PLANNED = '{"proposer": "engine"}'
EXTENDED = '{"proposer": "hybrid", "options": {"hybrid": {"model": "engine", "model_tokens": 3}}}'
"""Arguments of a server whose drafts are SGLang's own, and settings under which specplug plans or extends them."""


def outcome(engine: Any, arguments: dict[str, Any], settings: str | None = None, plant: tuple[str, ...] = ()) -> str:
    """Settle a server's arguments as a start does, in a process where plug-ins are loaded; return what it raises.

    Args:
        settings: SPECPLUG_CONFIG.
        plant: what is wrong with SGLang meanwhile, a function of this module and its arguments.
    """
    import os

    from sglang.srt.server_args import ServerArgs

    os.environ["SPECPLUG_CONFIG"] = settings or "{}"
    restore = globals()[plant[0]](*plant[1:]) if plant else lambda: None
    try:
        ServerArgs(**{"speculative_algorithm": "SPECPLUG", **arguments}).resolve_once()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        restore()
    return "started"


def variable(name: str, value: str) -> Callable[[], None]:
    """Let SGLang's environment hold a variable."""
    import os

    os.environ[name] = value
    return lambda: os.environ.__delitem__(name)


def registered_anew() -> Callable[[], None]:
    """Register with SGLang as if for the first time; return what undoes it."""
    from sglang.srt.speculative import spec_registry

    from specplug_sglang import entry, seams

    before = spec_registry._REGISTRY.pop("SPECPLUG")
    seams.require.cache_clear()
    entry.register()

    def restore() -> None:
        spec_registry._REGISTRY["SPECPLUG"] = before
        seams.require.cache_clear()

    return restore


def replaced(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Register where an attribute of the adapter is another one; return what undoes it."""
    default = getattr(owner, name)
    setattr(owner, name, value)
    restore = registered_anew()

    def restored() -> None:
        setattr(owner, name, default)
        restore()

    return restored


def moved(where: str) -> Callable[[], None]:
    """Let a seam of one part of the adapter be gone."""
    from specplug.seams.seam import Seam
    from specplug_sglang.seams import support

    gone = Seam(module="sglang.srt.managers.schedule_batch", name="Req.fly", where=(where,))
    return replaced(support, "_seams", (*support._seams, gone))


def old() -> Callable[[], None]:
    from specplug_sglang.seams import support

    return replaced(support, "_installed", lambda: "0.5.1")


def hooks_that_break() -> Callable[[], None]:
    from specplug_sglang import hooks

    def install() -> None:
        raise AttributeError("no such hook")

    return replaced(hooks, "install", install)


LENGTHS = {"settings": EXTENDED, "speculative_num_steps": None, "speculative_num_draft_tokens": 16}
"""Arguments and settings with which lookup continues the drafts of a drafter."""

UNSUPPORTED: list[tuple[dict[str, Any], list[str]]] = [
    ({"speculative_eagle_topk": 4, "page_size": 16}, ["trees with pages", "--page-size 1"]),
    ({"pp_size": 2}, ["pipeline parallelism", "--pp-size 2"]),
    ({"disaggregation_mode": "prefill"}, ["separate servers", "--disaggregation-mode prefill"]),
    ({"enable_dp_attention": True, "dp_size": 2, "tp_size": 2}, ["data parallelism", "--attn-dp-size 2"]),
    ({"speculative_num_draft_tokens": 0}, ["no room", "--speculative-num-draft-tokens 0"]),
    ({"speculative_eagle_topk": 0}, ["chains or trees", "--speculative-eagle-topk 0"]),
    ({"speculative_use_rejection_sampling": True}, ["distributions", "--speculative-use-rejection-sampling True"]),
    (
        {"enable_return_routed_experts": True, "speculative_eagle_topk": 4},
        ["change their places", "--enable-return-routed-experts True"],
    ),
    (
        {"speculative_accept_threshold_single": 0.5, "speculative_eagle_topk": 4},
        ["lossy acceptance is for chains", "--speculative-accept-threshold-single 0.5"],
    ),
    ({"enable_two_batch_overlap": True}, ["split", "--enable-two-batch-overlap True"]),
    ({"enable_linear_replayssm_spec": True}, ["ring of verified states", "--enable-linear-replayssm-spec True"]),
    ({"speculative_ngram_external_corpus_path": "/absent.jsonl"}, ["corpora are in a store; name it as corpora.store"]),
    ({"plant": ["hooks_that_break"]}, ["AttributeError: no such hook"]),
    ({"plant": ["variable", "SGLANG_SIMULATE_ACC_LEN", "3"]}, ["simulated acceptance", "SGLANG_SIMULATE_ACC_LEN=3.0"]),
]
"""Messages say further how to start without specplug."""

REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"settings": '{"proposer": '}, ["SPECPLUG_CONFIG"]),
    ({"settings": '{"proposer": "ngramm"}'}, ["ngramm", "Did you mean 'ngram'"]),
    ({"settings": '{"proposer": "oracle", "options": {"oracle": {"error_every": -1}}}'}, ["oracle", "error_every"]),
    ({"settings": '{"num_speculative_tokens": 5000}'}, ["num_speculative_tokens", "5000"]),
    (
        {"settings": '{"verifier": "typical"}'},
        ["SGLang verifies drafts itself", "'verifier' 'typical'", "settings without it"],
    ),
    (
        {"settings": '{"draft_ranks": "each"}', "tp_size": 2},
        ["rank 0 plans and drafts", "'draft_ranks' 'each' on several ranks", "'first'"],
    ),
    ({"settings": PLANNED}, ["the engine's own drafter is not used here"]),
    ({"plant": ["moved", "algorithm"]}, ["Req.fly", "Install a supported version: SGLang 0.5.22 to 0.5.23"]),
    ({"plant": ["moved", "worker"]}, ["Req.fly", "Install a supported version"]),
    ({"plant": ["old"]}, ["too old", "found SGLang 0.5.1", "Install a supported version"]),
]

NOT_PLANNED: list[tuple[dict[str, Any], list[str]]] = [
    ({"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}, ["chains only", "eagle-topk 4"]),
    ({"enable_lora": True, "lora_paths": ["a=/a"], "max_lora_rank": 8}, ["adapters", "--enable-lora True"]),
    ({"speculative_adaptive": True}, ["specplug's policy", "--speculative-adaptive True"]),
    ({"speculative_algorithm": "NGRAM"}, ["cannot be planned", "--speculative-algorithm NGRAM", "STANDALONE"]),
    (
        {"plant": ["variable", "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND", "1"]},
        ["steps without drafts", "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1"],
    ),
    ({"plant": ["moved", "engine drafts"]}, ["SGLang has moved", "Req.fly is gone"]),
    ({"settings": '{"proposer": "engine", "verifier": "trtri"}'}, ["verifier"]),
    ({**LENGTHS, "tp_size": 2}, ["not shared between ranks", "--tp-size 2"]),
    ({**LENGTHS, "speculative_eagle_topk": 4}, ["chains only", "eagle-topk 4"]),
    ({**LENGTHS, "speculative_num_steps": 5}, ["given twice", "--speculative-num-steps 5, and 3 by"]),
    ({**LENGTHS, "speculative_num_draft_tokens": 4}, ["nothing is left", "model_tokens"]),
    ({**LENGTHS, "settings": EXTENDED.replace('"model":', '"lookup": "bigram", "model":')}, ["lookup", "ngram"]),
    ({**LENGTHS, "plant": ["moved", "engine drafts"]}, ["SGLang has moved", "Req.fly is gone"]),
]
"""Of a server whose drafts are SGLang's own."""

HOW = ["specplug_sglang: ", "start without --speculative-algorithm SPECPLUG"]
TREES = {**OWN, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}


def settled(baseline: Engine, given: dict[str, Any]) -> str:
    """Return the `outcome` of arguments, with "settings" and a "plant" if they have them."""
    arguments = {**SMALL, **given}
    how = {name: arguments.pop(name) for name in ("plant", "settings") if name in arguments}
    return str(baseline.call(outcome, arguments=arguments, **how))


@pytest.mark.parametrize(
    ("given", "stated"),
    [
        *((given, [*HOW, *stated]) for given, stated in UNSUPPORTED),
        *REFUSED,
        *(({**OWN, "settings": PLANNED, **given}, stated) for given, stated in NOT_PLANNED),
    ],
)
def test_what_cannot_be_served_ends_the_start(given, stated, baseline):
    """Where it is SGLang that does not fit, SGLang alone would say that the algorithm is unknown."""
    found = settled(baseline, given)
    assert found.startswith("ValueError: "), found
    assert all(part in found for part in stated), found


@pytest.mark.parametrize(
    "given",
    [
        {},  # after all that was wrong with SGLang
        {**OWN, **LENGTHS},  # SGLang alone refuses a number of draft tokens without one of steps
        {**OWN, **LENGTHS, "speculative_num_steps": 3},  # and lowers it to the steps
        TREES,  # other settings leave SGLang's drafters alone
        {**TREES, "settings": '{"proposer": "ngram"}'},
    ],
)
def test_what_can_be_served_starts(given, baseline):
    assert settled(baseline, given) == "started"


def refusal(engine: Any, plant: list[str]) -> str:
    """Return what the arguments of a server with an EAGLE head meet if specplug cannot be set up."""
    import os
    from types import SimpleNamespace

    from sglang.srt.plugins.hook_registry import HookRegistry

    from specplug_sglang.config import HANDLES_ARGUMENTS

    os.environ["SPECPLUG_CONFIG"] = PLANNED
    restore = globals()[plant[0]](*plant[1:])
    try:
        _, hook, _ = HookRegistry._hooks[HANDLES_ARGUMENTS].pop()
        hook(None, SimpleNamespace(speculative_algorithm="EAGLE"))
    except ValueError as error:
        return str(error)
    finally:
        restore()
    return ""


@pytest.mark.parametrize(("plant", "stated"), [(["moved", "algorithm"], "Req.fly"), (["hooks_that_break"], "no such")])
def test_a_server_whose_drafts_cannot_be_planned_does_not_start(baseline, plant, stated):
    assert stated in baseline.call(refusal, plant=plant)


def test_lora_is_refused(engine):
    """SGLang refuses it: it allows adapters only with speculative algorithms that it knows by name."""
    adapted = engine("SPECPLUG", enable_lora=True, max_lora_rank=8, lora_target_modules=["q_proj"], name="adapted")
    with pytest.raises(Raised, match=r"LoRA is only compatible with .* not SPECPLUG"):
        adapted.running()
