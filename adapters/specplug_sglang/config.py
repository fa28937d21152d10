"""Settings and engine capabilities of an SGLang server, derived from its arguments.

Every process derives them from the server's arguments alone, so all processes agree.
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
"""Draft lengths that get their own attention backend and CUDA graph on a GPU, besides the maximum draft length."""


def is_requested(server_args: Any) -> bool:
    """Return whether this server's speculative algorithm is specplug."""
    name = getattr(server_args, "speculative_algorithm", None)
    return isinstance(name, str) and name.upper() == ALGORITHM


def decided(server_args: Any) -> Any:
    """Return a view of the server's arguments that includes SGLang's own decisions so far."""
    from sglang.srt.arg_groups.overrides import resolving_view

    return resolving_view(server_args)


def resolved(server_args: Any) -> ResolvedSettings:
    """Return the settings of a server with specplug enabled.

    SGLang's flag counts the root, which is verified with every draft, so the maximum draft length is one less.

    Raises:
        SettingsError: the settings are invalid.
    """
    tokens = decided(server_args).speculative_num_draft_tokens
    return _load(None if tokens is None else int(tokens) - 1, os.environ.get(CONFIG_VARIABLE, ""))


def engine_caps(server_args: Any) -> EngineCaps:
    """Return the engine's capabilities under this configuration."""
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
    """Return whether drafts are verified as trees, which ``--speculative-eagle-topk`` above 1 enables at start-up."""
    return (view.speculative_eagle_topk or 1) > 1


def draft_lengths_on(device: str, draft_length: int) -> tuple[int, ...]:
    """Return the draft lengths that a device runs at full speed, ascending; () if it runs all at full speed."""
    if device == "cpu":
        return ()
    return tuple(sorted({*(step for step in LADDER if step < draft_length), draft_length}))


@functools.lru_cache(maxsize=16)
def _load(draft_length: int | None, _environment: str) -> ResolvedSettings:
    flags = {} if draft_length is None else {"num_speculative_tokens": draft_length}
    return load_settings(flags, flags_origin=f"{LENGTH_FLAG}, which counts one more", registry=default_registry())
