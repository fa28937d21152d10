"""The tokenizer for texts in requests, which works piece by piece so that a long text does not block other threads."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.errors import RequestError
from specplug.text.pieces import pieces


class RequestTokenizer:
    """A copy of the engine's tokenizer, for the texts of requests, without special tokens.

    vLLM's own tokenizer serves one thread at a time and is copied on demand for a second one, so a server's event loop
    would wait while a long text is tokenized.
    """

    def __init__(self, original: Callable[[], Any]) -> None:
        """Take a function that returns the engine's tokenizer, or None if the server runs without one."""
        self._original = original
        self._own: Any = None

    def copy(self) -> Any:
        """Return the copy.  Creating it takes up to a second and holds the GIL, so servers do it at start-up."""
        if self._own is None:
            self._own = copy.deepcopy(self._original())
            if hasattr(self._own, "model_max_length"):
                self._own.model_max_length = sys.maxsize  # references may be longer than the context: no warning
        return self._own

    def __call__(self, text: str, most: int = sys.maxsize) -> npt.NDArray[np.int32]:
        """Return [n] int32; once there are more than `most`, the rest of the text is not tokenized.

        A long text is cut at the ends of lines (see `specplug.text.pieces`).  The tokens at a cut may differ from those
        of the whole text, which costs a draft token or two there.

        Raises:
            RequestError: the server runs without a tokenizer.
        """
        tokenizer = self.copy()
        if tokenizer is None:
            raise RequestError.build(
                "a reference text needs a tokenizer", found="a server without one", remedy="Send its token ids"
            )
        ids = [np.empty(0, dtype=np.int32)]
        for piece in pieces(text):
            ids.append(np.array(tokenizer.encode(piece, add_special_tokens=False), dtype=np.int32))
            most -= len(ids[-1])
            if most < 0:
                break
        return np.concatenate(ids)
