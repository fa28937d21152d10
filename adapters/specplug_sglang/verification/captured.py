"""Which draft lengths and batch sizes have captured graphs, and which of the lengths a step takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from specplug.types.caps import EngineCaps


def least_captured(caps: EngineCaps, longest: int) -> int:
    """Return the least draft length that the engine captured and that holds `longest` tokens."""
    return next((length for length in caps.captured_draft_lengths if length >= longest), longest)


def largest_batches(lengths: Iterable[int], longest_draft: Callable[[int], int], most: int) -> dict[int, int]:
    """Return, by draft length, the most requests that such drafts are captured for; 0 if no plan has such drafts.

    A step's drafts may be shorter than planned, by limits of operators and requests, but never longer.

    Args:
        lengths: draft lengths.
        longest_draft: returns the longest draft that plans for so many requests have.
        most: the most requests of a step.
    """
    longest = {size: longest_draft(size) for size in range(1, most + 1)}
    return {length: max((size for size in longest if length <= longest[size]), default=0) for length in lengths}


def needed_batches(captured: Sequence[int] | None, largest: int) -> list[int] | None:
    """Return the captured batch sizes up to the least that holds `largest` requests; at least one."""
    if not captured:
        return None
    sizes = sorted(captured)
    end = next((place for place, size in enumerate(sizes) if size >= largest), len(sizes))
    return sizes[: end + 1]
