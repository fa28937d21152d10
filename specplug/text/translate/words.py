"""Words: texts between places over which a tokenizer merges nothing, so that the tokens before them are final."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import pairwise

from specplug.text.fingerprint_texts import fingerprint_texts
from specplug.text.translate.vocabulary import Vocabulary

LONGEST_WORD = 256
"""The characters after which a word without a boundary is cut, so that a step's work stays bounded."""

CACHED = 1 << 15
"""The words whose tokens are cached for a vocabulary."""

Cuts = Callable[[str], Iterable[int]]
"""The boundaries within a text, ascending."""

_ESCAPE = re.compile("[\udc80-\udcff]")
_ESCAPES = re.compile(f"({_ESCAPE.pattern})")
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
        self.word = lru_cache(cached)(partial(tokens_of, vocabulary))

    def words(self, text: str) -> list[str]:
        """Return a text's words; see `words`."""
        return words(text, self._cuts)

    def text(self, text: str) -> list[int]:
        """Return the tokens of a text, see `tokens_of`."""
        return [token for word in self.words(text) for token in self.word(word)]


def tokens_of(vocabulary: Vocabulary, text: str) -> tuple[int, ...]:
    """Return the tokens of a text, or of a word of it.

    Their bytes are exactly the text's if the vocabulary can spell it: characters that the tokenizer would lose, such as
    SentencePiece's sign for a space and bytes that are no UTF-8, are spelled in bytes.  Otherwise they are what the
    tokenizer makes of it: normalised text, the unknown token, or nothing.
    """
    found = _spelled(vocabulary, text)
    return _read(vocabulary, text) if found is None else found


def _spelled(vocabulary: Vocabulary, text: str) -> tuple[int, ...] | None:
    if not _ESCAPE.search(text):
        found = vocabulary.encode(text)
        if vocabulary.spells(found, text):
            return tuple(found)
        if vocabulary.alters_text:  # its model has read no text spelled in another way
            return None
    if len(text) == 1:
        alone = vocabulary.spelled(text)
        return None if alone is None else tuple(alone)
    half = len(text) // 2
    first = _spelled(vocabulary, text[:half])
    second = None if first is None else _spelled(vocabulary, text[half:])
    return None if first is None or second is None else first + second


def _read(vocabulary: Vocabulary, text: str) -> tuple[int, ...]:
    unknown = () if vocabulary.unk_id is None else (vocabulary.unk_id,)
    found: list[int] = []
    for part in filter(None, _ESCAPES.split(text)):
        found += (vocabulary.spelled(part) or unknown) if _ESCAPE.match(part) else vocabulary.encode(part)
    return tuple(found)


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

    Each rule is tried on `fingerprint_texts` and added tokens, because expressions differ; one that fails is not used.
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
    encode, texts = vocabulary.encode, (*fingerprint_texts(), *(f"a{text}b {text} " for text in vocabulary.added))
    known = (
        (text, ids) for text in texts if vocabulary.unk_id not in (ids := encode(text))
    )  # unknown ones may be fused
    return all(ids == [token for word in words(text, cuts) for token in encode(word)] for text, ids in known)
