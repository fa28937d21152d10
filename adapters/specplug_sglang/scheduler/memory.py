"""Hook on SGLang's measurement of memory for its caches that reserves memory for proposers.

SGLang builds the draft worker before it measures, so memory that a proposer allocates when it is built is already
counted.  This hook subtracts what proposers declare to allocate later, the same on all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable


def install(leave_room: Callable[[int], int]) -> None:
    """Pass SGLang's available bytes through `leave_room`, which returns what remains."""
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    original = KVCacheConfigurator._profile_available_bytes

    @functools.wraps(original)
    def profile(self: KVCacheConfigurator, pre_model_load_memory: int) -> int:
        return leave_room(original(self, pre_model_load_memory))

    KVCacheConfigurator._profile_available_bytes = profile
