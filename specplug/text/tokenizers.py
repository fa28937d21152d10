"""One interface for the tokenizers of Hugging Face and mistral_common, and for engines' wrappers of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.text.fingerprint import Fingerprint, encoder, fingerprint

TokenIds = npt.NDArray[np.int32]
EncodeMany = Callable[[list[str]], Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer, from `wrap` or `specplug.text.loading.load_tokenizer`.

    Attributes:
        fingerprint: its identity, with its name and the size of its vocabulary.
        encode_many: texts -> their token ids, without special tokens; uses all cores where the library can.
        decode: token ids -> text.
        library: the library's own object.
        eos_id: the token that ends an output; None if the tokenizer does not name it.
    """

    fingerprint: Fingerprint
    encode_many: EncodeMany
    decode: Callable[[Sequence[int]], str]
    library: Any = None
    eos_id: int | None = None

    def encode(self, text: str) -> TokenIds:
        """Return the token ids [n] int32 of one text, without special tokens."""
        (ids,) = self.encode_many([text])
        return np.asarray(ids, dtype=np.int32)


def wrap(tokenizer: Any, name: str = "", eos_id: int | None = None) -> Tokenizer:
    """Return a loaded tokenizer as a `Tokenizer`, which must be its only user from then on.

    Args:
        tokenizer: one that `specplug.text.fingerprint.encoder` takes.
        name: for messages; by default the tokenizer's own name.
        eos_id: the token that ends an output; by default the one that the tokenizer names.
    """
    library = getattr(tokenizer, "backend_tokenizer", tokenizer)
    has_batches = hasattr(library, "encode_batch_fast")
    if has_batches:
        library.no_truncation()
        library.no_padding()
    identity = fingerprint(tokenizer, name)
    # A wrapper may normalise texts before its backend sees them; only then do the two differ.
    if has_batches and (library is tokenizer or fingerprint(library).digest == identity.digest):
        encode_many: EncodeMany = lambda texts: _batch(library, texts)  # noqa: E731
    else:
        encode_many = _threaded(encoder(tokenizer))
    ends = _eos_id(tokenizer) if eos_id is None else eos_id
    return Tokenizer(identity, encode_many, _decoder(tokenizer), tokenizer, ends)


def _eos_id(tokenizer: Any) -> int | None:
    found = getattr(tokenizer, "eos_token_id", getattr(tokenizer, "eos_id", None))
    return found if isinstance(found, int) else None


def _batch(library: Any, texts: list[str]) -> list[list[int]]:
    return [found.ids for found in library.encode_batch_fast(texts, add_special_tokens=False)]


def _threaded(encode: Callable[[str], list[int]]) -> EncodeMany:
    """Return a function for many texts that uses two threads, because such libraries hold the GIL half of the time."""

    def encode_many(texts: list[str]) -> list[list[int]]:
        if len(texts) == 1:
            return [encode(texts[0])]
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(encode, texts))

    return encode_many


def _decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    return lambda ids: str(tokenizer.decode(np.asarray(ids).tolist()))
