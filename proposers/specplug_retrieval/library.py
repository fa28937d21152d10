"""The corpus store as a proposer sees it: what is there now, and who changes it.

A thread looks whether the store was changed, by whomever; the proposer takes what it found between two steps.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specplug.corpus.documents import Document
from specplug.corpus.fingerprint import Fingerprint, fingerprint
from specplug.corpus.store import Store
from specplug.corpus.view import Snapshot, View
from specplug.interfaces import PluginContext
from specplug.match.shelves import Segment
from specplug.settings.model import CorporaSettings

Tokens = npt.NDArray[np.int32]
Tenants = Mapping[str, Sequence[Segment]]

_log = logging.getLogger("specplug")


class Library:
    """One process's corpora.

    Args:
        context: `context.corpora` names the store; without one, corpora that are added lie in a temporary folder.
    """

    def __init__(self, context: PluginContext) -> None:
        self._settings: CorporaSettings = context.corpora or CorporaSettings()
        self._tokenizer = _told(context)
        self._own: Path | None = None
        self._store: Store | None = None
        self._view: View | None = None
        self._snapshot: Snapshot | None = None
        self._waiting: Tenants | None = None
        self._looking = threading.Lock()
        self._ended, self._thread = threading.Event(), threading.Thread(target=self._watch, daemon=True)
        self.unknown_documents = 0

    def open(self) -> None:
        """Open the store, and watch it.

        Raises:
            SpecplugError: it is another tokenizer's, or no store.
        """
        if self._view is not None:
            return
        if self._settings.store is None:
            self._own = Path(tempfile.mkdtemp(prefix="specplug-corpora-"))
        path = self._own or Path(self._settings.store or "").expanduser()
        if path.exists() and any(path.iterdir()):
            self._store = Store.open(path, self._tokenizer)
        else:
            self._store = Store.create(path, self._tokenizer or Fingerprint("unknown", "", 0))
        self._view = View(path, self._tokenizer)
        self._look()
        if self._own is None:
            self._thread.start()

    def changed(self) -> Tenants | None:
        """Return all segments if they are others than last time, else None.  For the thread of the steps."""
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
        return waiting

    def document(self, tenant: str, name: str, corpus: str | None) -> Tokens | None:
        """Return the tokens of a stored document, the newest of several; None where there is none, which is counted."""
        snapshot = self._snapshot
        for live in reversed(snapshot.tenants.get(tenant, ()) if snapshot else ()):
            for found in reversed(live.segment.find(name, corpus)):
                if live.dead is None or not live.dead[found]:
                    return live.segment.document(found)
        self.unknown_documents += 1
        return None

    def add(self, tenant: str, name: str, documents: Sequence[Tokens]) -> int:
        """Add a corpus to the store; return its tokens."""
        named = (Document(str(index), ids) for index, ids in enumerate(documents))
        added = self._required().add(name, named, tenant=tenant, max_tokens=self._settings.max_tokens)
        self._look()
        return added.tokens

    def remove(self, tenant: str, name: str) -> None:
        """Remove a corpus from the store."""
        self._required().remove(name, tenant=tenant)
        self._look()

    def sizes(self, tenant: str) -> dict[str, int]:
        """Return how many tokens each corpus of a tenant has."""
        return {corpus.name: corpus.tokens for corpus in self._required().list(tenant)}

    def close(self) -> None:
        """Stop watching; forget corpora that lie in a temporary folder."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    def _required(self) -> Store:
        assert self._store is not None, "warmup() opens it"
        return self._store

    def _watch(self) -> None:
        while not self._ended.wait(self._settings.poll_seconds):
            try:
                self._look()
            except Exception:
                _log.exception("retrieval: the corpus store cannot be looked at; what was there before serves on")

    def _look(self) -> None:
        """Have the newest state of the store ready for the next step, if it changed."""
        with self._looking:
            snapshot = None if self._view is None else self._view.refresh()
            if snapshot is None:
                return
            self._snapshot = snapshot
            self._waiting = {
                tenant: [
                    Segment(it.segment.text, it.segment.places, it.segment.starts, it.segment.corpus_of,
                            it.segment.corpora, it.dead)
                    for it in segments
                ]
                for tenant, segments in snapshot.tenants.items()
            }  # fmt: skip


def _told(context: PluginContext) -> Fingerprint | None:
    return None if context.tokenizer is None else fingerprint(context.tokenizer, "the served model's")
