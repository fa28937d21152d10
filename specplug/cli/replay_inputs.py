"""Inputs of `specplug replay`: tokenised traces, and distractor corpora made from other workloads' prompts."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specplug.cli.output import console
from specplug.errors import SettingsError, suggest

if TYPE_CHECKING:
    from specplug.replay.matrix import Distractors, Traces
    from specplug.replay.traces_io import Item
    from specplug.text.tokenizers import Tokenizer


class Inputs(NamedTuple):
    """Inputs of a replay.

    Attributes:
        items: the tokenised requests of each workload.
        distractors: corpora of other workloads' prompts, for each workload.
        vocab_size: vocabulary size of the tokenizer.
        tokenizer: name of the tokenizer.
    """

    items: Traces
    distractors: Distractors
    vocab_size: int
    tokenizer: str


def read(
    paths: Sequence[Path],
    wanted: Sequence[str],
    tokenizer: str | None,
    *,
    limit: int | None,
    cut_documents: bool,
    distractors: int,
    quiet: bool,
) -> Inputs:
    """Read and tokenise the traces.

    Args:
        paths: files or folders of traces.
        wanted: names of workloads, separated by commas; none: all.
        tokenizer: name or path; None: Tekken if it is installed.
        limit: most requests of a workload.
        cut_documents: cut the documents out of the prompts.
        distractors: number of corpora of other workloads' prompts, for each workload.
        quiet: show no progress.

    Raises:
        SpecplugError: a name or a trace is wrong, or there is too little for the distractors.
    """
    from specplug.replay.items import tokenize, vocab_size_for
    from specplug.replay.traces_io import read_traces, without_documents
    from specplug.text.loading import load_tokenizer

    everything: dict[str, list[Item]] = {}
    for path in paths:
        for workload, found in read_traces(path).items():
            everything.setdefault(workload, []).extend(found)
    names = [name.strip() for each in wanted for name in each.split(",")] or list(everything)
    for name in names:
        if name not in everything:
            raise SettingsError.build(f"unknown workload {name!r}", who="--workloads", remedy=suggest(name, everything))
    texts = {name: found[:limit] for name, found in everything.items() if name in names}
    if cut_documents:
        texts = {name: [without_documents(item) for item in found] for name, found in texts.items()}
    loaded = load_tokenizer(tokenizer or _default_tokenizer())
    with progress(quiet=quiet) as bar:
        task = bar.add_task(f"tokenising ({loaded.fingerprint.name})", total=sum(map(len, texts.values())))
        items = {name: tokenize(found, loaded, lambda done: bar.advance(task)) for name, found in texts.items()}
    size = max(vocab_size_for(found, loaded) for found in items.values())
    return Inputs(items, _distractors(everything, texts, distractors, loaded), size, loaded.fingerprint.name)


def progress(*, quiet: bool) -> Progress:
    """Return a progress bar on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console(stderr=True), disable=quiet)


def _distractors(
    everything: Mapping[str, Sequence[Item]], workloads: Mapping[str, object], count: int, loaded: Tokenizer
) -> Distractors:
    """Return for each workload corpora of the others' prompts, unmodified and regardless of the limit."""
    from specplug.replay.corpora import distractors

    if not count:
        return {}
    prompts = {name: [loaded.encode(item.prompt) for item in found] for name, found in everything.items()}
    return {name: distractors([prompts[other] for other in prompts if other != name], count) for name in workloads}


def _default_tokenizer() -> str:
    return "tiny" if importlib.util.find_spec("mistral_common") is None else "tekken"
