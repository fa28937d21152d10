"""Requests with given answers, for tests of the n-gram proposer's response memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec
from specplug.testing.batches import RowDraft
from specplug.testing.driver import Driver
from specplug.types.request import Lifecycle
from specplug_ngram import plugin
from tests.proposers.lookup_contract import on_engine

PROMPT = [90, 91, 92, 93]
STATED = [11, 12, 13, 14, 15, 16, 17, 18]
BEGIN = STATED[:3]
MEMORY, REFERENCE = "response memory", "reference"

Make = Callable[..., Driver]


def spec(*, trees: bool = False) -> ProposerSpec:
    registry = Registry()
    registry.add(plugin, Owner("ngram", "specplug", "test"))
    return on_engine(registry.get(ProposerSpec, "ngram"), trees=trees)


def serve(
    driver: Driver,
    stated: Sequence[int] = STATED,
    *,
    name: str = "first",
    prompt: Sequence[int] = PROMPT,
    ends: Lifecycle | None = Lifecycle.FINISHED,
    visible: int | None = -1,
    **fields: Any,
) -> None:
    """Serve a request that answers `stated`, token by token, under the isolation key "us" unless fields say another."""
    driver.start(name, prompt, **{"isolation_key": "us", **fields})
    for token in stated:
        driver.step(4, order=[name])
        driver.extend(name, [token])
    driver.step(4, order=[name])
    driver.leave(name, ends, visible=visible)


def ask(driver: Driver, stated: Sequence[int] = BEGIN, *, draft_length: int = 8, **fields: Any) -> RowDraft:
    """Return what is drafted for a new request that has said so much; it leaves without a word."""
    driver.start("requested", [*PROMPT, *stated], **{"isolation_key": "us", **fields})
    draft = driver.step(draft_length, order=["requested"]).by_request()["requested"]
    driver.leave("requested", None)
    return draft


def source(driver: Driver, draft: RowDraft) -> str | None:
    return driver.proposer.sources[draft.source[0]] if draft.source else None


def remembers(driver: Driver, **fields: Any) -> bool:
    """Return whether the next request's draft after `BEGIN` is the first request's continuation."""
    draft = ask(driver, **fields)
    assert draft.token_ids in ((), tuple(STATED[3 : 3 + len(draft.token_ids)])), "nobody has said anything else"
    assert source(driver, draft) == (MEMORY if draft.token_ids else None)
    return bool(draft.token_ids)
