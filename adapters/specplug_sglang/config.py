"""Settings and engine capabilities of an SGLang server, derived from its arguments.

Every process derives them from the server's arguments alone, so all processes agree.

A server enables specplug in one of three ways.  With ``--speculative-algorithm SPECPLUG`` specplug drafts.  With an
algorithm of SGLang's, such as EAGLE, and the setting ``"proposer": "engine"``, SGLang's own draft model drafts and
specplug plans how far; with ``"proposer": "hybrid"``, whose model is the engine's, lookup continues its drafts.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from specplug.errors import SpecplugError
from specplug.operator import startup
from specplug.plugins.registry import default_registry
from specplug.settings.sources import CONFIG_VARIABLE, ResolvedSettings, after_engine, load_settings
from specplug.types.caps import Distribution, DraftLengthChange, EngineCaps, Ragged

ALGORITHM = "SPECPLUG"
LENGTH_FLAG = "--speculative-num-draft-tokens"
HANDLES_ARGUMENTS = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.handle_server_args"
"""SGLang's resolution of the arguments of its own algorithms."""

LADDER = (0, 1, 2, 4, 8, 16, 32)
"""Draft lengths that get their own attention backend and CUDA graph on a GPU, besides the maximum draft length."""

_MAX_REQUESTS = 2048
_MIN_REQUESTS = 48
"""The least that SGLang runs at a time without speculation where its cache holds them, and what with its own."""

_TABLE_SHARE = 64
"""The token table, of four bytes per request and token of context, takes at most this part of the device's memory."""


Use = Literal["", "proposers", "engine", "hybrid"]
"""How a server uses specplug: not at all; its proposers draft; or SGLang's own drafter does, alone or before lookup."""


def use_of(server_args: Any) -> Use:
    """Return how this server uses specplug.

    Raises:
        SettingsError: the settings are invalid.
    """
    name = _algorithm(server_args)
    environment = os.environ.get(CONFIG_VARIABLE, "")
    if name == ALGORITHM:
        return "proposers"
    if not name or not environment:
        return ""
    settings = _load(None, name, environment).settings
    return "engine" if settings.drafts_in_engine else "hybrid" if settings.extends_engine else ""


def drafter(server_args: Any) -> str:
    """Return the algorithm of SGLang's own drafter if specplug plans or extends its drafts, otherwise ""."""
    return _algorithm(server_args) if use_of(server_args) in ("engine", "hybrid") else ""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise specplug's errors as ValueError, as SGLang does for invalid arguments."""
    try:
        with startup.message_only():
            yield
    except SpecplugError as error:
        raise ValueError(str(error)) from error


def resolved_args(server_args: Any) -> Any:
    """Return a view of the server's arguments that includes SGLang's own decisions so far."""
    from sglang.srt.arg_groups.overrides import resolving_view

    return resolving_view(server_args)


def resolved(server_args: Any) -> ResolvedSettings:
    """Return the settings of a server with specplug enabled.

    SGLang's flag counts the root, which is verified with every draft, so the maximum draft length is one less.  The
    proposer is a lookup's if that continues the drafts of SGLang's own drafter.

    Raises:
        SettingsError: the settings are invalid.
    """
    return resolved_hybrid(server_args)[0]


def resolved_hybrid(server_args: Any) -> tuple[ResolvedSettings, int]:
    """Do as `resolved`; return also how many tokens SGLang's own drafter drafts before lookup, 0 if none."""
    tokens = resolved_args(server_args).speculative_num_draft_tokens
    environment = os.environ.get(CONFIG_VARIABLE, "")
    found = _load(None if tokens is None else int(tokens) - 1, _algorithm(server_args), environment)
    return after_engine(found, default_registry()) if use_of(server_args) == "hybrid" else (found, 0)


def default_requests(context_length: int, memory: float | None, *, has_states: bool = False) -> tuple[int, str]:
    """Return the default of ``--max-running-requests``, and what it follows from.

    SGLang lowers it further, with a warning, where its cache holds fewer requests.  The device's `memory` is in MiB,
    None if unknown.  For a model that `has_states`, recurrent ones, SGLang reserves one per request and draft token.
    """
    if has_states:
        return _MIN_REQUESTS, "memory for recurrent state; --max-running-requests raises it"
    requests = _MAX_REQUESTS
    if memory is not None:
        requests = int(memory * (1 << 20) / _TABLE_SHARE / (4 * context_length))
    if requests >= _MAX_REQUESTS:
        return _MAX_REQUESTS, "SGLang's default without speculation"
    return max(requests, _MIN_REQUESTS), "memory for token ids; --max-running-requests raises it"


def default_requests_of(server_args: Any) -> tuple[int, str]:
    """Return `default_requests` of a server."""
    from sglang.srt.arg_groups.overrides import model_config_of
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.utils.common import get_device_memory_capacity

    config = model_config_of(server_args)
    memory = get_device_memory_capacity(resolved_args(server_args).device)
    return default_requests(int(config.context_len), memory, has_states=mambaish_config(config) is not None)


def engine_caps(server_args: Any) -> EngineCaps:
    """Return the engine's capabilities under this configuration."""
    view = resolved_args(server_args)
    draft_length = int(view.speculative_num_draft_tokens) - 1
    # SGLang builds runtime states of its own drafter for single draft lengths, on a CPU too.
    ladder = () if view.device == "cpu" and use_of(server_args) == "proposers" else ladder_up_to(draft_length)
    return EngineCaps(
        max_draft_length=draft_length,
        captured_draft_lengths=ladder,
        ragged=Ragged.PADDED,
        draft_length_change=DraftLengthChange.CAPTURED if ladder else DraftLengthChange.FREE,
        trees=is_tree_mode(view),
        draft_input=Distribution.ONE_HOT,
        tensor_parallel_size=view.tp_size,
        engine_tokens=resolved_hybrid(server_args)[1],
    )


def rows_of_pool(server_args: Any) -> int:
    """Return the rows of SGLang's request pool, whose first one is padding."""
    return int(resolved_args(server_args).max_running_requests) + 1


def is_tree_mode(view: Any) -> bool:
    """Return whether drafts are verified as trees, which ``--speculative-eagle-topk`` above 1 enables at start-up."""
    return (view.speculative_eagle_topk or 1) > 1


def lossy_arguments(view: Any) -> str:
    """Return the arguments by which SGLang's own verification is lossy, as on the command line; "" if it is not.

    `view` holds the arguments: those decided at start-up, or the current ones.
    """
    names = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
    return " ".join(f"--{name.replace('_', '-')} {getattr(view, name)}" for name in names if getattr(view, name) < 1)


def verifies_greedily() -> bool:
    """Return whether SGLang's verification takes the likeliest tokens of requests that sample."""
    import sglang.srt.speculative.eagle_utils as module

    device = {name: getattr(module, f"_{name}") for name in ("is_cpu", "is_hip", "is_xpu")}
    return bool(module._verify_uses_greedy(is_all_greedy=False, use_rejection_sampling=False, **device))


def ladder_up_to(draft_length: int) -> tuple[int, ...]:
    """Return the draft lengths that a device runs at full speed, ascending, up to a server's maximum."""
    return tuple(sorted({*(step for step in LADDER if step < draft_length), draft_length}))


def _algorithm(server_args: Any) -> str:
    name = getattr(server_args, "speculative_algorithm", None)
    return name.upper() if isinstance(name, str) else ""


@functools.lru_cache(maxsize=16)
def _load(draft_length: int | None, algorithm: str, _environment: str) -> ResolvedSettings:
    """Return the settings; a draft length as in the settings is theirs, as SGLang's argument is completed by them."""
    load = functools.partial(
        load_settings,
        flags_origin=f"{LENGTH_FLAG}, which counts one more",
        registry=default_registry(),
        engine_drafts=algorithm != ALGORITHM,
    )
    found = load()
    if draft_length in (None, found.settings.num_speculative_tokens):
        return found
    return load({"num_speculative_tokens": draft_length})


def least_captured(caps: EngineCaps, longest: int) -> int:
    """Return the least draft length that the engine captured and that holds `longest` tokens."""
    return next((length for length in caps.captured_draft_lengths if length >= longest), longest)


def largest_batches(lengths: Iterable[int], longest_draft: Callable[[int], int], max_requests: int) -> dict[int, int]:
    """Return, by draft length, the most requests, up to `max_requests`, that such drafts are captured for; 0 for none.

    A step's drafts may be shorter than `longest_draft` of the number of its requests, which a policy plans, by limits
    of operators and requests, but never longer.
    """
    longest = {size: longest_draft(size) for size in range(1, max_requests + 1)}
    return {length: max((size for size in longest if length <= longest[size]), default=0) for length in lengths}


def needed_batches(captured: Sequence[int] | None, largest: int) -> list[int] | None:
    """Return the captured batch sizes up to the least that holds `largest` requests; at least one."""
    if not captured:
        return None
    sizes = sorted(captured)
    end = next((place for place, size in enumerate(sizes) if size >= largest), len(sizes))
    return sizes[: end + 1]
