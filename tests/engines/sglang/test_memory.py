"""Room in SGLang's memory for what proposers take later, where SGLang measures what its caches may take."""

from __future__ import annotations

import pytest
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

from specplug_sglang import memory

GIB = 1 << 30


def test_declared_bytes_are_taken_off_what_the_caches_are_sized_by(monkeypatch: pytest.MonkeyPatch):
    """Through the engine's own function that asks for them."""
    monkeypatch.setattr(KVCacheConfigurator, "_profile_available_bytes", lambda _self, before: before * GIB)
    budgets = []

    def config_from_budget(_self: KVCacheConfigurator, budget: int) -> None:
        budgets.append(budget)
        raise StopIteration

    monkeypatch.setattr(KVCacheConfigurator, "config_from_budget", config_from_budget)
    memory.install(lambda found: found - 5)
    with pytest.raises(StopIteration):
        object.__new__(KVCacheConfigurator)._resolve_memory_pool_config(3)
    assert budgets == [3 * GIB - 5]
