"""Recurrent kernels that roll back rejected drafts on a CPU: a general plug-in of vLLM's.

vLLM's own CPU kernels keep the state after the last draft token.  These stand-ins keep what vLLM's GPU kernels keep,
and poison what those would not write.  Effective in every process of an engine; see the entry points beside it.
"""

from __future__ import annotations


def register() -> None:
    """Replace the kernels, once per process, and let specplug serve with them."""
    from specplug_test_recurrent import kernels
    from specplug_vllm.startup import recurrent

    kernels.install()
    recurrent.can_roll_back = lambda vllm_config: True
