"""Sequential replay of one configuration: `replay` runs recorded items one after another."""

from __future__ import annotations

from collections.abc import Sequence

from specplug.plugins.registry import Registry
from specplug.replay.corpora import corpora_of
from specplug.replay.engine import ReplayEngine
from specplug.replay.items import TokenItem
from specplug.replay.loop import drive, longest
from specplug.replay.setup import Mode, Progress, Result, Setup

VOCAB_SIZE = 1 << 20
"""Vocabulary size to assume if none is given; larger than any tokenizer's."""


def replay(
    items: Sequence[TokenItem],
    setup: Setup = Setup(),  # noqa: B008 - frozen
    *,
    mode: Mode = "serving",
    batch: int = 1,
    vocab_size: int = VOCAB_SIZE,
    registry: Registry | None = None,
    progress: Progress | None = None,
) -> Result:
    """Replay items one after another; each stands for `batch` identical requests.

    Args:
        mode: "cold" keeps nothing between requests and rebuilds proposer and policy for each.  "serving" keeps all
            state.
        batch: number of concurrent requests reported to the policy.
        vocab_size: vocabulary size of the tokenizer.
        registry: registry of plug-ins; by default the installed ones.
        progress: called with (items done, items) after each.

    Raises:
        SettingsError, PluginError: the setup names unknown plug-ins, or its options are wrong.
    """
    engine = ReplayEngine(
        setup,
        max_length=longest(items),
        vocab_size=vocab_size,
        repeats=batch,
        corpora=corpora_of(items, documents=setup.corpus, distractors=setup.distractors),
        registry=registry,
    )
    return drive(engine, items, cold=mode == "cold", progress=progress)
