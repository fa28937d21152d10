"""The retrieval proposer: one lookup over own text, references, remembered responses and corpora.

All candidates vote on each token, weighted by the observed hit rate of candidates with the same source and match
length, so unhelpful corpora are outvoted and no budget is split among sources.
"""

from __future__ import annotations

from typing import Any

from specplug.interfaces import PluginContext
from specplug.match.cpu.lookup import SOURCES
from specplug.match.proposer import LookupProposer
from specplug.types.batch import EngineBatch
from specplug.types.request import Request
from specplug_retrieval.store_watcher import StoreWatcher

SHARED = ""
"""The tenant of requests, and of corpora, without a tenant."""


class Retrieval(LookupProposer):
    """Drafts like `ngram`, and also from the corpora of the request's tenant.

    Documents that a request names become its references.  Corpora that it names are drafted from first; without names,
    all of the tenant's corpora are equal.
    """

    sources = SOURCES

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self.watcher = StoreWatcher(context, self.lookup.corpus_index_of)

    def warmup(self) -> None:
        """Compile or load the kernels, and open the store."""
        super().warmup()
        self.watcher.open()

    def is_outdated(self) -> bool:
        """Return whether the store has changed."""
        return self.watcher.changed(self.lookup.corpus_index) is not None

    def update(self) -> None:
        """Load the corpus index of a changed store."""
        changed = self.watcher.changed(self.lookup.corpus_index)
        if changed is not None:
            self.lookup.load(changed)

    def ingest(self, batch: EngineBatch) -> None:
        """Ingest new tokens and learn from them; load the corpus index of a changed store."""
        self.update()
        super().ingest(batch)

    def begin(self, slot: int, request: Request, owner: str) -> None:
        """Begin a request's text in a slot; documents that it names follow its own references."""
        self.update()  # otherwise a new tenant of the store is not known yet
        tenant, options = request.tenant or SHARED, request.options
        named = [self.watcher.document(tenant, name, corpus) for name, corpus in options.documents]
        references = [reference.token_ids for reference in request.references]
        references += [text for text in named if text is not None]
        self.lookup.start(slot, owner=owner, references=references, tenant=tenant, corpora=options.corpora)

    def status(self) -> dict[str, Any]:
        """Return the status of the corpora in use; see `StoreWatcher.status`."""
        return self.watcher.status()

    def close(self) -> None:
        """Stop watching the store."""
        self.watcher.close()
        super().close()
