"""External drafters: objects with the plain interface of replay harnesses, driven through the same loop.

All token ids are int; a context is [n] int32, valid during the call only:

    reset()                                       drop all state
    start(request_id, prompt_ids, documents_ids)  a request begins: an int32 array, a list of int32 arrays
    propose(request_id, context, max_tokens)      a list of ids, or (ids, probabilities), or a tree: an object with
                                                  `tokens`, `parents` (-1: the context) and `width`, what is processed
    update(request_id, new_tokens)                the target's new tokens; at first the token from prefill
    finish(request_id)
    memory()                                      bytes or None; may be missing
    preload(documents)                            serving mode, once, all documents; may be missing

An object with a true `stateless` attribute keeps nothing between requests.  An object that runs interleaved keeps its
state by request id.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from specplug.errors import PluginError, describe
from specplug.replay.items import Ids, TokenItem
from specplug.replay.loop import Offer, drive, longest
from specplug.replay.setup import Mode, Progress, Result
from specplug.replay.slots import POISON

Factory = Callable[[int, str], Any]
"""(gamma, mode) -> an external drafter, or None if it does not support the mode."""


def load_factory(path: str) -> Factory:
    """Return the factory that ``module:name`` or ``module:table[key]`` names; the working folder is searched, too.

    Raises:
        PluginError: there is no such factory.
    """
    match = re.fullmatch(r"([\w.]+):(\w+)(?:\[(.+)\])?", path)
    if match is None:
        raise PluginError.build("malformed factory", found=repr(path), expected="'module:name' or 'module:table[key]'")
    module, name, key = match.groups()
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
        if key is not None:
            found = found[key]
    except Exception as error:
        raise PluginError.build("cannot load the factory", who=path, found=describe(error)) from error
    if isinstance(found, Mapping) or not callable(found):
        raise PluginError.build(
            "no factory", who=path, found=type(found).__name__, expected="a callable, factory(gamma, mode)"
        )
    return found  # type: ignore[no-any-return]


def replay_external(
    items: Sequence[TokenItem],
    factory: Factory | str,
    *,
    gamma: int,
    mode: Mode = "serving",
    in_flight: int = 1,
    progress: Progress | None = None,
) -> Result:
    """Replay items with an external drafter.  Its exceptions propagate, so the result has no faults.

    Args:
        factory: the factory, or its path.
        gamma: most draft tokens per request and step.
        mode: as for `replay`.
        in_flight: requests that run at a time, one step each in turn; 1 runs one after another.

    Raises:
        PluginError: there is no such factory, or the object does not serve this mode.
    """
    build = load_factory(factory) if isinstance(factory, str) else factory
    proposer = build(gamma, mode)
    if proposer is None:
        raise PluginError.build("the external drafter has no such mode", who=str(factory), found=mode)
    if getattr(proposer, "stateless", False):
        in_flight = 1  # such objects hold one request, and the order does not matter to them
    engine = ExternalEngine(proposer, gamma, in_flight, longest(items))
    if mode == "serving" and hasattr(proposer, "preload"):
        proposer.preload([document for item in items for document in item.documents])
    return drive(engine, items, slots=in_flight, cold=mode == "cold", progress=progress)


class ExternalEngine:
    """Assigns slots to requests for an external drafter; tokens that the target has not emitted yet are poisoned."""

    def __init__(self, proposer: Any, gamma: int, slots: int, max_length: int) -> None:
        self._proposer, self._gamma = proposer, gamma
        self._texts = np.full((slots, max_length), POISON, dtype=np.int32)
        self._lengths = [0] * slots
        self._names: dict[int, str] = {}  # by slot, in the order of rows
        self.seconds = 0.0
        self.faults: dict[str, dict[str, int]] = {}
        self.reset()

    def reset(self) -> None:
        self._proposer.reset()

    def start(self, slot: int, request_id: str, prompt: Ids, documents: Sequence[Ids]) -> None:
        self._texts[slot].fill(POISON)
        self._names[slot], self._lengths[slot] = request_id, 0
        self._append(slot, prompt)
        began = perf_counter()
        self._proposer.start(request_id, prompt.copy(), list(documents))
        self.seconds += perf_counter() - began

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        self._append(slot, tokens)
        self._update(slot, tokens)

    def propose(self) -> list[Offer]:
        offers = []
        for slot, name in self._names.items():
            context = self._texts[slot, : self._lengths[slot]]
            began = perf_counter()
            answer = self._proposer.propose(name, context, self._gamma)
            self.seconds += perf_counter() - began
            offers.append(_offer(answer))
        return offers

    def observe(self, offers: Sequence[Offer], accepted: Sequence[int], emitted: Sequence[Sequence[int]]) -> None:
        for slot, tokens in zip(self._names, emitted, strict=True):
            self._append(slot, tokens)
            self._update(slot, tokens)

    def finish(self, slot: int) -> None:
        self._proposer.finish(self._names.pop(slot))

    def memory(self) -> int | None:
        memory = getattr(self._proposer, "memory", None)
        return memory() if callable(memory) else None

    def close(self) -> None:
        return

    def _append(self, slot: int, tokens: Sequence[int] | Ids) -> None:
        start = self._lengths[slot]
        self._lengths[slot] = stop = start + len(tokens)
        self._texts[slot, start:stop] = tokens

    def _update(self, slot: int, tokens: Sequence[int]) -> None:
        began = perf_counter()
        self._proposer.update(self._names[slot], list(tokens))
        self.seconds += perf_counter() - began


def _offer(answer: Any) -> Offer:
    if hasattr(answer, "parents"):
        return Offer(list(answer.tokens), (), list(answer.parents), int(answer.width) - len(answer.tokens))
    if isinstance(answer, tuple):
        token_ids, confidence = list(answer[0]), [float(level) for level in answer[1]]
        return Offer(token_ids, confidence if len(confidence) == len(token_ids) else ())
    return Offer(list(answer))
