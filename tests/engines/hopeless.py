"""Drafts that do not pay, after which those of later requests in the same slots must not suffer."""

from __future__ import annotations

from collections.abc import Callable

from specplug.tools.demo.tasks import KINDS
from tests.engines.plain import prompts

ROWS = 4
TEXT = {"temperature": 2.0, "ignore_eos": True}
EASY = [list(prompt) for prompt in prompts()[KINDS.index("edit") :: len(KINDS)][: ROWS - 1]]
"""Prompts whose answers repeat them; served without being remembered, in slots that `file_prefixes` had."""


def file_prefixes() -> list[list[int]]:
    """Return prompts that are continued at the temperature of `TEXT` in such a way that hardly any draft is right."""
    return [list(prompt) for prompt in prompts()[KINDS.index("code") :: len(KINDS)][:ROWS]]


def assert_forgotten(share: Callable[[list[list[int]], bool], float]) -> None:
    """Hold drafts of easy requests to what they were before hopeless ones had the same slots, to a share of 0.05.

    Args:
        share: serves prompts, hopeless or not, by the policy `fixed`; returns accepted draft tokens per emitted token.
    """
    fresh = share(EASY, False)
    assert fresh > 0.5
    assert share(file_prefixes(), True) < 0.2, "they were not hopeless"
    assert share(EASY, False) >= 0.95 * fresh
