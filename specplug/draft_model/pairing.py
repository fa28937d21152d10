"""Pair: what the tokenizers of a target and of a draft model have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from specplug.errors import ContractError, SettingsError
from specplug.text.fingerprint import fingerprint
from specplug.text.translate.intersection import Intersection, intersect
from specplug.text.translate.libraries import read_vocabulary
from specplug.text.translate.tables import Ragged, expansions
from specplug.text.translate.translator import Context, Extension, TokenContext, Translator
from specplug.text.translate.vocabulary import REMEDY


class Translation(Protocol):
    """The draft model's context of one request."""

    def extend(self, ids: Iterable[int]) -> Extension:
        """Append the target's next ids and return what changes in the draft's context."""
        ...


class SameIds:
    """The translation between two models with one tokenizer.

    Args:
        vocab_size: of the draft model, whose padding may be shorter than the target's.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size, self._length = vocab_size, 0

    def extend(self, ids: Iterable[int]) -> Extension:
        """Append ids as they are.

        Raises:
            ContractError: the draft model has no such id.
        """
        new = list(map(int, ids))
        wrong = [token for token in new if not 0 <= token < self._vocab_size]
        if wrong:
            raise ContractError.build(
                "the draft model has no such id", found=wrong[0], expected=f"ids in [0, {self._vocab_size})"
            )
        self._length += len(new)
        return Extension(self._length - len(new), new)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tokenizers.

    Attributes:
        intersection: the ids that stand for the same text.
        translator: translates texts; None if the tokenizers give all texts the same ids.
        num_first: how many ids the draft's tokenizer puts before a text.
    """

    intersection: Intersection
    translator: Translator | None
    num_first: int = 0

    @classmethod
    def of(cls, target: Any, draft: Any, target_vocab: int, draft_vocab: int) -> Pair:
        """Compare two tokenizers.

        Args:
            target, draft: tokenizers that `specplug.text.translate.libraries.read_vocabulary` reads.
            target_vocab, draft_vocab: the sizes of the models' vocabularies, padding included.

        Raises:
            SettingsError: the target's tokenizer is not known, or one of the two cannot be translated.
        """
        if target is None:
            raise SettingsError.build(
                "the target's tokenizer is not known",
                expected="a server that loads it",
                remedy="Leave out --skip-tokenizer-init",
            )
        first, second = fingerprint(target), fingerprint(draft)
        if first.digest == second.digest and first.vocab_size <= draft_vocab:
            return cls(_same_ids(first.vocab_size, target_vocab, draft_vocab), None)
        own, other = read_vocabulary(target, first.name), read_vocabulary(draft, second.name)
        shared = intersect(own, other, target_vocab, draft_vocab)
        if not shared.of_target:
            raise SettingsError.build(
                "the two tokenizers have no token in common", found=f"{first.name} and {second.name}", remedy=REMEDY
            )
        return cls(shared, Translator(own, other), len(other.prefix))

    def table(self) -> Ragged:
        """Return the draft's ids for each of the target's; takes a second or two for large vocabularies."""
        to_draft = self.intersection.to_draft
        if self.translator is None:
            return Ragged.identity(int((to_draft >= 0).sum()), len(to_draft))
        return expansions(self.translator.target, self.translator.draft, to_draft)

    def translation(self, table: Ragged | None = None) -> Translation:
        """Return the translation of one request's context, by tokens if a table is given, else by words."""
        if self.translator is None:
            return SameIds(len(self.intersection.to_target))
        return Context(self.translator) if table is None else TokenContext(self.translator, table)


def _same_ids(known: int, target_vocab: int, draft_vocab: int) -> Intersection:
    def table(size: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        ids = np.arange(size, dtype=np.int32)
        return np.where(ids < min(known, target_vocab, draft_vocab), ids, -1).astype(np.int32)

    return Intersection(table(max(target_vocab, known)), table(draft_vocab), 100.0, 100.0)
