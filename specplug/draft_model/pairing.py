"""TokenizerPair: what the tokenizers of a target and of a draft model have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from specplug.errors import SettingsError
from specplug.text.fingerprint import fingerprint
from specplug.text.translate.libraries import read_vocabulary
from specplug.text.translate.tables import Intersection, TokenLists, expansions, intersect
from specplug.text.translate.vocabulary import REMEDY, Vocabulary


@dataclass(frozen=True, slots=True)
class TokenizerPair:
    """Two tokenizers.

    Attributes:
        intersection: the ids that stand for the same text.
        vocabularies: the target's and the draft's; None if the tokenizers give all texts the same ids.
    """

    intersection: Intersection
    vocabularies: tuple[Vocabulary, Vocabulary] | None

    @classmethod
    def of(cls, target: Any, draft: Any, target_vocab: int, draft_vocab: int) -> TokenizerPair:
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
        first = fingerprint(target)
        second = fingerprint(draft)
        if first.digest == second.digest and first.vocab_size <= draft_vocab:
            return cls(_same_ids(first.vocab_size, target_vocab, draft_vocab), None)
        own = read_vocabulary(target, first.name)
        other = read_vocabulary(draft, second.name)
        shared = intersect(own, other, target_vocab, draft_vocab)
        if not shared.of_target:
            raise SettingsError.build(
                "the two tokenizers have no token in common", found=f"{first.name} and {second.name}", remedy=REMEDY
            )
        return cls(shared, (own, other))

    @property
    def is_same(self) -> bool:
        """Whether the two give all texts the same ids."""
        return self.vocabularies is None

    def table(self) -> TokenLists:
        """Return the draft's ids for each of the target's; takes a second or two for large vocabularies."""
        to_draft = self.intersection.to_draft
        if self.vocabularies is None:
            return TokenLists.identity(int((to_draft >= 0).sum()), len(to_draft))
        return expansions(*self.vocabularies, to_draft)


def _same_ids(known: int, target_vocab: int, draft_vocab: int) -> Intersection:
    def table(size: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        ids = np.arange(size, dtype=np.int32)
        return np.where(ids < min(known, target_vocab, draft_vocab), ids, -1).astype(np.int32)

    return Intersection(table(max(target_vocab, known)), table(draft_vocab), 100.0, 100.0)
