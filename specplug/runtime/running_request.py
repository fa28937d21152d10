"""A request that an engine runs, with what drafting needs to know of it beside the request itself."""

from __future__ import annotations

from dataclasses import dataclass

from specplug.types.request import Request

MAX_STOP_IDS = 8
"""Stop ids that are tracked per request on the device; what a request stops on beyond them is learnt one step late."""


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that a worker holds.

    Attributes:
        request: as plug-ins see it.
        end: most tokens that prompt and output may have together.
        stop_ids: token ids that end it, the first `MAX_STOP_IDS`.
        barriers: (start, stop, kind) of spans that are no text.
    """

    request: Request
    end: int
    stop_ids: tuple[int, ...]
    barriers: tuple[tuple[int, int, str], ...] = ()
