"""Translation of a request's context, token by token, from the target's ids to the draft's."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from specplug.errors import ContractError
from specplug.text.translate.intersection import match_controls
from specplug.text.translate.libraries import read_vocabulary
from specplug.text.translate.tables import Ragged
from specplug.text.translate.vocabulary import ESCAPED, Vocabulary
from specplug.text.translate.words import CACHED, WordEncoder

TAIL = 16
"""The newest target tokens that drafts are made to continue."""


class Extension(NamedTuple):
    """A change of the draft's context.

    Attributes:
        keep: how many of its ids stay, the most possible.
        ids: those that follow them from now on.
    """

    keep: int
    ids: list[int]


class Translator:
    """A pair of vocabularies, shared by all requests.

    Args:
        target: whose ids are translated.
        draft: whose ids are written.
        cached: the most words whose tokens are kept for each.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary, cached: int = CACHED) -> None:
        self.target, self.draft = target, draft
        self.controls = match_controls(target, draft)
        self.target_words = WordEncoder(target, cached)
        self.draft_words = WordEncoder(draft, cached)

    @classmethod
    def between(cls, target: Any, draft: Any) -> Translator:
        """Return the translator between two tokenizers, which `libraries.read_vocabulary` reads.

        Raises:
            SettingsError: one of them alters text, or the bytes of its tokens are not known.
        """
        return cls(read_vocabulary(target), read_vocabulary(draft))


class Context:
    """The draft's context of one request: the tokens of all complete characters of the target's.

    The bytes of the two are equal.  The target's special tokens become those of the same role, or their literal text if
    the draft has none.  The tokens that the target puts before a text, such as BOS, become those that the draft does.
    A character whose last bytes are still missing is held back.

    The ids depend on the target's ids alone, and not on how many come at once.  They are those that the draft's own
    tokenizer gives the text, except for what `WordEncoder` spells in bytes and for words of more than
    `words.LONGEST_WORD` characters.  Time and memory of a step do not depend on the context's length.
    """

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self.tail: deque[int] = deque(maxlen=TAIL)
        """The newest target tokens after the last special one."""
        self.takes_space = translator.target.space_prefix != "never"
        """Whether text begins here for the target, and with a space that decoding removes."""
        self.adds_space = translator.draft.space_prefix != "never"
        """The same for the draft."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(ESCAPED)
        self._num_read = self._num_final = 0
        self._open = ""  # the last word, to which the next characters may belong
        self._open_ids: Sequence[int] = ()
        self._begun = False

    def __len__(self) -> int:
        """Return the number of draft ids."""
        return self._num_final + len(self._open_ids)

    @property
    def held_back(self) -> bytes:
        """The first bytes of a character that the target has not completed."""
        return self._decoder.getstate()[0]

    def extend(self, ids: Iterable[int]) -> Extension:
        """Append the target's next ids and return what changes in the draft's context.

        Raises:
            ContractError: the target has no token of such an id; the context cannot be extended further then.
        """
        before, final = self._open_ids, [] if self._begun else list(self.translator.draft.prefix)
        data, self._begun = bytearray(), True
        for token in map(int, ids):
            if token in self.translator.target.controls:
                self._control(token, data, final)
            else:
                data += self._text_of(token)
            self._num_read += 1
        self._append(self._decoder.decode(bytes(data)), final)
        self._open_ids = self.translator.draft_words.word(self._open) if self._open else ()
        after = [*final, *self._open_ids]
        common = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), None)
        common = min(len(before), len(after)) if common is None else common
        keep = self._num_final + common
        self._num_final += len(final)
        return Extension(keep, after[common:])

    def _text_of(self, token: int) -> bytes:
        piece = self.translator.target.piece(token)
        if self.takes_space and piece.startswith(b" "):
            piece = piece[1:]
        self.takes_space = False
        self.tail.append(token)
        return piece

    def _control(self, token: int, data: bytearray, final: list[int]) -> None:
        """Append a special token, after the text before it, which is complete then."""
        target, draft = self.translator.target, self.translator.draft
        self.tail.clear()
        self.takes_space = self.takes_space or target.space_prefix == "every"
        prefix = target.prefix
        if self._num_read < len(prefix) and prefix[self._num_read] == token:
            return  # the draft's own prefix is in its place
        mapped = self.translator.controls.to_draft.get(token)
        if mapped is None:
            data += target.controls[token].encode()
            return
        self._append(self._decoder.decode(bytes(data), final=True), final)
        data.clear()
        final += self.translator.draft_words.word(self._open) if self._open else ()
        final.append(mapped)
        self._open, self.adds_space = "", self.adds_space or draft.space_prefix == "every"

    def _append(self, text: str, final: list[int]) -> None:
        """Append complete characters; all words but the last become final."""
        if not text:
            return
        if self.adds_space:
            text = f" {text}"
        self.adds_space = False
        *closed, self._open = self.translator.draft_words.words(self._open + text)
        for word in closed:
            final += self.translator.draft_words.word(word)


class TokenContext(Context):
    """A context that is translated token by token, by a table, so that its tokens end where the target's do.

    Words that the two tokenizers cut differently are not as the draft's own tokenizer would cut them.  Drafts of tokens
    that both have (TLI) are accepted more often after it.  Its bytes are the target's, the space before the first word
    included, and nothing is held back.

    Args:
        translator: the pair.
        table: see `specplug.text.translate.tables.expansions`.
    """

    def __init__(self, translator: Translator, table: Ragged) -> None:
        super().__init__(translator)
        self._table = table

    def extend(self, ids: Iterable[int]) -> Extension:
        """Append the target's next ids and return the draft's, before which all of its ids stay.

        Raises:
            ContractError: the target has no token of such an id; the context cannot be extended further then.
        """
        found = [] if self._begun else list(self.translator.draft.prefix)
        self._begun, self.takes_space, self.adds_space = True, False, False
        target = self.translator.target
        for token in map(int, ids):
            place, self._num_read = self._num_read, self._num_read + 1
            if token in target.controls:
                self.tail.clear()
            else:
                self.tail.append(token)
            if target.prefix[place : place + 1] != (token,):
                found += self._translated(token)
        keep, self._num_final = self._num_final, self._num_final + len(found)
        return Extension(keep, found)

    def _translated(self, token: int) -> list[int]:
        if not 0 <= token < len(self._table.counts) or self._table.counts[token] < 0:
            self.translator.target.piece(token)  # raises for ids of no token
            raise ContractError.build("no token has this id", who=self.translator.target.name, found=token)
        return self._table.of_id(token)
