"""Requests really in flight together: a step each in turn, as a server runs them."""

from __future__ import annotations

from collections.abc import Sequence

from specplug.errors import SettingsError
from specplug.plugins.registry import Registry
from specplug.replay.corpora import corpora_of
from specplug.replay.engine import ReplayEngine
from specplug.replay.items import TokenItem
from specplug.replay.loop import drive, longest
from specplug.replay.run import VOCAB_SIZE
from specplug.replay.setup import Mode, Progress, Result, Setup


def replay_interleaved(
    items: Sequence[TokenItem],
    setup: Setup = Setup(),  # noqa: B008 - frozen
    *,
    batch: int,
    mode: Mode = "serving",
    vocab_size: int = VOCAB_SIZE,
    registry: Registry | None = None,
    progress: Progress | None = None,
) -> Result:
    """Replay items with `batch` of them running, the next one seated when one finishes.

    Policies see the batch that runs, which is smaller while the last items end.  What one request leaves behind is
    known to those that still run when it finishes, and to no other: `replay` lets each follow the one before it, so
    its counts are those of a server whose neighbours have always finished.  Arguments as for `replay`.

    Raises:
        SettingsError: cold mode, in which requests have nothing to do with each other.
    """
    if mode == "cold" and batch > 1:
        raise SettingsError.build("cold mode runs one request at a time", found=f"{batch} in flight", expected="1")
    engine = ReplayEngine(
        setup,
        slots=batch,
        max_length=longest(items),
        vocab_size=vocab_size,
        corpora=corpora_of(items, documents=setup.corpus, distractors=setup.distractors),
        registry=registry,
    )
    return drive(engine, items, slots=batch, cold=mode == "cold", progress=progress)
