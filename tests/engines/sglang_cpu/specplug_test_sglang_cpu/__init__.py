"""Test only: lets SGLang speculate on a CPU as it does on a GPU, and lets tests look into its scheduler.

A plug-in of SGLang's own kind, effective in every process of an engine; see the entry points beside this package.
"""

from __future__ import annotations

import os
from typing import Any

SAMPLING = "SPECPLUG_TEST_SAMPLING"  # "1": verification samples at temperature > 0; else it takes the likeliest token
OVERLAP = "SPECPLUG_TEST_OVERLAP"  # "1": SGLang's own algorithms keep overlap scheduling


def register() -> None:
    """Hook into SGLang, once per process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from specplug_test_sglang_cpu import attention, calls, drafting, hicache, recurrent, recurrent_mamba2, sampling

    HookRegistry.register(f"{attention.BACKEND}.__init__", attention.built, HookType.AFTER)
    HookRegistry.register(f"{attention.BACKEND}.forward_extend", attention.forward_extend, HookType.AROUND)
    HookRegistry.register(f"{drafting.FACTORY}._create_backend", drafting.create, HookType.AROUND)
    HookRegistry.register(drafting.GATHER, drafting.gather, HookType.REPLACE)
    HookRegistry.register(calls.TARGET, calls.handle_rpc_request, HookType.AROUND)

    def replace(path: str, function: Any) -> None:
        HookRegistry.register(path, function, HookType.REPLACE)

    replace("specplug_sglang.verification.attention.verifies_drafts", lambda attention: True)  # as it does above
    hicache.install(replace)
    recurrent.install(replace)
    recurrent_mamba2.install(replace, lambda path, function: HookRegistry.register(path, function, HookType.AFTER))
    if os.environ.get(SAMPLING) == "1":
        sampling.install()
    if os.environ.get(OVERLAP) == "1":
        turns_off = "sglang.srt.arg_groups.speculative_hook._disable_overlap_schedule_for_cpu"
        HookRegistry.register(turns_off, lambda server_args: None, HookType.REPLACE)
