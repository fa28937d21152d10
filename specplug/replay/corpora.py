"""The corpora that a replay hands to proposers that hold some: documents of the requests, and distractors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

from specplug.errors import SettingsError
from specplug.interfaces import HoldsCorpora, Proposer
from specplug.replay.items import Ids, TokenItem

Corpora: TypeAlias = Mapping[str, Sequence[Ids]]
"""Documents [n] int32 by name of the corpus."""

DOCUMENTS = "documents"
"""What the corpus of the requests' own documents is called."""

DISTRACTOR_TOKENS = 30_000
"""Of one distractor corpus at most."""


def distinct(documents: Iterable[Ids]) -> list[Ids]:
    """Return the documents that have tokens, equal ones once, in order."""
    return list({document.tobytes(): document for document in documents if document.size}.values())


def corpora_of(
    items: Sequence[TokenItem], *, documents: bool, distractors: Sequence[Sequence[Ids]] = ()
) -> dict[str, list[Ids]]:
    """Return the corpora for a workload.

    Args:
        items: its requests.
        documents: make a corpus of the documents of all requests.
        distractors: further corpora, such as `distractors` makes.
    """
    found = {f"distractor {number}": distinct(texts) for number, texts in enumerate(distractors, 1)}
    if documents:
        found = {DOCUMENTS: distinct(text for item in items for text in item.documents), **found}
    return {name: texts for name, texts in found.items() if texts}


def distractors(others: Iterable[Iterable[Ids]], count: int) -> tuple[tuple[Ids, ...], ...]:
    """Return corpora that have nothing to do with a workload: other workloads' prompts.

    Prompts are taken from each of the others in turn, and each goes to the smallest corpus.  The same arguments give
    the same corpora.

    Args:
        others: the prompts of each other workload.
        count: how many corpora; each gets about `DISTRACTOR_TOKENS`, or what there is.

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


def hand_over(proposers: Mapping[str, Proposer], corpora: Corpora) -> None:
    """Add corpora to all proposers that hold some, and wait until they are in place.

    Where one works on in the background and has a method `settle` that waits for that, it is called after each: counts
    are to be the same each time.
    """
    for proposer in proposers.values():
        if isinstance(proposer, HoldsCorpora):
            settle = getattr(proposer, "settle", None)
            for name, documents in corpora.items():
                proposer.add_corpus(name, documents)
                if callable(settle):
                    settle()
