"""Hooks on SGLang's own routes for external corpora, by which operators add and remove texts to draft from.

SGLang restricts ``/add_external_corpus`` and the related routes to its own n-gram speculation.  Its code for them
serves specplug too, except for reading texts: see `specplug_sglang.corpus_handover`.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable
from typing import Any

from specplug.operator.corpora import refused
from specplug_sglang.config import proposes, resolved
from specplug_sglang.corpus_handover import Reading, Tokenize, handed_over, read_documents, read_file
from specplug_sglang.frontend.intake import PARSER
from specplug_sglang.scheduler.corpora import LIMIT_FIELD, limit

_MODULE = "sglang.srt.managers.tokenizer_control_mixin"
_NGRAM = "NGRAM"
_ADDITIONS = "add_external_corpus"


def install() -> None:
    """Hook the methods that SGLang's routes call."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = {"add_external_corpus": _add, "remove_external_corpus": _remove, "list_external_corpora": _list}
    for name, hook in hooks.items():
        HookRegistry.register(f"{_MODULE}.TokenizerControlMixin.{name}", hook, HookType.AROUND)


async def _add(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    if not proposes(manager.server_args):
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
    except Exception as error:  # an invalid file, a full disk, no tokenizer
        return AddExternalCorpusReqOutput(success=False, message=str(error))


async def _added(manager: Any, obj: Any) -> Any:
    """Read a corpus and have every scheduler add it; the answer has SGLang's wording."""
    from sglang.srt.managers.io_struct import AddExternalCorpusReqInput, AddExternalCorpusReqOutput
    from sglang.srt.runtime_context import get_spec

    most = limit(get_spec(), resolved(manager.server_args).settings)[0]
    reading = await asyncio.to_thread(_read, obj, getattr(manager, PARSER).tokenizer, most)
    name = obj.corpus_id or uuid.uuid4().hex
    call = getattr(manager, f"{_ADDITIONS}_communicator")  # SGLang creates these from a list of names
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
    if proposes(manager.server_args):
        _open(manager.server_args)
        if not isinstance(corpus_id, str):
            from sglang.srt.managers.io_struct import RemoveExternalCorpusReqOutput

            wrong = refused("corpus_id is wrong", repr(corpus_id), "a string")
            return RemoveExternalCorpusReqOutput(success=False, message=str(wrong))
    return await original(manager, corpus_id)


async def _list(original: Callable[..., Any], manager: Any) -> Any:
    if proposes(manager.server_args):
        _open(manager.server_args)
    return await original(manager)


def _wrong(obj: Any) -> str:
    """Return the error in a request to add a corpus, "" if there is none; SGLang does not validate its JSON."""
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
    """Present specplug as SGLang's n-gram, with its own token limit, to the routes' functions, which check the name."""
    import sglang.srt.managers.tokenizer_control_mixin as module

    original = module.get_spec
    if hasattr(original, "_specplug"):
        return

    settings = resolved(server_args).settings

    @functools.wraps(original)
    def get_spec() -> Any:
        spec = original()
        return _AsNgram(spec, {LIMIT_FIELD: limit(spec, settings)[0]})

    get_spec._specplug = True  # type: ignore[attr-defined]
    module.get_spec = get_spec


class _AsNgram:
    """View of a server's speculative settings with the algorithm name of SGLang's n-gram and some values replaced."""

    speculative_algorithm = _NGRAM

    def __init__(self, settings: Any, others: dict[str, Any]) -> None:
        self._settings = settings
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)
