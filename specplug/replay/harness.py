"""specplug proposer and policy wrapped as an external drafter for replay harnesses; the reverse of `external`.

The configuration comes from the environment:

    SPECPLUG_REPLAY_PROPOSER    name of the proposer, else ngram
    SPECPLUG_REPLAY_POLICY      name of the policy, else the settings' default
    SPECPLUG_REPLAY_BATCH       batch size reported to the policy, else 1
    SPECPLUG_REPLAY_TREES       1: the target verifies trees
    SPECPLUG_REPLAY_REFERENCES  1: documents become the request's references; else they are ignored
    SPECPLUG_REPLAY_CORPUS      1: documents become a corpus: in serving mode all of them before the first request, by
                                `preload`; in cold mode each request's own when it starts
    SPECPLUG_REPLAY_LENGTH      longest context, else 131072
    SPECPLUG_CONFIG             everything else, options of plug-ins too
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from specplug.errors import SettingsError
from specplug.plugins.registry import Registry
from specplug.replay.corpora import DOCUMENTS, distinct
from specplug.replay.engine import ReplayEngine
from specplug.replay.items import Ids
from specplug.replay.loop import Offer
from specplug.replay.run import VOCAB_SIZE
from specplug.replay.setup import Setup

_MAX_LENGTH = 131_072


class Tree:
    """A tree draft: the parent of tokens[i] is tokens[parents[i]], or the context's last token if that is -1."""

    def __init__(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self.tokens, self.parents = list(tokens), list(parents)
        self.width = len(self.tokens)

    def accepted(self, target: Sequence[int]) -> int:
        """Return the length of the longest path that agrees with `target`."""
        return Offer(self.tokens, (), self.parents).accepted(target)


def harness_factory(gamma: int, mode: str) -> HarnessProposer:
    """Return the proposer object for a harness, configured by the environment.

    Raises:
        SettingsError, PluginError: the environment names unknown plug-ins or bad values.
    """
    return HarnessProposer.from_environment(gamma, os.environ, mode=mode)


class HarnessProposer:
    """One request at a time through the real pipeline.

    Args:
        setup: the configuration to run.
        batch: batch size reported to the policy.
        max_length: longest context.
        mode: "cold" or "serving".  With `setup.corpus`, the corpus holds a request's own documents in cold mode, and
            the documents given to `preload` in serving mode.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        batch: int = 1,
        max_length: int = _MAX_LENGTH,
        mode: str = "serving",
        registry: Registry | None = None,
    ) -> None:
        self.tree = setup.trees
        """Whether drafts may be trees, which harnesses do not limit to gamma nodes."""
        self._engine = ReplayEngine(
            setup, max_length=max_length, vocab_size=VOCAB_SIZE, repeats=batch, registry=registry
        )
        self._preloads = setup.corpus and mode != "cold"
        self._adds_own = setup.corpus and mode == "cold"
        self._is_fresh = True
        self._offer: Offer | None = None
        self._running: str | None = None

    @classmethod
    def from_environment(
        cls, gamma: int, env: Mapping[str, str], registry: Registry | None = None, *, mode: str = "serving"
    ) -> HarnessProposer:
        """Read the module's variables from `env`."""
        setup = Setup(
            proposer=env.get("SPECPLUG_REPLAY_PROPOSER") or "ngram",
            policy=env.get("SPECPLUG_REPLAY_POLICY") or None,
            gamma=gamma,
            trees=_number(env, "SPECPLUG_REPLAY_TREES", 0, 0) == 1,
            references=_number(env, "SPECPLUG_REPLAY_REFERENCES", 0, 0) == 1,
            corpus=_number(env, "SPECPLUG_REPLAY_CORPUS", 0, 0) == 1,
        )
        batch = _number(env, "SPECPLUG_REPLAY_BATCH", 1, 1)
        max_length = _number(env, "SPECPLUG_REPLAY_LENGTH", _MAX_LENGTH, 2)
        return cls(setup, batch=batch, max_length=max_length, mode=mode, registry=registry)

    def reset(self) -> None:
        """Drop all state."""
        if not self._is_fresh:
            self._engine.reset()
        self._is_fresh, self._running = True, None

    def preload(self, documents: Sequence[Ids]) -> None:
        """Add the documents of all requests as a corpus, if the setup has one; call once, after `reset`."""
        if self._preloads:
            self._is_fresh = False
            self._add(documents)

    def start(self, request_id: str, prompt: Ids, documents: Sequence[Ids]) -> None:
        """Begin a request, in cold mode after a `reset`."""
        if self._running is not None:
            raise ValueError(f"{self._running!r} still runs; finish it before {request_id!r} starts")
        self._is_fresh, self._running, self._offer = False, request_id, None
        if self._adds_own:
            self._add(documents)
        self._engine.start(0, request_id, prompt, documents)

    def update(self, request_id: str, new_tokens: Sequence[int]) -> None:
        """Append the target's tokens: at first those of prefill, then the outcome of the newest draft."""
        offer, self._offer = self._offer, None
        if offer is None:
            self._engine.extend(0, new_tokens)
        else:
            self._engine.observe([offer], [offer.accepted(new_tokens)], [new_tokens])

    def propose(self, request_id: str, context: Ids, max_tokens: int) -> list[int] | Tree:
        """Return at most `max_tokens` draft tokens; `context` equals the tokens from `start` and `update`."""
        (offer,) = self._engine.propose(max_tokens)
        self._offer = offer
        if offer.parents is not None:
            tree: Tree = _tree_type()(offer.token_ids, offer.parents)
            return tree
        return list(offer.token_ids)

    def finish(self, request_id: str) -> None:
        """End a request."""
        self._engine.finish(0)
        self._running = None

    def memory(self) -> int | None:
        """Return the bytes that the proposer reports to hold."""
        return self._engine.memory()

    def _add(self, documents: Sequence[Ids]) -> None:
        texts = distinct(documents)
        if texts:
            self._engine.add_corpora({DOCUMENTS: texts})


def _tree_type() -> Any:
    """Return the running harness's own tree class, which it may require, or else this module's."""
    return getattr(sys.modules.get("replay"), "Tree", Tree)


def _number(env: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        raise SettingsError.build("bad value", who=name, found=repr(text), expected=f"a whole number from {least}")
    return int(text)
