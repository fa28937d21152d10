"""Tokenization of sources' contents into documents, many texts at a time, with the store's own tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from specplug.corpus.documents import Document, tokenized_many
from specplug.corpus.lines import Content
from specplug.corpus.store import Store
from specplug.errors import SettingsError
from specplug.text.loading import load_tokenizer
from specplug.text.tokenizers import EncodeMany, Tokenizer

_CHARACTERS = 1 << 21
_TEXTS = 4096


def documents_from(contents: Iterable[Content], encode_many: EncodeMany) -> Iterator[Document]:
    """Yield contents as documents, tokenized a few thousand at a time, so that no more are in memory."""
    waiting: list[Content] = []
    size = 0
    for content in contents:
        waiting.append(content)
        size += len(content.text or "")
        if size >= _CHARACTERS or len(waiting) >= _TEXTS:
            yield from _tokenized(waiting, encode_many)
            waiting, size = [], 0
    yield from _tokenized(waiting, encode_many)


def tokenizer_of(store: Store, name: str | None = None) -> Tokenizer:
    """Return the tokenizer of a store, loaded by `name` or by the name in the store.

    Raises:
        SpecplugError: it cannot be loaded, or it is not the one that the store was built with.
    """
    try:
        found = load_tokenizer(store.tokenizer.name if name is None else name)
    except SettingsError as error:
        if name is not None:
            raise
        raise SettingsError(f"the store's tokenizer: {error}. Say where it is with --tokenizer") from error
    Store.open(store.root, found.fingerprint)
    return found


def _tokenized(contents: Sequence[Content], encode_many: EncodeMany) -> Iterator[Document]:
    texts = iter(tokenized_many([(each.name, each.text) for each in contents if each.text is not None], encode_many))
    for each in contents:
        yield Document(each.name, each.token_ids) if each.text is None else next(texts)
