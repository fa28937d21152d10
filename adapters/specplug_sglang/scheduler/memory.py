"""Room in SGLang's memory: bytes for proposers beside its caches, and its request pool's rows for its reserve."""

from __future__ import annotations

import functools
from collections.abc import Callable

from specplug.seams.hook import hook


def install(leave_room: Callable[[int], int]) -> None:
    """Pass the bytes that SGLang measures for its caches through `leave_room`, which returns what remains.

    SGLang builds the draft worker before it measures, so memory that a proposer allocates when it is built is already
    counted.  This subtracts what proposers declare to allocate later, the same on all ranks.
    """
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    original = KVCacheConfigurator._profile_available_bytes

    @functools.wraps(original)
    def profile(self: KVCacheConfigurator, pre_model_load_memory: int) -> int:
        return leave_room(original(self, pre_model_load_memory))

    KVCacheConfigurator._profile_available_bytes = profile


def make_room() -> None:
    """Extend the rows of the request pool to hold the whole reserve.  Call it before SGLang creates its pools.

    For a step SGLang reserves up to twice the step's nodes per request, also at the end of the context, but its rows in
    the request pool extend less than that beyond the context.  The excess would be written into another request's row
    and never be freed.
    """
    from sglang.srt.mem_cache import kv_cache_configurator as module

    hook(module, "get_req_to_token_extra_context_len", _extra_context_len)


def _extra_context_len(original: Callable[[], int]) -> int:
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    return max(int(original()), int(get_alloc_reserve_per_decode()))
