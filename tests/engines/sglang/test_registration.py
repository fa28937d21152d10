"""Anything that keeps specplug from serving ends the start, with one message that has the cause and the remedy.

SGLang swallows plug-ins' exceptions, and would report an unknown algorithm instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.sglang.launch import SMALL

UNKNOWN = "Unknown speculative algorithm"


def outcome(engine: Any, arguments: dict[str, Any], settings: str | None = None, plant: str | None = None) -> str:
    """Settle a server's arguments as a start does, in a process where plug-ins are loaded; return what it raises.

    Args:
        settings: SPECPLUG_CONFIG.
        plant: what is wrong with SGLang meanwhile, a function of this module.
    """
    import os

    from sglang.srt.server_args import ServerArgs

    os.environ["SPECPLUG_CONFIG"] = settings or "{}"
    restore = globals()[plant]() if plant else lambda: None
    try:
        ServerArgs(**{"speculative_algorithm": "SPECPLUG", **arguments}).resolve_once()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        restore()
    return "started"


def simulated_acceptance() -> Callable[[], None]:
    """Let SGLang's benchmarks have said how many draft tokens are to be accepted."""
    import os

    os.environ["SGLANG_SIMULATE_ACC_LEN"] = "3"
    return lambda: os.environ.__delitem__("SGLANG_SIMULATE_ACC_LEN")


def a_drafter_that_skips() -> Callable[[], None]:
    """Let draft models see no tokens of steps without drafts."""
    import os

    os.environ["SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"] = "1"
    return lambda: os.environ.__delitem__("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND")


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


def moved(where: str) -> Callable[[], None]:
    """Let a seam of one part of the adapter be gone."""
    from specplug.seams.seam import Seam
    from specplug_sglang import seams

    support = seams.support
    default = support._seams
    support._seams = (*default, Seam(module="sglang.srt.managers.schedule_batch", name="Req.fly", where=(where,)))
    restore = registered_anew()

    def restored() -> None:
        support._seams = default
        restore()

    return restored


def an_algorithm_that_moved() -> Callable[[], None]:
    return moved("algorithm")


def a_worker_that_moved() -> Callable[[], None]:
    return moved("worker")


def drafts_that_moved() -> Callable[[], None]:
    return moved("engine drafts")


def an_old_version() -> Callable[[], None]:
    from specplug_sglang import seams

    default = seams.support._installed
    seams.support._installed = lambda: "0.5.1"
    restore = registered_anew()

    def restored() -> None:
        seams.support._installed = default
        restore()

    return restored


def hooks_that_break() -> Callable[[], None]:
    from specplug_sglang import entry

    default = entry.install_hooks

    def install() -> None:
        raise AttributeError("no such hook")

    entry.install_hooks = install
    restore = registered_anew()

    def restored() -> None:
        entry.install_hooks = default
        restore()

    return restored


@pytest.mark.parametrize(
    ("arguments", "stated"),
    [
        ({"speculative_eagle_topk": 4, "page_size": 16}, ["trees with pages", "--page-size 1"]),
        ({"pp_size": 2}, ["pipeline parallelism", "--pp-size 2"]),
        ({"disaggregation_mode": "prefill"}, ["separate servers", "--disaggregation-mode prefill"]),
        ({"enable_dp_attention": True, "dp_size": 2, "tp_size": 2}, ["data parallelism", "--attn-dp-size 2"]),
        ({"speculative_num_draft_tokens": 0}, ["no room", "--speculative-num-draft-tokens 0"]),
        ({"speculative_eagle_topk": 0}, ["chains or trees", "--speculative-eagle-topk 0"]),
        (
            {"speculative_use_rejection_sampling": True},
            ["distributions", "--speculative-use-rejection-sampling True"],
        ),
        (
            {"speculative_accept_threshold_single": 0.5, "speculative_eagle_topk": 4},
            ["lossy acceptance is for chains", "--speculative-accept-threshold-single 0.5"],
        ),
        ({"enable_two_batch_overlap": True}, ["split", "--enable-two-batch-overlap True"]),
        ({"enable_linear_replayssm_spec": True}, ["ring of verified states", "--enable-linear-replayssm-spec True"]),
    ],
)
def test_what_is_not_supported_is_refused(arguments, stated, baseline):
    found = baseline.call(outcome, arguments={**SMALL, **arguments})
    assert found.startswith("ValueError: specplug_sglang: "), found
    for part in [*stated, "start without --speculative-algorithm SPECPLUG"]:
        assert part in found


@pytest.mark.parametrize(
    ("settings", "stated"),
    [
        ('{"proposer": ', ["SPECPLUG_CONFIG"]),
        ('{"propser": "ngram"}', ["SPECPLUG_CONFIG", "propser", "proposer"]),
        ('{"proposer": "ngramm"}', ["ngramm", "Did you mean 'ngram'"]),
        ('{"policy": "fixedd"}', ["fixedd", "Did you mean 'fixed'"]),
        ('{"proposer": "oracle", "options": {"oracle": {"error_every": -1}}}', ["oracle", "error_every"]),
        ('{"num_speculative_tokens": 5000}', ["num_speculative_tokens", "5000"]),
        ('{"verifier": "typical"}', ["SGLang verifies drafts itself", "'verifier' 'typical'", "settings without it"]),
    ],
)
def test_wrong_settings_are_refused(settings, stated, baseline):
    found = baseline.call(outcome, arguments=SMALL, settings=settings)
    assert found.startswith("ValueError: "), found
    for part in stated:
        assert part in found


@pytest.mark.parametrize(
    ("plant", "stated"),
    [
        ("an_algorithm_that_moved", ["Req.fly", "Install a supported version: SGLang 0.5.22 to 0.5.23"]),
        ("a_worker_that_moved", ["Req.fly", "Install a supported version"]),
        ("an_old_version", ["too old", "found SGLang 0.5.1", "Install a supported version"]),
        ("hooks_that_break", ["AttributeError: no such hook", "start without --speculative-algorithm SPECPLUG"]),
    ],
)
def test_an_sglang_that_does_not_fit_is_refused(plant, stated, baseline):
    found = baseline.call(outcome, arguments=SMALL, plant=plant)
    assert found.startswith("ValueError: specplug_sglang: "), found
    assert UNKNOWN not in found
    for part in stated:
        assert part in found
    assert baseline.call(outcome, arguments=SMALL) == "started"
