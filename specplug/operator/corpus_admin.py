"""Corpus admin service: operators' changes to a running server's corpus store, run in the API process in a thread.

The drafting processes check the store for changes every `corpora.poll_seconds`; nothing is sent to them.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from specplug.corpus.documents import Document, tokenized_many
from specplug.corpus.files import BusyError
from specplug.corpus.segment_arrays import load_sorting
from specplug.corpus.store import STORE_FILE, Store
from specplug.corpus.tenant import CorpusInfo
from specplug.corpus.view import View
from specplug.errors import CorpusError, EngineError, RequestError, SpecplugError
from specplug.operator.orders import AddOrder, BodyError, check_names, parse_add_order
from specplug.requests.references import in_vocabulary
from specplug.settings.model import CorporaSettings
from specplug.text.tokenizers import wrap

T = TypeVar("T")

_MAX_BODIES = 4
_FULL = (errno.ENOSPC, errno.EDQUOT)


class TakenError(CorpusError):
    """The corpus exists already."""


class AbsentError(CorpusError):
    """The corpus does not exist."""


_STATUSES = {TakenError: 409, AbsentError: 404, BusyError: 503, EngineError: 500}


def http_status(error: SpecplugError) -> int:
    """Return the HTTP status for an error of the operator's routes."""
    if isinstance(error, BodyError):
        return error.status
    cause = error.__cause__
    if isinstance(cause, OSError) and not isinstance(error, BusyError):
        return 507 if cause.errno in _FULL else 500
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 400)


class CorpusAdmin:
    """Adds, removes and lists the corpora of one server, which its proposers, in other processes, read from the store.

    Changes run one at a time on a dedicated thread.

    Args:
        settings: `store` names the store, which is created when the first corpus is added.
        tokenizer: the server's tokenizer, not shared with other users; None for a server without one.

    Attributes:
        max_bytes: bytes that one request's body may have.
        room: held while a body is in memory, by a few requests at a time.
    """

    def __init__(self, settings: CorporaSettings, tokenizer: Any) -> None:
        self._settings = settings
        self._root = None if settings.store is None else Path(settings.store)
        self._tokenizer = None if tokenizer is None else wrap(tokenizer)
        self._fingerprint = None if self._tokenizer is None else self._tokenizer.fingerprint
        self._changing = ThreadPoolExecutor(1, thread_name_prefix="specplug-corpora")
        self.max_bytes = settings.max_request_bytes
        self.room = asyncio.Semaphore(_MAX_BODIES)
        if self._root is not None:  # later, it would block the event loop
            # Compiling swallows what a signal's handler raises, and with it the end of a server that is starting.
            self._changing.submit(load_sorting).result()

    async def list_corpora(self, tenant: str | None = None) -> dict[str, Any]:
        """Return the store's corpora, or one tenant's, ready for JSON.  Raises SpecplugError."""
        return await asyncio.to_thread(self._listed, tenant)

    async def add(self, body: bytes | bytearray, who: str) -> dict[str, Any]:
        """Add a corpus, given as the JSON of an `AddOrder`; return how much was added.

        Raises:
            SpecplugError: nothing was added; see `http_status`.
        """
        return await self._changed(self._add, body, who)

    async def remove(self, corpus: str, documents: Sequence[str], tenant: str) -> dict[str, Any]:
        """Remove documents of a corpus, or all of it if none are named; return how much was removed.

        Raises:
            SpecplugError: nothing was removed; see `http_status`.
        """
        return await self._changed(self._remove, corpus, documents, tenant)

    async def _changed(self, change: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._changing, change, *args)

    def _add(self, body: bytes | bytearray, who: str) -> dict[str, Any]:
        self._required()
        order = parse_add_order(body, who)
        store = self._store()
        tenant = order.tenant or ""
        if not order.extend and order.name in _names(store, tenant):
            raise TakenError.build(
                "a corpus of this name is there already",
                who=f"corpus {order.name!r}",
                remedy="Remove it first, or send 'extend': true",
            )
        documents = self._documents(order, store.tokenizer.vocab_size)
        limit = self._settings.max_tokens
        added = store.add(order.name, documents, tenant=tenant, extend=order.extend, max_tokens=limit)
        about = {name: getattr(added, name) for name in ("documents", "tokens", "empty", "present", "same_name")}
        return {"name": order.name, "tenant": tenant, **about}

    def _documents(self, order: AddOrder, vocab_size: int) -> Iterator[Document]:
        for number, document in enumerate(order.documents, 1):
            name = f"{order.name}:{number}" if document.name is None else document.name
            if document.text is None:
                assert document.token_ids is not None
                ids = in_vocabulary(f"documents.{number - 1}.token_ids", document.token_ids, vocab_size)
                yield Document(name, ids)
            elif self._tokenizer is None:
                raise RequestError.build(
                    "a text needs a tokenizer", found="a server without one", remedy="Send its token ids"
                )
            else:
                yield from tokenized_many([(name, document.text)], self._tokenizer.encode_many)

    def _remove(self, corpus: str, documents: Sequence[str], tenant: str) -> dict[str, Any]:
        check_names(corpus, tenant)
        root = self._required()
        store = Store(root, self._fingerprint) if (root / STORE_FILE).exists() else None
        if store is None or corpus not in _names(store, tenant):
            raise AbsentError.build("no such corpus", who=f"tenant {tenant!r}", found=repr(corpus))
        removed = store.remove(corpus, documents=list(documents) or None, tenant=tenant)
        return {"name": corpus, "tenant": tenant, "documents": removed.documents, "tokens": removed.tokens}

    def _listed(self, tenant: str | None) -> dict[str, Any]:
        root = self._required()
        about: dict[str, Any] = {"store": str(root), "tokenizer": None, "tenants": {}, "problems": []}
        if not (root / STORE_FILE).exists():  # not created yet
            return about
        store = Store(root, self._fingerprint)
        found: dict[str, list[CorpusInfo]] = {}
        for info in store.list():
            if tenant in (None, info.tenant):
                found.setdefault(info.tenant, []).append(info)
        snapshot = View(root, self._fingerprint, readahead=False).snapshot  # not kept: it would hold removed segments
        return about | {
            "tokenizer": store.tokenizer._asdict(),
            "tenants": {name: _tenant_status(infos) for name, infos in found.items()},
            "problems": list(snapshot.problems),
        }

    def _store(self) -> Store:
        root = self._required()
        if self._fingerprint is None:
            return Store(root)
        return Store.create(root, self._fingerprint)

    def _required(self) -> Path:
        if self._root is None:
            remedy = "Name a folder in specplug's settings and restart the server"
            raise RequestError.build(
                "this server has no corpus store", who="corpora.store", found="null", remedy=remedy
            )
        return self._root


def _names(store: Store, tenant: str) -> set[str]:
    return {info.name for info in store.list(tenant)}


def _tenant_status(infos: Sequence[CorpusInfo]) -> dict[str, Any]:
    """Return a tenant's corpora and their totals."""
    keys = ("documents", "tokens", "bytes")
    sums = {key: sum(getattr(info, key) for info in infos) for key in keys}
    return {**sums, "corpora": {info.name: {key: getattr(info, key) for key in keys} for info in infos}}
