"""A tokenizer's identity: a digest of the ids that it gives a fixed set of texts."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from specplug.text.fingerprint_texts import fingerprint_texts


class Fingerprint(NamedTuple):
    """A tokenizer's identity.

    Attributes:
        name: its name, for messages only.
        digest: hexadecimal; equal where two tokenizers give the same ids.
        vocab_size: token ids lie in [0, vocab_size).
    """

    name: Annotated[str, Field(strict=True)]
    digest: Annotated[str, Field(strict=True)]
    vocab_size: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]


def fingerprint(tokenizer: Any, name: str = "") -> Fingerprint:
    """Return a tokenizer's identity, taken from the ids that it gives a fixed set of texts.

    It is the same whichever engine or library wraps the tokenizer.  The vocabulary itself is not compared: wrappers
    write its entries differently, and added special tokens change no text's ids.  Takes about 10 ms.

    Args:
        tokenizer: see `encoder`.
        name: for messages; by default the tokenizer's own name.
    """
    encode, digest, largest = encoder(tokenizer), hashlib.sha256(), -1
    for text in fingerprint_texts():
        ids = np.asarray(encode(text), dtype=np.int64)
        digest.update(np.int64(ids.size).tobytes())
        digest.update(ids.tobytes())
        largest = max(largest, int(ids.max(initial=-1)))
    known = name or str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    return Fingerprint(known, digest.hexdigest()[:32], max(_vocab_size(tokenizer), largest + 1))


def encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """Return the function that turns text into ids without special tokens around them.

    Args:
        tokenizer: one of Hugging Face (`AutoTokenizer`, `tokenizers.Tokenizer`) or of mistral_common, or an engine's
            wrapper of one of these.
    """
    tokenizer = _bare(tokenizer)
    if "bos" in inspect.signature(tokenizer.encode).parameters:
        return lambda text: list(tokenizer.encode(text, bos=False, eos=False))

    def encode(text: str) -> list[int]:
        found = tokenizer.encode(text, add_special_tokens=False)
        return list(getattr(found, "ids", found))

    return encode


def _bare(tokenizer: Any) -> Any:
    """Return the underlying tokenizer if mistral_common has wrapped it in one for chats."""
    chat = getattr(tokenizer, "instruct_tokenizer", None)
    return tokenizer if chat is None or hasattr(tokenizer, "encode") else chat.tokenizer


def _vocab_size(tokenizer: Any) -> int:
    """Return the number of ids that the tokenizer reports; added tokens may follow a gap."""
    tokenizer = _bare(tokenizer)
    if hasattr(tokenizer, "n_words"):
        return int(tokenizer.n_words)
    if hasattr(tokenizer, "get_vocab_size"):
        size, added = int(tokenizer.get_vocab_size()), tokenizer.get_added_tokens_decoder()
    else:
        size = len(tokenizer) if hasattr(tokenizer, "__len__") else 0
        added = getattr(tokenizer, "added_tokens_decoder", None)
    return max(size, 1 + max(added, default=-1)) if isinstance(added, Mapping) else size
