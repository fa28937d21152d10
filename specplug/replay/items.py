"""Recorded items, tokenised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specplug.errors import SettingsError
from specplug.replay.traces_io import Item
from specplug.text.tokenizers import Tokenizer

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class TokenItem:
    """A recorded item as token ids; all arrays are [n] int32 and read-only.

    Attributes:
        output: the recorded output, ending with the tokenizer's EOS; its first token comes from prefill.
    """

    id: str
    prompt: Ids
    documents: tuple[Ids, ...]
    output: Ids


def tokenize(
    items: Iterable[Item], tokenizer: Tokenizer, progress: Callable[[int], None] | None = None
) -> list[TokenItem]:
    """Return items as token ids; `progress` is called with the number of items done.

    Raises:
        SettingsError: the tokenizer names no token that ends an output.
    """
    if tokenizer.eos_id is None:
        raise SettingsError.build(
            "no end-of-sequence token",
            who=f"tokenizer {tokenizer.fingerprint.name!r}",
            expected="'eos_token' in its tokenizer_config.json, naming a token of the vocabulary",
        )
    done: list[TokenItem] = []
    for item in items:
        documents = tuple(_frozen(tokenizer.encode(document)) for document in item.documents)
        output = _frozen(np.append(tokenizer.encode(item.output), np.int32(tokenizer.eos_id)))
        done.append(TokenItem(item.id, _frozen(tokenizer.encode(item.prompt)), documents, output))
        if progress is not None:
            progress(len(done))
    return done


def vocab_size_for(items: Sequence[TokenItem], tokenizer: Tokenizer) -> int:
    """Return the vocabulary's size, or more if the items hold ids beyond the tokenizer's count."""
    largest = max((int(ids.max()) for item in items for ids in (item.prompt, item.output) if ids.size), default=0)
    return max(tokenizer.fingerprint.vocab_size, largest + 1)


def _frozen(ids: Ids) -> Ids:
    ids.flags.writeable = False
    return ids
