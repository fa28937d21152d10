"""The corpus store as a proposer sees it: what is there now, and who changes it.

A thread looks whether the store was changed, by whomever; the proposer takes what it found between two steps.
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
from specplug.corpus.writing import breathe
from specplug.interfaces import PluginContext
from specplug.match.cpu.corpus_index import CorpusIndex, IndexSegment
from specplug.settings.model import CorporaSettings
from specplug.text.fingerprint import Fingerprint, fingerprint
from specplug.text.retokenized import PrefixRetokenizer
from specplug_retrieval.temporary import TemporaryFolder

Tokens = npt.NDArray[np.int32]
Tenants = Mapping[str, Sequence[IndexSegment]]

SEGMENT_TOKENS = 1 << 22
"""Of segments that a server writes: the system takes large arrays back with the interpreter held, 16 MB in 4 ms."""

UNKNOWN = Fingerprint("unknown", "unknown", 2**31 - 1)
"""Of a store that a server without a tokenizer makes: ids are all that is known."""

_log = logging.getLogger("specplug")


class StoreWatcher:
    """One process's corpora.

    All that reads or writes files runs on other threads than the engine's steps, but for `open`.

    Args:
        context: `context.sections["corpora"]` names the store; without one, corpora that are added lie in a temporary
            folder.
        corpus_index_of: makes of all segments, by tenant, what is drafted from.
    """

    def __init__(self, context: PluginContext, corpus_index_of: Callable[[Tenants], CorpusIndex]) -> None:
        self._corpus_index_of = corpus_index_of
        self._settings: CorporaSettings = context.sections.get("corpora", CorporaSettings())
        self._tokenizer = _target_fingerprint(context)
        tokenizer = context.target.tokenizer
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
        """Whether other processes may have the store open too."""
        return self._settings.store is not None

    def open(self) -> None:
        """Open the store, and watch it.

        Raises:
            SpecplugError: it is another tokenizer's, or no store.
        """
        if self._view is not None:
            return
        if self._settings.store is None:
            self._own = TemporaryFolder("specplug-corpora-")
        path = self._own.path if self._own is not None else Path(self._settings.store or "").expanduser()
        if self._tokenizer is None and path.exists():
            self._store = Store.open(path, segment_tokens=SEGMENT_TOKENS)
        else:  # another process of the server may be making it just now
            self._store = Store.create(path, self._tokenizer or UNKNOWN, segment_tokens=SEGMENT_TOKENS)
        self._view = View(path, self._tokenizer)
        self._look()
        _warm_up()
        if self._own is None:
            self._watcher.start()

    def changed(self, current: CorpusIndex) -> CorpusIndex | None:
        """Return what to draft from if it is not the `current` shelf, else None.  For the thread of the steps."""
        newest = self._newest
        return None if newest is current else newest

    def document(self, tenant: str, name: str, corpus: str | None) -> Tokens | None:
        """Return a stored document's tokens, of several the newest's.

        None where there is none, or none in what can be read of a damaged store: both are counted.
        """
        seen, failed = self._seen, False
        for live in reversed(seen.tenants.get(tenant, ()) if seen else ()):
            try:
                found = _found(live, name, corpus)
            except Exception:  # whatever a damaged file leads to
                self._report(live, name, tenant)
                failed = True
            else:
                if found is not None:
                    return found
        self.unreadable_documents += failed
        self.unknown_documents += not failed
        return None

    def add(self, tenant: str, name: str, documents: Sequence[Tokens]) -> int:
        """Add a corpus to the store, on the thread that asks; return its tokens."""
        if (tenant, name) in self._removing:
            self.settle()
        named = (self._document(str(number), ids) for number, ids in enumerate(documents))
        added = self._opened().add(name, named, tenant=tenant, max_tokens=self._settings.max_tokens)
        self._look()
        self._worker.submit(self._merge)
        return added.tokens

    def remove(self, tenant: str, name: str) -> None:
        """Draft no more from a corpus, and remove it from the store, on another thread: this one serves."""
        self._removing.add((tenant, name))
        self._worker.submit(self._remove, tenant, name)

    def sizes(self, tenant: str) -> dict[str, int]:
        """Return how many tokens each corpus of a tenant has."""
        sizes = self._sizes.get(tenant, {})
        return {name: tokens for name, tokens in sizes.items() if (tenant, name) not in self._removing}

    def status(self) -> dict[str, Any]:
        """Return what there is, for operators."""
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
        """Wait until what was begun in the background is done."""
        self._worker.submit(lambda: None).result()

    def close(self) -> None:
        """Stop watching; forget corpora that lie in a temporary folder."""
        self._ended.set()
        self._worker.shutdown(cancel_futures=False)
        if self._watcher.is_alive():
            self._watcher.join()
        if self._own is not None:
            self._own.close()

    def _report(self, live: LiveSegment, name: str, tenant: str) -> None:
        """Log the first document that cannot be read; a client could ask for it again and again."""
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
        breathe()  # reading takes half a millisecond, much of it with the interpreter held
        return Document(name, ids, self._prefixes.of(ids))

    def _opened(self) -> Store:
        assert self._store is not None, "open() comes first"
        return self._store

    def _remove(self, tenant: str, name: str) -> None:
        try:
            self._opened().remove(name, tenant=tenant)
        except Exception:
            _log.exception("retrieval: corpus %r was not removed; it serves on", name)
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
            _log.exception("retrieval: the corpus store cannot be looked at; what was there before serves on")

    def _look(self) -> None:
        """Have the newest state of the store ready for the next step, if it changed: all of it, or what was before."""
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
    """Return each tenant's segments as kernels search them, and why some are left out."""
    tenants: dict[str, list[IndexSegment]] = {}
    problems = []
    for name, segments in seen.tenants.items():
        tenants[name] = []
        for live in segments:
            try:
                tenants[name].append(_searched(live))
            except Exception as error:  # whatever a damaged file leads to
                problems.append(f"{live.segment.path}: {error}")
                _log.warning("retrieval: %s cannot be searched; the rest serves", live.segment.path, exc_info=error)
    return tenants, tuple(problems)


def _found(live: LiveSegment, name: str, corpus: str | None) -> Tokens | None:
    for found in reversed(live.segment.find(name, corpus)):
        if live.dead is None or not live.dead[found]:
            return live.segment.document(found)
    return None


def _searched(live: LiveSegment) -> IndexSegment:
    """Return a segment as kernels search it."""
    it = live.segment
    return IndexSegment(it.text, it.places, it.starts, it.corpus_of, it.corpora, live.dead)


def _warm_up() -> None:
    """Compile what sorts texts, or load it: in the middle of serving that would hold steps up."""
    builder = Builder()
    builder.append("toy", b"toy", [np.array([1, 2, 1, 2], np.int32)])
    builder.sections()


def _target_fingerprint(context: PluginContext) -> Fingerprint | None:
    return None if context.target.tokenizer is None else fingerprint(context.target.tokenizer)
