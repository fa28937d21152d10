"""Room in SGLang's memory for what proposers take later, where SGLang measures what its caches may take."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.engines.sglang.launch import SGLANG_CPU

FOUND, LEFT_OUT = 3 << 30, 5

SIZING = f"""
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
from specplug_sglang.scheduler import memory

class Sized(Exception):
    pass

def config_from_budget(self, budget):
    raise Sized(budget)

KVCacheConfigurator._profile_available_bytes = lambda self, before: {FOUND}
KVCacheConfigurator.config_from_budget = config_from_budget
memory.install(lambda found: found - {LEFT_OUT})
try:
    object.__new__(KVCacheConfigurator)._resolve_memory_pool_config(1)
except Sized as sized:
    print("sized by", *sized.args)
"""


def test_declared_bytes_are_taken_off_what_the_caches_are_sized_by():
    """The engine's own function requests them, in a process with SGLang's stand-ins."""
    environment = {**os.environ, "PYTHONPATH": str(SGLANG_CPU)}
    done = subprocess.run(
        [sys.executable, "-c", SIZING], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert f"sized by {FOUND - LEFT_OUT}" in done.stdout, done.stderr
