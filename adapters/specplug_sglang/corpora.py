"""Texts to draft from that operators add and remove while serving: SGLang's own routes for them, and where they end.

SGLang keeps ``/add_external_corpus`` and its fellows for its own n-gram speculation.  Its code for them serves specplug
too, told so: it reads, tokenises, bounds and truncates, and loads on a thread of the scheduler's process.  There the
corpora reach the proposers that implement `HoldsCorpora`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from specplug.serving.corpora import Corpora, Document, refused
from specplug_sglang.asked import is_asked

SEPARATOR = -(2**31)
"""What SGLang puts before every document but the first; no token."""

LIMIT_FLAG = "--speculative-ngram-external-corpus-max-tokens"

_MODULE = "sglang.srt.managers.tokenizer_control_mixin"
_NGRAM = "NGRAM"

_log = logging.getLogger("specplug")


# -- in the scheduler's process --------------------------------------------------------------------------------------


class ExternalCorpora:
    """What SGLang calls of a worker that holds external corpora.  A mixin for `Worker`."""

    drafting: Any
    device: torch.device
    model_runner: Any
    target_worker: Any

    @functools.cached_property
    def corpora(self) -> Corpora | None:
        """The corpora; None on ranks that draft nothing."""
        from sglang.srt.runtime_context import get_spec

        stage = self.drafting.stage
        most = int(get_spec().speculative_ngram_external_corpus_max_tokens)
        return None if stage is None else Corpora(stage.proposers, most, f"Set {LIMIT_FLAG}")

    def load_first_corpus(self) -> None:
        """Add the corpus that the server was started with, if any; for the end of a worker's start.

        Raises:
            ValueError: its file is not as SGLang wants it.
            SpecplugError: no proposer takes it.
        """
        from sglang.srt.runtime_context import get_spec
        from sglang.srt.speculative.cpp_ngram.external_corpus import iter_external_corpus_chunks

        corpora, path = self.corpora, get_spec().speculative_ngram_external_corpus_path
        if corpora is None or path is None:
            return
        corpora.sizes()  # refuses before anything is read
        most, tokenizer = get_spec().speculative_ngram_external_corpus_max_tokens, self.target_worker.tokenizer
        count = self.add_external_corpus(path, iter_external_corpus_chunks(path, tokenizer, most))
        _log.info("specplug: corpus %s has %d tokens", path, count)

    def add_external_corpus(self, corpus_id: str, token_chunks: Iterable[Sequence[int]]) -> int:
        """Add a corpus; SGLang calls this on a thread of its own, and tells what is raised to who asked."""
        if self.corpora is None:
            return 0
        documents = documents_of(token_chunks)
        if self.device.type == "cpu":
            return self.corpora.add(corpus_id, documents)
        with torch.get_device_module(self.device).device(self.model_runner.gpu_id):  # a thread begins on device 0
            return self.corpora.add(corpus_id, documents)

    def commit_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Do nothing: proposers put a corpus in place themselves."""

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Remove a corpus, between two steps."""
        if self.corpora is not None:
            self.corpora.remove(corpus_id)

    def list_external_corpora(self) -> dict[str, int]:
        """Return the corpora and their sizes, between two steps."""
        return {} if self.corpora is None else self.corpora.sizes()


def documents_of(token_chunks: Iterable[Sequence[int]]) -> list[Document]:
    """Return the documents of a corpus, whole, as SGLang cuts it: in chunks, separators between documents."""
    chunks = [np.asarray(chunk, dtype=np.int32) for chunk in token_chunks]
    text = np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int32)
    text.flags.writeable = False
    separators = np.flatnonzero(text == SEPARATOR)
    starts, ends = [0, *(separators + 1).tolist()], [*separators.tolist(), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True) if end > start]


# -- in the processes that serve requests ----------------------------------------------------------------------------


def install() -> None:
    """Hook into what SGLang's routes call."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = {"add_external_corpus": _add, "remove_external_corpus": _remove, "list_external_corpora": _list}
    for name, hook in hooks.items():
        HookRegistry.register(f"{_MODULE}.TokenizerControlMixin.{name}", hook, HookType.AROUND)


async def _add(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    if is_asked(manager.server_args):
        from sglang.srt.managers.io_struct import AddExternalCorpusReqOutput

        _open()
        wrong = _wrong(obj)
        if wrong:
            return AddExternalCorpusReqOutput(success=False, message=wrong)
        able = await manager.list_external_corpora()  # before anything is read and tokenised
        if not able.success:
            return AddExternalCorpusReqOutput(success=False, message=able.message)
    return await original(manager, obj)


async def _remove(original: Callable[..., Any], manager: Any, corpus_id: Any) -> Any:
    if is_asked(manager.server_args):
        _open()
        if not isinstance(corpus_id, str):
            from sglang.srt.managers.io_struct import RemoveExternalCorpusReqOutput

            wrong = refused("corpus_id is wrong", repr(corpus_id), "a string")
            return RemoveExternalCorpusReqOutput(success=False, message=str(wrong))
    return await original(manager, corpus_id)


async def _list(original: Callable[..., Any], manager: Any) -> Any:
    if is_asked(manager.server_args):
        _open()
    return await original(manager)


def _wrong(obj: Any) -> str:
    """Say what is wrong with a request to add a corpus: SGLang takes whatever its JSON says."""
    for name in ("corpus_id", "file_path"):
        value = getattr(obj, name)
        if value is not None and not isinstance(value, str):
            return str(refused(f"{name} is wrong", repr(value)[:80], "a string"))
    documents = obj.documents
    if documents is not None and not (isinstance(documents, list) and all(isinstance(own, str) for own in documents)):
        return str(refused("documents is wrong", repr(documents)[:80], "a list of strings"))
    return ""


def _open() -> None:
    """Let the functions behind the routes, which ask by name, take specplug for SGLang's n-gram."""
    import sglang.srt.managers.tokenizer_control_mixin as module

    original = module.get_spec
    if hasattr(original, "_specplug"):
        return

    @functools.wraps(original)
    def get_spec() -> Any:
        return _AsNgram(original())

    get_spec._specplug = True  # type: ignore[attr-defined]
    module.get_spec = get_spec


class _AsNgram:
    """The settings of a server's speculation, under the name of SGLang's n-gram."""

    speculative_algorithm = _NGRAM

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)
