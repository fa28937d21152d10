"""Corpora that operators add to and remove from a serving engine, held by the proposers that support it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import index
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from specplug.errors import EngineError, PluginError, RequestError, SpecplugError, describe, ends_process, traceback_of
from specplug.interfaces import HoldsCorpora, Proposer

Document = npt.NDArray[np.int32]
R = TypeVar("R")

_log = logging.getLogger("specplug")


class ServedCorpora:
    """The corpora of one process, each held by all proposers that implement `HoldsCorpora`.

    Args:
        proposers: by name, the server's default first.
        max_tokens: limit on the tokens of all corpora together.
        raise_limit: the remedy to name when a corpus exceeds that limit.
        leads: whether this is the process of its server that changes the corpora which processes share.

    Attributes:
        max_tokens, raise_limit: the arguments.
        follows: whether there are shared corpora that another process changes.
    """

    def __init__(
        self, proposers: Mapping[str, Proposer], max_tokens: int, raise_limit: str, *, leads: bool = True
    ) -> None:
        self.raise_limit = raise_limit
        self._names = tuple(proposers)
        holders: dict[str, HoldsCorpora] = {
            name: own for name, own in proposers.items() if isinstance(own, HoldsCorpora)
        }
        sharing = [name for name, own in holders.items() if _shares(own)]
        # Proposers that share corpora pick up a change that one of them makes.
        self._holders = {name: own for name, own in holders.items() if name not in sharing[1:]}
        self.follows = bool(sharing) and not leads
        self._changed = {name: own for name, own in self._holders.items() if leads or name not in sharing}
        self.max_tokens = max_tokens
        self._changing = threading.Lock()

    def add(self, name: str, documents: Sequence[Document]) -> int:
        """Add a corpus to the proposers; return its size in tokens as the first of them counts it.

        Proposers of shared corpora that another process changes pick it up by themselves.

        Raises:
            SpecplugError: it was not added, and none of the proposers holds it.
        """
        self._required()
        with self._alone():
            held, size = self._sizes(self._changed), sum(map(len, documents))
            if name in held:
                raise refused("a corpus of this name is there already", repr(name), "a new name", "Remove it first")
            if sum(held.values()) + size > self.max_tokens:
                found = f"{size} tokens in addition to {sum(held.values())} held"
                raise refused("too much text", found, f"{self.max_tokens} at most", self.raise_limit)
            try:
                counts = [
                    _called(who, "add_corpus", partial(_add_to, holder, name, documents))
                    for who, holder in self._changed.items()
                ]
            except SpecplugError:
                self._take_back(name)
                raise
            return counts[0] if counts else size

    def remove(self, name: str) -> None:
        """Remove a corpus from all proposers.

        Raises:
            SpecplugError: no corpus has this name, or a proposer failed to remove it.
        """
        with self._alone():
            self._required()
            held = self._sizes(self._changed)
            if name not in held and not self.follows:
                raise refused("no corpus of this name", repr(name), f"one of {sorted(held)}")
            for who, holder in self._changed.items():
                self._remove_from(who, holder, name)

    def sizes(self) -> dict[str, int]:
        """Return the number of tokens of each corpus, by name.

        Raises:
            SpecplugError: no proposer can hold corpora, or one failed to list them.
        """
        self._required()
        return self._sizes(self._holders)

    def _sizes(self, holders: Mapping[str, HoldsCorpora]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for who, holder in holders.items():
            sizes = {**self._sizes_of(who, holder), **sizes}
        return sizes

    def _sizes_of(self, who: str, holder: HoldsCorpora) -> dict[str, int]:
        def result() -> dict[str, int]:
            return {str(name): index(size) for name, size in holder.list_corpora().items()}

        return _called(who, "list_corpora", result)

    def _required(self) -> None:
        if not self._holders:
            raise EngineError.build(
                "no proposer of this server holds corpora",
                who="corpora",
                found=", ".join(self._names),
                expected="one that implements specplug.interfaces.HoldsCorpora",
                remedy="Name one as proposer, or in extra_proposers, in SPECPLUG_CONFIG",
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse other changes while a corpus is being added; waiting would delay the engine's steps."""
        if not self._changing.acquire(blocking=False):
            raise refused("a corpus is being added", None, None, "Try again when that is done")
        try:
            yield
        finally:
            self._changing.release()

    def _remove_from(self, who: str, holder: HoldsCorpora, name: str) -> None:
        if name in self._sizes_of(who, holder):
            _called(who, "remove_corpus", partial(holder.remove_corpus, name))

    def _take_back(self, name: str) -> None:
        for who, holder in self._changed.items():
            with suppress(SpecplugError):  # logged; the first error is the one to report
                self._remove_from(who, holder, name)


def _shares(holder: HoldsCorpora) -> bool:
    return bool(getattr(holder, "shares_corpora", False))


def _add_to(holder: HoldsCorpora, name: str, documents: Sequence[Document]) -> int:
    return index(holder.add_corpus(name, documents))


def _called(who: str, call: str, action: Callable[[], R]) -> R:
    """Run a proposer's method; on failure log it and raise an error that names the proposer.

    Every exception is caught, because one that ended the thread would end the scheduler that waits for its result.
    """
    try:
        with torch.inference_mode():
            return action()
    except BaseException as error:
        if ends_process(error):
            raise
        _log.warning("%s: %s failed\n%s", who, call, traceback_of(error))
        raise PluginError.build(
            f"{call} failed",
            who=f"proposer {who!r}",
            found=describe(error),
            remedy="The server's log has the traceback; nothing else was changed",
        ) from error


def refused(what: str, found: str | None, expected: str | None, remedy: str | None = None) -> SpecplugError:
    """Build the error for an operator's request that cannot be carried out."""
    return RequestError.build(what, who="corpora", found=found, expected=expected, remedy=remedy)
