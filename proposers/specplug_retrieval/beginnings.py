"""Openings of documents that come as token ids: they are read back into text, where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.corpus.fingerprint import encoder
from specplug.corpus.openings import HEAD, headed, openings
from specplug.errors import ends_process

Tokens = npt.NDArray[np.int32]

BEGIN = 96
"""Tokens of a document that are read."""

_DISTURBED = 4
"""Last of them that may become others, since the text is cut there."""


class Beginnings:
    """Finds how documents begin behind other text; see `specplug.corpus.openings`.

    Args:
        tokenizer: the target's.  One of Hugging Face is used without its wrapper, which may change its settings at
            each call, while another thread uses it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._encode = encoder(self._tokenizer)

    def of(self, document: Tokens) -> tuple[Tokens, ...]:
        """Return a document's openings, [n] int32 each.

        There are none if its text is tokenised otherwise than the document is, as that of ids at random is.
        """
        begin = document[:BEGIN].tolist()
        cut = len(begin) < len(document)
        try:
            text = str(self._decode(begin))
            again = self._encode(text)
            kept = max(1, len(begin) - _DISTURBED) if cut else max(len(begin), len(again))
            if again[:kept] != begin[:kept]:
                return ()
            found = openings(begin, [self._encode(each) for each in headed(text)], cut=cut or len(text) > HEAD)
        except BaseException as error:  # ids that no text has, whatever a tokenizer makes of them, panics among it
            if ends_process(error):
                raise
            return ()
        return tuple(np.asarray(opening, np.int32) for opening in found)

    def _decode(self, ids: list[int]) -> Any:
        if hasattr(self._tokenizer, "get_vocab_size"):
            return self._tokenizer.decode(ids, skip_special_tokens=False)
        return self._tokenizer.decode(ids)
