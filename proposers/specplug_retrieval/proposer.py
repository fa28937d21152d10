"""The retrieval proposer: one lookup over own text, references, remembered responses and corpora.

All candidates vote on each token, weighted by the observed hit rate of candidates with the same source and match
length, so unhelpful corpora are outvoted and no budget is split among sources.  A thread checks whether any process has
changed the store; the proposer loads the newest state between two steps.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specplug.corpus.store import STORE_FILE, Store
from specplug.corpus.view import Snapshot, View
from specplug.errors import first_line
from specplug.interfaces import PluginContext
from specplug.lookup import corpora
from specplug.lookup.corpora import Corpora, Numbers, Segment
from specplug.lookup.layout import CORPUS_SOURCE, SOURCES
from specplug.lookup.proposer import LookupProposer
from specplug.settings.model import CorporaSettings
from specplug.text.fingerprint import Fingerprint, fingerprint
from specplug.types.request import Request
from specplug.types.step import Draft, EngineBatch

Tokens = npt.NDArray[np.int32]
Tenants = Mapping[str, Sequence[Segment]]
Loaded = tuple[Corpora, tuple[str, ...]]
"""Corpora, and why others are left out."""

UNKNOWN = Fingerprint("unknown", "unknown", 2**31 - 1)
"""The fingerprint of a store that a server without a tokenizer creates: only token ids are known."""

_log = logging.getLogger("specplug")


class StoreWatcher:
    """One process's corpora.

    Except for `open`, all file access runs on threads other than that of the engine's steps.
    `context.sections["corpora"]` names the store; without one there are no corpora.
    """

    def __init__(self, context: PluginContext, corpora_of: Callable[[Tenants], Loaded]) -> None:
        self._corpora_of = corpora_of
        self._settings: CorporaSettings = context.sections.get("corpora", CorporaSettings())
        self._tokenizer = None if context.target_tokenizer is None else fingerprint(context.target_tokenizer)
        self._store: Store | None = None
        self._view: View | None = None
        self._seen: Snapshot | None = None
        self._sizes: dict[str, dict[str, int]] = {}
        self._newest: Corpora | None = None
        self._unsearchable: tuple[str, ...] = ()
        self._looking = threading.Lock()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="specplug-corpora", daemon=True)
        self.unknown_documents = self.unreadable_documents = 0
        self._reported = False
        self._failure = ""

    def open(self) -> None:
        """Open the store, creating it if there is none, and watch it; where it cannot be created, wait for it.

        Raises:
            SpecplugError: the store has a different tokenizer, or the path is not a store.
        """
        if self._watcher.ident is not None or self._settings.store is None:
            return
        self._look()
        if self._view is None:
            text = "retrieval: no corpus store at %s yet, and this process cannot write there: it waits for one"
            _log.warning(text, self._settings.store)
        elif not self._sizes:
            _log.warning("retrieval: %s", self._empty())
        self._watcher.start()

    def _open(self, path: Path) -> None:
        if self._tokenizer is None and path.exists():
            self._store = Store(path)
        else:  # another process of the server may be creating it
            self._store = Store.create(path, self._tokenizer or UNKNOWN)
        self._view = View(path, self._tokenizer)

    def changed(self, current: Corpora | None) -> Corpora | None:
        """Return the newest corpora if they are not `current`, otherwise None.  For the thread of the steps."""
        newest = self._newest
        return None if newest is current else newest

    def document(self, tenant: str, name: str, corpus: str | None) -> Tokens | None:
        """Return the tokens of a stored document, the newest if there are several.

        Returns None if there is none, or none in the readable part of a damaged store; both cases are counted.
        """
        seen = self._seen
        failed = False
        for segment in reversed(seen.tenants.get(tenant, ()) if seen else ()):
            try:
                if found := segment.find(name, corpus):
                    return segment.document(found[-1])
            except Exception:  # a damaged file can raise anything
                self._report(segment.path, name, tenant)
                failed = True
        self.unreadable_documents += failed
        self.unknown_documents += not failed
        return None

    def status(self) -> dict[str, Any]:
        """Return the state of the store for operators."""
        seen = self._seen
        store = self._settings.store
        tenants = {} if seen is None else seen.tenants
        if seen is None:
            problems = [f"{store}: no corpus store yet, or none of this tokenizer"] if store else []
        else:
            problems = [*seen.problems, *self._unsearchable]
            problems += [] if problems or self._sizes else [self._empty()]
        problems += filter(None, [self._failure])
        return {
            "store": store,
            "tenants": {name: self._sizes.get(name, {}) for name in tenants},
            "segments": sum(map(len, tenants.values())),
            "problems": problems,
            "unknown_documents": self.unknown_documents,
            "unreadable_documents": self.unreadable_documents,
        }

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def _empty(self) -> str:
        return f"{self._settings.store}: the corpus store has no corpora, so nothing is drafted from it"

    def _report(self, path: Path, name: str, tenant: str) -> None:
        """Log only the first unreadable document, because a client could request it repeatedly."""
        if not self._reported:
            self._reported = True
            _log.exception(
                "retrieval: document %r of tenant %r cannot be read in %s, so it is left out (logged once)",
                name,
                tenant,
                path,
            )

    def _watch(self) -> None:
        while not self._ended.wait(self._settings.poll_seconds):
            try:
                self._look()
                self._failure = ""
            except Exception as error:
                before = self._failure
                self._failure = f"{self._settings.store}: the corpus store cannot be read; found {first_line(error)}"
                if self._failure != before:
                    _log.exception("retrieval: the corpus store cannot be read; its previous state stays in use")

    def _look(self) -> None:
        """Prepare the newest state of the store for the next step if it changed; on an error, keep the previous one."""
        with self._looking:
            if self._view is None:
                assert self._settings.store is not None, "open() comes first"
                if _can_only_wait(path := Path(self._settings.store)):
                    return
                self._open(path)
            assert self._view is not None
            assert self._store is not None
            self._view.refresh()
            seen = self._view.snapshot
            if seen is self._seen:
                return
            sizes: dict[str, dict[str, int]] = {}
            for corpus in self._store.list():
                sizes.setdefault(corpus.tenant, {})[corpus.name] = corpus.tokens
            tenants, problems = _searchable(seen)
            newest, left_out = self._corpora_of(tenants)
            for text in left_out:
                if text not in self._unsearchable:
                    _log.warning("retrieval: %s", text)
            problems += left_out
            self._sizes = sizes
            self._seen = seen
            self._newest = newest
            self._unsearchable = problems


def _can_only_wait(path: Path) -> bool:
    """Return whether there is no store at a path, and no right to create one: a server whose volume another fills."""
    folder = next(part for part in (path, *path.parents) if part.exists())
    if os.access(folder, os.W_OK) or not os.access(folder, os.X_OK):
        return False
    return not (path / STORE_FILE).exists()


def _searchable(seen: Snapshot) -> tuple[dict[str, list[Segment]], tuple[str, ...]]:
    """Return each tenant's segments in the form that kernels search, and the reasons for omitted ones."""
    tenants: dict[str, list[Segment]] = {}
    problems = []
    for name, segments in seen.tenants.items():
        tenants[name] = []
        for it in segments:
            try:
                segment = Segment(it.text, it.places, it.starts, it.corpus_of, it.corpora)
                segment.check()
                tenants[name].append(segment)
            except Exception as error:  # a damaged file can raise anything
                problems.append(f"{it.path}: {error}")
                _log.warning("retrieval: %s cannot be searched; the rest is in use", it.path, exc_info=error)
    return tenants, tuple(problems)


SHARED = ""
"""The tenant of requests, and of corpora, without a tenant."""


class Retrieval(LookupProposer):
    """Drafts like `ngram`, and also from the corpora of the request's tenant.

    Documents that a request names become its references.  Corpora that it names are drafted from first; without names,
    all of the tenant's corpora are equal.
    """

    sources = SOURCES[: CORPUS_SOURCE + 1]

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._numbers = Numbers()
        self._loaded: Corpora | None = None
        self._slots = context.max_slots
        self._device = context.device
        self._max_bytes = context.sections.get("corpora", CorporaSettings()).device_gib * (1 << 30)
        self.watcher = StoreWatcher(context, self._corpora_of)

    def _corpora_of(self, tenants: Tenants) -> Loaded:
        left_out: tuple[str, ...] = ()
        if self._device.type != "cpu":
            tenants, left_out = corpora.fit_segments(tenants, self._max_bytes)
        return corpora.load(tenants, self._numbers, self._slots, self._device), left_out

    def warmup(self) -> None:
        """Compile or load the kernels, and open the store."""
        super().warmup()
        self.watcher.open()

    def update(self) -> None:
        """Use the corpora of a changed store."""
        changed = self.watcher.changed(self._loaded)
        if changed is not None:
            self.steps.load(changed)
            self._loaded = changed

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        """Ingest new tokens and learn from them, and fill in the drafts; use the corpora of a changed store."""
        self.update()
        super().step(batch, limits, draft)

    def may_repeat(self) -> bool:
        """Return whether the newest step's launches may be made again: not if the store has changed."""
        return self.watcher.changed(self._loaded) is None and super().may_repeat()

    def begin(self, slot: int, generation: int, owner: int, request: Request) -> int:
        """Begin a request's text in a slot; documents that it names follow its own references."""
        self.update()  # otherwise a new tenant of the store is not known yet
        tenant = request.tenant or SHARED
        options = request.options
        named = [self.watcher.document(tenant, name, corpus) for name, corpus in options.documents]
        references = [reference.token_ids for reference in request.references]
        references += [text for text in named if text is not None]
        scope = self._numbers.known_numbers(tenant, options.corpora)
        return self.steps.begin(slot, generation, owner, references, scope)

    def status(self) -> dict[str, Any]:
        """Return the status of the corpora in use; see `StoreWatcher.status`."""
        return self.watcher.status()

    def close(self) -> None:
        """Stop watching the store."""
        self.watcher.close()
        super().close()
