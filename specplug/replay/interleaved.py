"""Interleaved replay: requests run concurrently, one step each in turn, as in a server."""

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
    """Replay items with `batch` of them running; when one finishes, the next one takes its slot.

    Policies see the running batch, which shrinks while the last items end.  State that a finished request leaves is
    visible only to requests that are running then or start later, whereas `replay` runs one request after another, so
    its counts assume that all earlier requests have finished.  Arguments as for `replay`.

    Raises:
        SettingsError: the mode is "cold", in which requests do not interact.
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
