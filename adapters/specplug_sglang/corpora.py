"""Texts to draft from that operators add and remove while serving: SGLang's own routes for them, and where they end.

SGLang keeps ``/add_external_corpus`` and its fellows for its own n-gram speculation.  Its code for them serves specplug
too, told so, but for how texts are read: see `corpus_texts`.  It loads on a thread of the scheduler's process; there
the corpora reach the proposers that implement `HoldsCorpora`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from specplug.serving.corpora import Corpora, refused
from specplug.settings.model import Settings
from specplug_sglang.asked import is_asked, resolved
from specplug_sglang.corpus_texts import Reading, Tokenize, documents_of, handed_over, read_documents, read_file, taken
from specplug_sglang.intake import PARSER

LIMIT_FLAG = "--speculative-ngram-external-corpus-max-tokens"

_FLAG = LIMIT_FLAG.removeprefix("--").replace("-", "_")
_MODULE = "sglang.srt.managers.tokenizer_control_mixin"
_NGRAM = "NGRAM"
_ADDITIONS = "add_external_corpus"

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
        from sglang.srt.runtime_context import get_parallel, get_spec

        stage = self.drafting.stage
        most, remedy = limit(get_spec(), self.drafting.resolved.settings)
        leads = not get_parallel().dp_rank
        return None if stage is None else Corpora(stage.proposers, most, remedy, leads=leads)

    def load_first_corpus(self) -> None:
        """Add the corpus that the server was started with, if any; for the end of a worker's start.

        One of its name that is there already, as it is in a store that outlives servers, is left as it is.

        Raises:
            ValueError: its file is not as SGLang wants it.
            SpecplugError: no proposer takes it.
        """
        from sglang.srt.runtime_context import get_spec
        from sglang.srt.speculative.cpp_ngram.external_corpus import iter_external_corpus_chunks

        corpora, path = self.corpora, get_spec().speculative_ngram_external_corpus_path
        if corpora is None or path is None:
            return
        held = corpora.sizes()  # refuses before anything is read
        if path in held:
            _log.info("specplug: corpus %s is there already, with %d tokens; its file is not read", path, held[path])
            return
        most, tokenizer = limit(get_spec(), self.drafting.resolved.settings)[0], self.target_worker.tokenizer
        count = self.add_external_corpus(path, iter_external_corpus_chunks(path, tokenizer, most))
        _log.info("specplug: corpus %s has %d tokens", path, count)

    def add_external_corpus(self, corpus_id: str, token_chunks: Iterable[Sequence[int]]) -> int:
        """Add a corpus; SGLang calls this on a thread of its own, and tells what is raised to who asked."""
        if self.corpora is None:
            return 0
        documents = documents_of(taken(token_chunks))
        if not documents:  # SGLang stops before a document that is too long
            most = f"a text, {self.corpora.max_tokens} tokens at most"
            raise refused("nothing to add", "no text, or one that is too long", most, self.corpora.raise_limit)
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


def limit(spec: Any, settings: Settings) -> tuple[int, str]:
    """Return how many tokens all corpora may have together, and what to do when they are more.

    SGLang's flag bounds memory that its own n-gram would take.  specplug's setting counts in its place unless the flag
    has been set.

    Args:
        spec: SGLang's settings of speculation.
        settings: specplug's.
    """
    said = int(getattr(spec, _FLAG))
    if said != _flag_default():
        return said, f"Set {LIMIT_FLAG}"
    return settings.corpora.max_tokens, "Set corpora.max_tokens in SPECPLUG_CONFIG"


@functools.cache
def _flag_default() -> int:
    from sglang.srt.server_args import ServerArgs

    return int(inspect.signature(ServerArgs).parameters[_FLAG].default)


# -- in the processes that serve requests ----------------------------------------------------------------------------


def install() -> None:
    """Hook into what SGLang's routes call."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = {"add_external_corpus": _add, "remove_external_corpus": _remove, "list_external_corpora": _list}
    for name, hook in hooks.items():
        HookRegistry.register(f"{_MODULE}.TokenizerControlMixin.{name}", hook, HookType.AROUND)


async def _add(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    if not is_asked(manager.server_args):
        return await original(manager, obj)
    from sglang.srt.managers.io_struct import AddExternalCorpusReqOutput

    _open(manager.server_args)
    wrong = _wrong(obj)
    if wrong:
        return AddExternalCorpusReqOutput(success=False, message=wrong)
    able = await manager.list_external_corpora()  # before anything is read and tokenised
    if not able.success:
        return AddExternalCorpusReqOutput(success=False, message=able.message)
    try:
        return await _added(manager, obj)
    except Exception as error:  # a file that is not as it should be, a full disk, no tokenizer
        return AddExternalCorpusReqOutput(success=False, message=str(error))


async def _added(manager: Any, obj: Any) -> Any:
    """Read a corpus and let every scheduler add it; the answer is worded as SGLang's."""
    from sglang.srt.managers.io_struct import AddExternalCorpusReqInput, AddExternalCorpusReqOutput
    from sglang.srt.runtime_context import get_spec

    most = limit(get_spec(), resolved(manager.server_args).settings)[0]
    reading = await asyncio.to_thread(_read, obj, getattr(manager, PARSER).tokenizer, most)
    name = obj.corpus_id or uuid.uuid4().hex
    call = getattr(manager, f"{_ADDITIONS}_communicator")  # SGLang makes these by a list of names
    with handed_over(reading.ids, one_host=manager.server_args.nnodes == 1) as chunks:
        answers = await call(AddExternalCorpusReqInput(corpus_id=name, token_chunks=chunks))
    done, message = call.merge_results(answers)
    if not done:
        return AddExternalCorpusReqOutput(success=False, message=message)
    if reading.truncated:
        message += f" (truncated: exceeded {most} token limit)"
    count = answers[0].loaded_token_count
    return AddExternalCorpusReqOutput(success=True, corpus_id=name, message=message, loaded_token_count=count)


def _read(obj: Any, tokenize: Tokenize, most: int) -> Reading:
    if obj.file_path is not None:
        return read_file(obj.file_path, tokenize, most)
    return read_documents(obj.documents, tokenize, most)


async def _remove(original: Callable[..., Any], manager: Any, corpus_id: Any) -> Any:
    if is_asked(manager.server_args):
        _open(manager.server_args)
        if not isinstance(corpus_id, str):
            from sglang.srt.managers.io_struct import RemoveExternalCorpusReqOutput

            wrong = refused("corpus_id is wrong", repr(corpus_id), "a string")
            return RemoveExternalCorpusReqOutput(success=False, message=str(wrong))
    return await original(manager, corpus_id)


async def _list(original: Callable[..., Any], manager: Any) -> Any:
    if is_asked(manager.server_args):
        _open(manager.server_args)
    return await original(manager)


def _wrong(obj: Any) -> str:
    """Say what is wrong with a request to add a corpus: SGLang takes whatever its JSON says."""
    for name in ("corpus_id", "file_path"):
        value = getattr(obj, name)
        if value is not None and not isinstance(value, str):
            return str(refused(f"{name} is wrong", repr(value)[:80], "a string"))
    documents = obj.documents
    if documents is None and obj.file_path is None:
        return "Either file_path or documents must be provided."
    if documents is not None and not (isinstance(documents, list) and all(isinstance(own, str) for own in documents)):
        return str(refused("documents is wrong", repr(documents)[:80], "a list of strings"))
    return ""


def _open(server_args: Any) -> None:
    """Let the functions behind the routes, which ask by name, take specplug for SGLang's n-gram, with its own limit."""
    import sglang.srt.managers.tokenizer_control_mixin as module

    original = module.get_spec
    if hasattr(original, "_specplug"):
        return

    settings = resolved(server_args).settings

    @functools.wraps(original)
    def get_spec() -> Any:
        spec = original()
        return _AsNgram(spec, {_FLAG: limit(spec, settings)[0]})

    get_spec._specplug = True  # type: ignore[attr-defined]
    module.get_spec = get_spec


class _AsNgram:
    """The settings of a server's speculation, under the name of SGLang's n-gram, some of them others."""

    speculative_algorithm = _NGRAM

    def __init__(self, settings: Any, others: dict[str, Any]) -> None:
        self._settings = settings
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)
