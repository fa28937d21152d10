"""Helpers of the corpus store's tests: a fake tokenizer, small documents, and a store's contents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from specplug.corpus.documents import Document
from specplug.corpus.segment import COMPARED, NO_TEXT
from specplug.corpus.store import Store
from specplug.corpus.view import View
from specplug.text.fingerprint import Fingerprint

TOKENIZER = Fingerprint("letters", "a1" * 16, 100)
OTHER = Fingerprint("words", "b2" * 16, 100)


def document(name: str, ids: Sequence[int], *prefixes: Sequence[int]) -> Document:
    return Document(name, np.array(ids, np.int32), tuple(np.array(prefix, np.int32) for prefix in prefixes))


def some_documents(seed: int, count: int = 3, size: int = 20) -> list[Document]:
    rng = np.random.default_rng(seed)
    return [
        document(f"d{i}", rng.integers(0, 4, size), *([rng.integers(0, 4, 5)] if rng.random() < 0.5 else []))
        for i in range(count)
    ]


def new_store(root: Path, **sizes) -> Store:
    return Store.create(root / "store", TOKENIZER, **sizes)


Content = dict[str, dict[str, list[tuple[str, list[int]]]]]
"""Tenant -> corpus -> its documents, names and bodies, older ones first."""


def content(root: Path) -> Content:
    """Return all that a view sees."""
    found: Content = {}
    snapshot = View(root / "store", TOKENIZER).snapshot
    assert snapshot.problems == ()
    for tenant, segments in snapshot.tenants.items():
        for segment in segments:
            for index in range(len(segment)):
                corpus = found.setdefault(tenant, {}).setdefault(segment.corpora[segment.corpus_of[index]], [])
                corpus.append((segment.name(index), segment.document(index).tolist()))
    return found


def listed(store: Store) -> dict[tuple[str, str], tuple[int, int]]:
    """Return documents and tokens by tenant and corpus."""
    return {(info.tenant, info.name): (info.documents, info.tokens) for info in store.list()}


def as_content(documents: Iterable[Document]) -> list[tuple[str, list[int]]]:
    """Return what `content` has of documents."""
    return [(document.name, document.token_ids.tolist()) for document in documents if len(document.token_ids)]


def plain_places(text: list[int]) -> list[int]:
    """Return what a segment's places must be."""

    def key(place: int) -> tuple[list[int], int]:
        before = text[max(0, place - COMPARED) : place][::-1]
        return (before[: before.index(NO_TEXT) + 1] if NO_TEXT in before else before), place

    return sorted((p for p in range(1, len(text)) if text[p - 1] >= 0 and text[p] >= 0), key=key)


def overwrite(path: Path, data: bytes) -> None:
    """Damage a file of a store, which may be read-only; the file must not be mapped."""
    path.chmod(0o600)
    path.write_bytes(data)


def flip(path: Path) -> None:
    """Flip the last bit of a file of a store."""
    data = path.read_bytes()
    overwrite(path, data[:-1] + bytes([data[-1] ^ 1]))


def filled(root: Path, count: int, **sizes) -> Store:
    """Return a store of the corpora c0, c1, ..., which are in one segment unless the sizes keep them apart."""
    store = new_store(root, **sizes)
    for i in range(count):
        store.add(f"c{i}", some_documents(i))
    return store


def segment_files(root: Path) -> list[Path]:
    return sorted((root / "store").rglob("*.safetensors"))
