"""Tokenizers for building a store: loaded by name, fast on many texts, known by their fingerprint."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specplug.corpus.documents import Document, TokenizeMany, tokenized_many
from specplug.corpus.fingerprint import Fingerprint, encoder, fingerprint
from specplug.corpus.lines import Content
from specplug.corpus.store import Store
from specplug.errors import SettingsError
from specplug.replay.tokenizers import NAMES, load_tokenizer

_MODEL_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_CHARACTERS = 1 << 21
_TEXTS = 4096


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer, from `wrap` or `load`.

    Attributes:
        fingerprint: what it is known by.
        many: texts -> their token ids, without special tokens; on all cores where the library can.
        decode: token ids -> text.
    """

    fingerprint: Fingerprint
    many: TokenizeMany
    decode: Callable[[Sequence[int]], str]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of one text."""
        (ids,) = self.many([text])
        return list(ids)

    def documents(self, contents: Iterable[Content]) -> Iterator[Document]:
        """Yield what was read as documents, some thousand at a time: no more is held in memory."""
        waiting: list[Content] = []
        size = 0
        for content in contents:
            waiting.append(content)
            size += len(content.text or "")
            if size >= _CHARACTERS or len(waiting) >= _TEXTS:
                yield from self._tokenized(waiting)
                waiting, size = [], 0
        yield from self._tokenized(waiting)

    def _tokenized(self, contents: Sequence[Content]) -> Iterator[Document]:
        texts = iter(tokenized_many([(each.name, each.text) for each in contents if each.text is not None], self.many))
        for each in contents:
            yield Document(each.name, each.token_ids) if each.text is None else next(texts)


def load(name: str) -> Tokenizer:
    """Return a tokenizer by name or path.

    Args:
        name: a model's folder, or its id at Hugging Face, where transformers is installed: it is then read as an engine
            reads it.  Otherwise, see `specplug.replay.tokenizers.load_tokenizer`.

    Raises:
        SettingsError: there is no such tokenizer, or it cannot be read.
    """
    path = Path(name)
    if name not in NAMES and path.exists():
        name = str(path.resolve())  # a store keeps it, and is used from elsewhere
    foreign = path.is_dir() or (not path.exists() and _MODEL_ID.fullmatch(name))
    if name not in NAMES and foreign and importlib.util.find_spec("transformers") is not None:
        return wrap(_automatic(name), name)
    return wrap(load_tokenizer(name).library, name)


def for_store(store: Store, name: str | None = None) -> Tokenizer:
    """Return the tokenizer of a store: by `name`, or else by the name that the store keeps of it.

    Raises:
        SpecplugError: it cannot be loaded, or is another one than the store's.
    """
    try:
        found = load(store.tokenizer.name if name is None else name)
    except SettingsError as error:
        if name is not None:
            raise
        raise SettingsError(f"the store's tokenizer: {error}. Say where it is with --tokenizer") from error
    Store.open(store.root, found.fingerprint)
    return found


def wrap(tokenizer: Any, name: str = "") -> Tokenizer:
    """Return a tokenizer that is loaded already, see `specplug.corpus.fingerprint.encoder`, for use here alone."""
    library = getattr(tokenizer, "backend_tokenizer", tokenizer)
    fast = hasattr(library, "encode_batch_fast")
    if fast:
        library.no_truncation()
        library.no_padding()
    known = fingerprint(tokenizer, name)
    if fast and (library is tokenizer or fingerprint(library).digest == known.digest):
        return Tokenizer(known, lambda texts: _batch(library, texts), _decoder(tokenizer))
    return Tokenizer(known, _threads(encoder(tokenizer)), _decoder(tokenizer))


def _automatic(name: str) -> Any:
    """Return what transformers makes of a folder or model id; it is named here alone, as nothing else needs it."""
    try:
        return importlib.import_module("transformers").AutoTokenizer.from_pretrained(name)
    except Exception as error:  # whatever the folder's files and the hub's client raise
        raise SettingsError.build(
            "cannot read the tokenizer",
            who=repr(name),
            found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            expected=f"a model's folder or id, a tokenizer.json, or one of {', '.join(NAMES)}",
        ) from error


def _batch(library: Any, texts: list[str]) -> list[list[int]]:
    return [found.ids for found in library.encode_batch_fast(texts, add_special_tokens=False)]


def _threads(encode: Callable[[str], list[int]]) -> TokenizeMany:
    """Return a function for many texts; two threads, as such libraries hold the interpreter half of the time."""

    def many(texts: list[str]) -> list[list[int]]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(encode, texts))

    return many


def _decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    return lambda ids: str(tokenizer.decode(np.asarray(ids).tolist()))
