"""Corpora that a replay's proposers may draft from: the requests' documents, and distractors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from tempfile import TemporaryDirectory
from typing import TypeAlias

from specplug.corpus.documents import Document
from specplug.corpus.store import Store
from specplug.errors import SettingsError
from specplug.replay.items import Ids, TokenItem
from specplug.text.fingerprint import Fingerprint

Corpora: TypeAlias = Mapping[str, Sequence[Ids]]
"""Documents, each [n] int32, by corpus name."""

DOCUMENTS = "documents"
"""Name of the corpus of the requests' own documents."""

DISTRACTOR_TOKENS = 30_000
"""Most tokens of one distractor corpus."""


def distinct(documents: Iterable[Ids]) -> list[Ids]:
    """Return the non-empty documents in order, without duplicates."""
    return list({document.tobytes(): document for document in documents if document.size}.values())


def corpora_of(
    items: Sequence[TokenItem], *, documents: bool, distractors: Sequence[Sequence[Ids]] = ()
) -> dict[str, list[Ids]]:
    """Return the corpora for a workload.

    Args:
        items: the workload's requests.
        documents: make a corpus of the documents of all requests.
        distractors: further corpora, such as `distractors` makes.
    """
    found = {f"distractor {number}": distinct(texts) for number, texts in enumerate(distractors, 1)}
    if documents:
        found = {DOCUMENTS: distinct(text for item in items for text in item.documents), **found}
    return {name: texts for name, texts in found.items() if texts}


def distractors(others: Iterable[Iterable[Ids]], count: int) -> tuple[tuple[Ids, ...], ...]:
    """Return corpora unrelated to a workload, made of other workloads' prompts.

    Prompts are taken from each of the others in turn, and each goes to the smallest corpus.  The same arguments give
    the same corpora.

    Args:
        others: the prompts of each other workload.
        count: number of corpora; each gets about `DISTRACTOR_TOKENS` tokens, or as many as there are.

    Raises:
        SettingsError: there are fewer prompts than corpora.
    """
    corpora: list[list[Ids]] = [[] for _ in range(count)]
    sizes = [0] * count
    for prompt in distinct(prompt for each in zip_longest(*others) for prompt in each if prompt is not None):
        smallest = min(sizes, default=DISTRACTOR_TOKENS)
        if smallest == DISTRACTOR_TOKENS:
            break
        at = sizes.index(smallest)
        corpora[at].append(prompt[: DISTRACTOR_TOKENS - smallest])
        sizes[at] += corpora[at][-1].size
    if not all(corpora):
        raise SettingsError.build(
            "too few prompts to make distractors of",
            found=f"prompts for {sum(map(bool, corpora))}",
            expected=f"at least {count}, in other workloads of the traces",
            remedy="Give traces with more workloads, or ask for fewer distractors",
        )
    return tuple(map(tuple, corpora))


@contextmanager
def stored(corpora: Corpora) -> Iterator[str | None]:
    """Write corpora to a store, which exists within the context; yields its path, or None if there are no corpora."""
    if not corpora:
        yield None
        return
    with TemporaryDirectory(prefix="specplug-replay-") as folder:
        store = Store.create(f"{folder}/store", Fingerprint("of the traces", "unknown", 2**31 - 1))
        for name, documents in corpora.items():
            store.add(name, (Document(str(number), ids) for number, ids in enumerate(documents)))
            store.merge()
        yield str(store.root)
