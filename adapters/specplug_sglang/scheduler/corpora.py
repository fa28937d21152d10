"""External corpora in the scheduler's process, where SGLang loads them on a separate thread.

They are passed to the proposers that implement `HoldsCorpora`.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from specplug.operator.corpora import ServedCorpora, refused
from specplug.settings.model import Settings
from specplug_sglang.corpus_handover import documents_of, taken

LIMIT_FLAG = "--speculative-ngram-external-corpus-max-tokens"
LIMIT_FIELD = LIMIT_FLAG.removeprefix("--").replace("-", "_")

_log = logging.getLogger("specplug")


class ExternalCorpora:
    """Mixin for `Worker` with the methods that SGLang calls to manage external corpora."""

    drafting: Any
    device: torch.device
    model_runner: Any
    target_worker: Any

    @functools.cached_property
    def corpora(self) -> ServedCorpora | None:
        """The corpora; None on ranks that do not draft."""
        from sglang.srt.runtime_context import get_parallel, get_spec

        stage = self.drafting.stage
        most, remedy = limit(get_spec(), self.drafting.resolved.settings)
        leads = not get_parallel().dp_rank
        return None if stage is None else ServedCorpora(stage.proposers, most, remedy, leads=leads)

    def load_first_corpus(self) -> None:
        """Add the corpus named in the server's arguments, if any; called at the end of a worker's start.

        A corpus of the same name that already exists, for example in a persistent store, is kept unchanged.

        Raises:
            ValueError: the file is not in SGLang's format.
            SpecplugError: no proposer accepts corpora.
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
        """Add a corpus; SGLang calls this on a separate thread and returns exceptions to the client."""
        if self.corpora is None:
            return 0
        documents = documents_of(taken(token_chunks))
        if not documents:  # SGLang stops before a document that is too long
            most = f"a text, {self.corpora.max_tokens} tokens at most"
            raise refused("nothing to add", "no text, or one that is too long", most, self.corpora.raise_limit)
        if self.device.type == "cpu":
            return self.corpora.add(corpus_id, documents)
        with torch.get_device_module(self.device).device(self.model_runner.gpu_id):  # threads start on device 0
            return self.corpora.add(corpus_id, documents)

    def commit_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Do nothing: `add_external_corpus` has already put the corpus in place."""

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Remove a corpus; called between two steps."""
        if self.corpora is not None:
            self.corpora.remove(corpus_id)

    def list_external_corpora(self) -> dict[str, int]:
        """Return the size of each corpus; called between two steps."""
        return {} if self.corpora is None else self.corpora.sizes()


def limit(spec: Any, settings: Settings) -> tuple[int, str]:
    """Return the most tokens that all corpora may have together, and the remedy when they exceed it.

    SGLang's flag bounds the memory of its own n-gram proposer.  specplug's setting applies unless the flag is set.

    Args:
        spec: SGLang's settings of speculation.
        settings: specplug's.
    """
    flag = int(getattr(spec, LIMIT_FIELD))
    if flag != _flag_default():
        return flag, f"Set {LIMIT_FLAG}"
    return settings.corpora.max_tokens, "Set corpora.max_tokens in SPECPLUG_CONFIG"


@functools.cache
def _flag_default() -> int:
    from sglang.srt.server_args import ServerArgs

    return int(inspect.signature(ServerArgs).parameters[LIMIT_FIELD].default)
