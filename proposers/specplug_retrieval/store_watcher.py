"""StoreWatcher: the corpora of a store for one proposer, kept up to date and changed on request.

A thread checks whether any process has changed the store; the proposer loads the newest state between two steps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.corpus.building import Builder
from specplug.corpus.documents import Document
from specplug.corpus.store import Store
from specplug.corpus.view import LiveSegment, Snapshot, View
from specplug.corpus.writing import yield_gil
from specplug.interfaces import PluginContext
from specplug.match.cpu.corpus_index import CorpusIndex, IndexSegment
from specplug.settings.model import CorporaSettings
from specplug.text.fingerprint import Fingerprint, fingerprint
from specplug.text.retokenized import PrefixRetokenizer
from specplug_retrieval.temporary import TemporaryFolder

Tokens = npt.NDArray[np.int32]
Tenants = Mapping[str, Sequence[IndexSegment]]

SEGMENT_TOKENS = 1 << 22
"""Most tokens of a segment that a server writes: freeing a large array holds the GIL, 4 ms for 16 MB."""

UNKNOWN = Fingerprint("unknown", "unknown", 2**31 - 1)
"""The fingerprint of a store that a server without a tokenizer creates: only token ids are known."""

_log = logging.getLogger("specplug")


class StoreWatcher:
    """One process's corpora.

    Except for `open`, all file access runs on threads other than that of the engine's steps.

    Args:
        context: `context.sections["corpora"]` names the store; without one, added corpora are kept in a temporary
            folder.
        corpus_index_of: builds the corpus index from all segments, by tenant.
    """

    def __init__(self, context: PluginContext, corpus_index_of: Callable[[Tenants], CorpusIndex]) -> None:
        self._corpus_index_of = corpus_index_of
        self._settings: CorporaSettings = context.sections.get("corpora", CorporaSettings())
        self._tokenizer = _target_fingerprint(context)
        tokenizer = context.target_tokenizer
        self._prefixes = None if tokenizer is None else PrefixRetokenizer(tokenizer)
        self._own: TemporaryFolder | None = None
        self._store: Store | None = None
        self._view: View | None = None
        self._seen: Snapshot | None = None
        self._sizes: dict[str, dict[str, int]] = {}
        self._newest: CorpusIndex | None = None
        self._unsearchable: tuple[str, ...] = ()
        self._looking, self._ended = threading.Lock(), threading.Event()
        self._removing: set[tuple[str, str]] = set()
        self._watcher = threading.Thread(target=self._watch, name="specplug-corpora", daemon=True)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="specplug-corpora")
        self.unknown_documents = self.unreadable_documents = 0
        self._reported = False

    @property
    def is_shared(self) -> bool:
        """True if other processes may also have the store open."""
        return self._settings.store is not None

    def open(self) -> None:
        """Open the store and watch it.

        Raises:
            SpecplugError: the store has a different tokenizer, or the path is not a store.
        """
        if self._view is not None:
            return
        if self._settings.store is None:
            self._own = TemporaryFolder("specplug-corpora-")
        path = self._own.path if self._own is not None else Path(self._settings.store or "")
        if self._tokenizer is None and path.exists():
            self._store = Store.open(path, segment_tokens=SEGMENT_TOKENS)
        else:  # another process of the server may be creating it
            self._store = Store.create(path, self._tokenizer or UNKNOWN, segment_tokens=SEGMENT_TOKENS)
        self._view = View(path, self._tokenizer)
        self._look()
        _warm_up()
        if self._own is None:
            self._watcher.start()

    def changed(self, current: CorpusIndex) -> CorpusIndex | None:
        """Return the newest corpus index if it is not `current`, otherwise None.  For the thread of the steps."""
        newest = self._newest
        return None if newest is current else newest

    def document(self, tenant: str, name: str, corpus: str | None) -> Tokens | None:
        """Return the tokens of a stored document, the newest if there are several.

        Returns None if there is none, or none in the readable part of a damaged store; both cases are counted.
        """
        seen, failed = self._seen, False
        for live in reversed(seen.tenants.get(tenant, ()) if seen else ()):
            try:
                found = _found(live, name, corpus)
            except Exception:  # a damaged file can raise anything
                self._report(live, name, tenant)
                failed = True
            else:
                if found is not None:
                    return found
        self.unreadable_documents += failed
        self.unknown_documents += not failed
        return None

    def add(self, tenant: str, name: str, documents: Sequence[Tokens]) -> int:
        """Add a corpus to the store, on the caller's thread; return its number of tokens."""
        if (tenant, name) in self._removing:
            self.settle()
        named = (self._document(str(number), ids) for number, ids in enumerate(documents))
        added = self._opened().add(name, named, tenant=tenant, max_tokens=self._settings.max_tokens)
        self._look()
        self._worker.submit(self._merge)
        return added.tokens

    def remove(self, tenant: str, name: str) -> None:
        """Stop drafting from a corpus, and remove it from the store on another thread, as this one runs steps."""
        self._removing.add((tenant, name))
        self._worker.submit(self._remove, tenant, name)

    def sizes(self, tenant: str) -> dict[str, int]:
        """Return the number of tokens of each corpus of a tenant."""
        sizes = self._sizes.get(tenant, {})
        return {name: tokens for name, tokens in sizes.items() if (tenant, name) not in self._removing}

    def status(self) -> dict[str, Any]:
        """Return the state of the store for operators."""
        seen = self._seen
        tenants = {} if seen is None else seen.tenants
        return {
            "store": self._settings.store,
            "tenants": {name: self.sizes(name) for name in tenants},
            "segments": sum(map(len, tenants.values())),
            "problems": [*(() if seen is None else seen.problems), *self._unsearchable],
            "unknown_documents": self.unknown_documents,
            "unreadable_documents": self.unreadable_documents,
        }

    def settle(self) -> None:
        """Wait until the background jobs are done."""
        self._worker.submit(lambda: None).result()

    def close(self) -> None:
        """Stop watching, and delete corpora in a temporary folder."""
        self._ended.set()
        self._worker.shutdown(cancel_futures=False)
        if self._watcher.is_alive():
            self._watcher.join()
        if self._own is not None:
            self._own.close()

    def _report(self, live: LiveSegment, name: str, tenant: str) -> None:
        """Log only the first unreadable document, because a client could request it repeatedly."""
        if not self._reported:
            self._reported = True
            _log.exception(
                "retrieval: document %r of tenant %r cannot be read in %s, so it is left out (logged once)",
                name,
                tenant,
                live.segment.path,
            )

    def _document(self, name: str, ids: Tokens) -> Document:
        if self._prefixes is None:
            return Document(name, ids)
        yield_gil()  # reading takes half a millisecond, mostly with the GIL held
        return Document(name, ids, self._prefixes.of(ids))

    def _opened(self) -> Store:
        assert self._store is not None, "open() comes first"
        return self._store

    def _remove(self, tenant: str, name: str) -> None:
        try:
            self._opened().remove(name, tenant=tenant)
        except Exception:
            _log.exception("retrieval: corpus %r was not removed; it stays in use", name)
        self._look_again()
        self._removing.discard((tenant, name))
        self._merge()

    def _merge(self) -> None:
        try:
            self._opened().merge()
        except Exception:
            _log.exception("retrieval: the corpus store could not be merged; nothing is lost")
        self._look_again()

    def _watch(self) -> None:
        while not self._ended.wait(self._settings.poll_seconds):
            self._look_again()

    def _look_again(self) -> None:
        try:
            self._look()
        except Exception:
            _log.exception("retrieval: the corpus store cannot be read; its previous state stays in use")

    def _look(self) -> None:
        """Prepare the newest state of the store for the next step if it changed; on an error, keep the previous one."""
        with self._looking:
            if self._view is None:
                return
            self._view.refresh()
            seen = self._view.snapshot
            if seen is self._seen:
                return
            sizes: dict[str, dict[str, int]] = {}
            for corpus in self._opened().list():
                sizes.setdefault(corpus.tenant, {})[corpus.name] = corpus.tokens
            tenants, problems = _searchable(seen)
            newest = self._corpus_index_of(tenants)
            self._sizes, self._seen, self._newest, self._unsearchable = sizes, seen, newest, problems


def _searchable(seen: Snapshot) -> tuple[dict[str, list[IndexSegment]], tuple[str, ...]]:
    """Return each tenant's segments in the form that kernels search, and the reasons for omitted ones."""
    tenants: dict[str, list[IndexSegment]] = {}
    problems = []
    for name, segments in seen.tenants.items():
        tenants[name] = []
        for live in segments:
            try:
                tenants[name].append(_searched(live))
            except Exception as error:  # a damaged file can raise anything
                problems.append(f"{live.segment.path}: {error}")
                _log.warning("retrieval: %s cannot be searched; the rest is in use", live.segment.path, exc_info=error)
    return tenants, tuple(problems)


def _found(live: LiveSegment, name: str, corpus: str | None) -> Tokens | None:
    for found in reversed(live.segment.find(name, corpus)):
        if live.dead is None or not live.dead[found]:
            return live.segment.document(found)
    return None


def _searched(live: LiveSegment) -> IndexSegment:
    """Return a segment in the form that kernels search."""
    it = live.segment
    return IndexSegment(it.text, it.places, it.starts, it.corpus_of, it.corpora, live.dead)


def _warm_up() -> None:
    """Compile or load the sorting kernels now, because doing so while serving would delay steps."""
    builder = Builder()
    builder.append("toy", b"toy", [np.array([1, 2, 1, 2], np.int32)])
    builder.sections()


def _target_fingerprint(context: PluginContext) -> Fingerprint | None:
    return None if context.target_tokenizer is None else fingerprint(context.target_tokenizer)
