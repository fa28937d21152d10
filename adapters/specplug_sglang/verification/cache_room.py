"""Workaround for request-pool rows that are too short for SGLang's reserve after each text.

For a step SGLang reserves up to twice the step's nodes per request, also at the end of the context, but its rows in
the request pool extend less than that beyond the context.  The excess would be written into another request's row and
never be freed.
"""

from __future__ import annotations

import functools

_MARK = "_specplug_room"


def make_room() -> None:
    """Extend the rows of the request pool to hold the whole reserve.  Call it before SGLang creates its pools."""
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
