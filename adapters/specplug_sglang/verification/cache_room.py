"""Room for what SGLang reserves behind each text.

For a step it reserves up to twice a step's nodes per request, also at the end of the context, and gives rows of the
request pool less than that beyond it.  What does not fit would be written into the row of another request, and never be
freed.
"""

from __future__ import annotations

import functools

_MARK = "_specplug_room"


def make_room() -> None:
    """Let rows of the request pool hold the whole reserve; to be called before SGLang makes its pools."""
    from sglang.srt.mem_cache import kv_cache_configurator as module
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    original = module.get_req_to_token_extra_context_len
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def extra() -> int:
        return max(int(original()), int(get_alloc_reserve_per_decode()))

    setattr(extra, _MARK, True)
    module.get_req_to_token_extra_context_len = extra
