"""Whether an SGLang server asked for specplug, with which settings, and what its engine can do.

Every process answers these from the server's arguments alone, so all of them agree.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from specplug.plugins.registry import default_registry
from specplug.settings.sources import CONFIG_VARIABLE, ResolvedSettings, load_settings
from specplug.types.caps import Distribution, DraftLengthChange, EngineCaps, Feedback, PlanSite, Ragged

ALGORITHM = "SPECPLUG"
LENGTH_FLAG = "--speculative-num-draft-tokens"

LADDER = (0, 1, 2, 4, 8, 16, 32)
"""Widths that get an attention backend of their own on a GPU, and a captured graph; beside them the widest."""


def is_requested(server_args: Any) -> bool:
    """Whether this server's speculative algorithm is specplug."""
    name = getattr(server_args, "speculative_algorithm", None)
    return isinstance(name, str) and name.upper() == ALGORITHM


def decided(server_args: Any) -> Any:
    """Return a view of the server's arguments with what SGLang has decided so far."""
    from sglang.srt.arg_groups.overrides import resolving_view

    return resolving_view(server_args)


def resolved(server_args: Any) -> ResolvedSettings:
    """Return the settings of a server that asked for specplug.

    SGLang's flag counts the token that is verified with every draft, so the widest draft is one less.

    Raises:
        SettingsError: the settings are wrong.
    """
    tokens = decided(server_args).speculative_num_draft_tokens
    return _load(None if tokens is None else int(tokens) - 1, os.environ.get(CONFIG_VARIABLE, ""))


def engine_caps(server_args: Any) -> EngineCaps:
    """Return what the engine can do, as it is configured."""
    view = decided(server_args)
    draft_length = int(view.speculative_num_draft_tokens) - 1
    ladder = draft_lengths_on(view.device, draft_length)
    return EngineCaps(
        max_draft_length=draft_length,
        captured_draft_lengths=ladder,
        ragged=Ragged.PADDED,
        draft_length_change=DraftLengthChange.CAPTURED if ladder else DraftLengthChange.FREE,
        trees=is_tree_mode(view),
        draft_input=Distribution.ONE_HOT,
        decision_lag=0,
        plan_site=PlanSite.WORKER,
        feedback=Feedback.SCHEDULER,
        tensor_parallel_size=view.tp_size,
        data_parallel_size=view.dp_size,
    )


def is_tree_mode(view: Any) -> bool:
    """Whether drafts are verified as trees: a choice at start-up, by ``--speculative-eagle-topk`` above 1."""
    return (view.speculative_eagle_topk or 1) > 1


def draft_lengths_on(device: str, draft_length: int) -> tuple[int, ...]:
    """Return the widths that a device serves at full speed, ascending; empty where every width does."""
    if device == "cpu":
        return ()
    return tuple(sorted({*(step for step in LADDER if step < draft_length), draft_length}))


@functools.lru_cache(maxsize=16)
def _load(draft_length: int | None, _environment: str) -> ResolvedSettings:
    flags = {} if draft_length is None else {"num_speculative_tokens": draft_length}
    return load_settings(flags, flags_origin=f"{LENGTH_FLAG}, which counts one more", registry=default_registry())
