"""Running request of an engine, with the facts that drafting needs besides the request itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.types.request import Request

Tokens = Sequence[int] | npt.NDArray[np.integer[Any]]

MAX_STOP_IDS = 8
"""Stop ids tracked per request on the device; a stop on any further id is detected one step late."""


Span = tuple[int, int]
"""Start and end of tokens that are not text."""


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that a worker holds.

    Attributes:
        request: the request as plug-ins see it.
        end: maximum length of prompt and output together, in tokens.
        stop_ids: the first `MAX_STOP_IDS` token ids that end it.
        barriers: spans that are not text.
        tokens: the prompt, and the output so far of a request that resumes, if the engine has them on the host.
    """

    request: Request
    end: int
    stop_ids: tuple[int, ...]
    barriers: tuple[Span, ...] = ()
    tokens: Tokens = ()
