"""Holding the flag that keeps steps in a stream away from what all slots share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specplug.match.cpu.locks import release, take


@contextmanager
def held(lookup: Any) -> Iterator[None]:
    """Hold a lookup's flag."""
    take(lookup.responses.flag)
    try:
        yield
    finally:
        release(lookup.responses.flag)
