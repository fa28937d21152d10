"""Room that SGLang leaves for what proposers take after start-up, where it measures what its caches may take.

SGLang builds its worker for drafts before it measures, so that what a proposer allocates when it is built is counted.
What it has declared beyond that is taken off here, on all ranks alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable


def install(leave_room: Callable[[int], int]) -> None:
    """Let `leave_room` return what is left of the bytes that SGLang has found."""
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    original = KVCacheConfigurator._profile_available_bytes

    @functools.wraps(original)
    def profile(self: KVCacheConfigurator, pre_model_load_memory: int) -> int:
        return leave_room(original(self, pre_model_load_memory))

    KVCacheConfigurator._profile_available_bytes = profile
