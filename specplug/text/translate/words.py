"""Words: texts between places over which a tokenizer merges nothing, so that the tokens before them are final."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise

from specplug.text.fingerprint_texts import fingerprint_texts
from specplug.text.translate.vocabulary import ESCAPED, Vocabulary

LONGEST_WORD = 256
"""The characters after which a word without a boundary is cut, so that a step's work stays bounded."""

CACHED = 1 << 15
"""The words whose tokens are cached for a vocabulary."""

Cuts = Callable[[str], Iterable[int]]
"""The boundaries within a text, ascending."""

_ESCAPE = re.compile("[\udc80-\udcff]")
_AROUND_ESCAPE = f"(?<={_ESCAPE.pattern})|(?={_ESCAPE.pattern})"
_BEFORE_SPACE = rf"(?<=\S)(?= )|{_AROUND_ESCAPE}"
# Not after marks, which Python counts to no class of letters, and neither before "_" nor apostrophes (o200k's 's).
_AFTER_LETTER = (
    r"""(?<=[^\W\d_])(?=[!"#$%&()*+,\-./:;<=>?@\[\\\]^`{|}~\u3001-\u3003\u3008-\u3011\uff01-\uff06\uff08-\uff0f])"""
)


class WordEncoder:
    """Encodes text word by word.

    Args:
        vocabulary: whose tokens are written.
        cached: the most words whose tokens are kept.
    """

    def __init__(self, vocabulary: Vocabulary, cached: int = CACHED) -> None:
        self.vocabulary = vocabulary
        self._cuts = cuts_of(vocabulary)
        self.word = lru_cache(cached)(self._word)

    def words(self, text: str) -> list[str]:
        """Return a text's words; see `words`."""
        return words(text, self._cuts)

    def text(self, text: str) -> list[int]:
        """Return the tokens of a text, whose bytes are exactly the text's."""
        return [token for word in self.words(text) for token in self.word(word)]

    def _word(self, word: str) -> tuple[int, ...]:
        """Return the tokens of a word: the tokenizer's, or, for characters that it would lose, those of their bytes.

        It would lose bytes that are no UTF-8, SentencePiece's sign for a space, and characters that it normalises.
        """
        pieces = self.vocabulary.pieces
        found = [] if _ESCAPE.search(word) else self.vocabulary.encode(word)
        if b"".join([pieces[token] for token in found]) == word.encode(errors=ESCAPED):
            return tuple(found)
        if len(word) == 1:
            return tuple(self.vocabulary.spelled(word))
        half = len(word) // 2
        return self._word(word[:half]) + self._word(word[half:])


def words(text: str, cuts: Cuts) -> list[str]:
    """Return a text's words; the last one may change when the text continues, the others do not.

    Words depend on the text alone: those of a text that begins at a word are the last ones of the whole text.
    """
    found, start = [], 0
    for end in (*cuts(text), len(text)):
        while end - start > LONGEST_WORD:
            found.append(text[start : start + LONGEST_WORD])
            start += LONGEST_WORD
        if end > start:
            found.append(text[start:end])
            start = end
    return found


def cuts_of(vocabulary: Vocabulary) -> Cuts:
    """Return the boundaries of a vocabulary.

    A tokenizer that merges across words, such as SentencePiece's, merges two characters only into a piece that holds
    them beside each other.  Any others have a boundary between them.

    One that splits text by a regular expression first merges nothing across a space after a word, nor in most cases
    between a letter and punctuation.

    Each rule is tried on `fingerprint_texts`, because expressions differ; one that fails there is not used.
    """
    by_expression = map(_matches, (f"{_BEFORE_SPACE}|{_AFTER_LETTER}", _BEFORE_SPACE))
    rules = [_never_together(vocabulary)] if vocabulary.merges_across_words else by_expression
    return next((cuts for cuts in rules if _splits_exactly(vocabulary, cuts)), _matches(_AROUND_ESCAPE))


def _never_together(vocabulary: Vocabulary) -> Cuts:
    texts = (piece.decode(errors="ignore") for piece in vocabulary.pieces if len(piece) > 1)
    together = {first + second for text in texts for first, second in pairwise(text)}

    def cuts(text: str) -> list[int]:
        return [at for at, (first, second) in enumerate(pairwise(text), 1) if first + second not in together]

    return cuts


def _matches(pattern: str) -> Cuts:
    find = re.compile(pattern).finditer
    return lambda text: [match.start() for match in find(text)]


def _splits_exactly(vocabulary: Vocabulary, cuts: Cuts) -> bool:
    encode = vocabulary.encode
    return all(
        encode(text) == [token for word in words(text, cuts) for token in encode(word)] for text in fingerprint_texts()
    )
