"""Recorded items: JSON lines with a prompt and a target's output, the same as token ids, and corpora made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specplug.corpus.documents import Document
from specplug.corpus.store import Store
from specplug.errors import SettingsError, TraceError
from specplug.text.fingerprint import Fingerprint
from specplug.text.retokenized import normalized
from specplug.text.tokenizers import Tokenizer

Ids = npt.NDArray[np.int32]

Corpora: TypeAlias = Mapping[str, Sequence[Ids]]
"""Documents, each [n] int32, by corpus name."""

DOCUMENTS = "documents"
"""Name of the corpus of the requests' own documents."""

DISTRACTOR_TOKENS = 30_000
"""Most tokens of one distractor corpus."""


class Item(BaseModel):
    """One recorded request, whose id is unique within a file.  Further fields are ignored.

    Figures are kept per workload, the kind of task.  The prompt was made from the documents, which a request may name
    as references.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    id: str = Field(min_length=1)
    workload: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    documents: tuple[str, ...] = Field(default=(), strict=False)
    output: str


def read_traces(*paths: Path | str) -> dict[str, list[Item]]:
    """Read files, or all `*.jsonl` of folders by name; return the items of each workload in file order.

    No items, or a line that is none, raise `TraceError`, which names the file, the line and the defect.
    """
    workloads: dict[str, list[Item]] = {}
    for path in map(Path, paths):
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        items = [item for file in files for item in _read_file(file)]
        if not items:
            raise TraceError.build("no items", who=str(path), expected="a .jsonl file, or a folder with some, of items")
        for item in items:
            workloads.setdefault(item.workload, []).append(item)
    return workloads


def without_documents(item: Item) -> Item:
    """Return an item whose documents are cut out of its prompt, so that only references or corpora hold their text.

    A document that is not in the prompt verbatim, ignoring space around it, raises `TraceError`.
    """
    prompt = item.prompt
    for number, document in sorted(enumerate(item.documents), key=lambda each: -len(each[1])):
        text = document if document in item.prompt else document.strip()
        if text not in item.prompt:
            what = "a document cannot be cut out of its prompt"
            who = f"item {item.id!r}, document {number}"
            raise TraceError.build(what, who=who, found="other text in the prompt", expected="the document as it is")
        if text:
            prompt = prompt.replace(text, "")
    return item.model_copy(update={"prompt": prompt})


def _read_file(file: Path) -> Iterator[Item]:
    seen: dict[str, int] = {}
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    item = _parse(line, file, number)
                    if item.id in seen:
                        found = f"{item.id!r} again, first on line {seen[item.id]}"
                        raise TraceError.build("duplicate id", who=f"{file}, line {number}", found=found)
                    seen[item.id] = number
                    yield item
    except OSError as error:
        expected = "a readable .jsonl file or folder"
        raise TraceError.build("cannot read traces", who=str(file), found=error.strerror, expected=expected) from error


def _parse(line: bytes, file: Path, number: int) -> Item:
    try:
        return _chat(line, file, number) or Item.model_validate_json(line)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, item['loc'])) or 'the line'}: {item['msg']}" for item in error.errors()]
        expected = "a JSON object with id, workload, prompt, documents and output, or with OpenAI's messages, of which"
        expected += " the last is the assistant's"
        who = f"{file}, line {number}"
        raise TraceError.build("no item of a trace", who=who, found="; ".join(wrong), expected=expected) from error


def _chat(line: bytes, file: Path, number: int) -> Item | None:
    """Return the item of a line that logs an OpenAI chat, or None for other lines.

    The prompt is the text of the messages before the assistant's last one, without a template's markers.
    """
    try:
        log = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(log, dict) or "prompt" in log or not isinstance(log.get("messages"), list) or not log["messages"]:
        return None
    *before, last = log["messages"]
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return None
    return Item(
        id=str(log.get("id") or number),
        workload=str(log.get("workload") or file.stem),
        prompt="\n\n".join(filter(None, map(_text, before))),
        output=_text(last),
    )


def _text(message: Any) -> str:
    """Return the text of a chat message: its content, or the texts among the content's parts."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


@dataclass(frozen=True, slots=True, eq=False)
class TokenItem:
    """A recorded item as token ids; all arrays are [n] int32 and read-only.

    The output ends with the tokenizer's EOS; its first token comes from prefill.
    """

    id: str
    prompt: Ids
    documents: tuple[Ids, ...]
    output: Ids


def tokenize(
    items: Iterable[Item], tokenizer: Tokenizer, advance: Callable[[], None] = lambda: None
) -> list[TokenItem]:
    """Return items as token ids; `advance` is called after each.

    A tokenizer that names no token that ends an output raises `SettingsError`.
    """
    if tokenizer.eos_id is None:
        raise SettingsError.build(
            "no end-of-sequence token",
            who=f"tokenizer {tokenizer.fingerprint.name!r}",
            expected="'eos_token' in its tokenizer_config.json, naming a token of the vocabulary",
        )
    done: list[TokenItem] = []
    for item in items:
        documents = tuple(_frozen(tokenizer.encode(normalized(document))) for document in item.documents)
        output = _frozen(np.append(tokenizer.encode(item.output), np.int32(tokenizer.eos_id)))
        done.append(TokenItem(item.id, _frozen(tokenizer.encode(item.prompt)), documents, output))
        advance()
    return done


def vocab_size_for(items: Sequence[TokenItem], tokenizer: Tokenizer) -> int:
    """Return the vocabulary's size, or more if the items hold ids beyond the tokenizer's count."""
    largest = max((int(ids.max()) for item in items for ids in (item.prompt, item.output) if ids.size), default=0)
    return max(tokenizer.fingerprint.vocab_size, largest + 1)


def _frozen(ids: Ids) -> Ids:
    ids.flags.writeable = False
    return ids


def distinct_documents(documents: Iterable[Ids]) -> list[Ids]:
    """Return the non-empty documents in order, without duplicates."""
    return list({document.tobytes(): document for document in documents if document.size}.values())


def corpora_of(
    items: Sequence[TokenItem], *, documents: bool, distractors: Sequence[Sequence[Ids]] = ()
) -> dict[str, list[Ids]]:
    """Return the corpora for a workload: with `documents` one of all requests' documents, and then the distractors."""
    found = {f"distractor {number}": distinct_documents(texts) for number, texts in enumerate(distractors, 1)}
    if documents:
        found = {DOCUMENTS: distinct_documents(text for item in items for text in item.documents), **found}
    return {name: texts for name, texts in found.items() if texts}


def distractor_corpora(others: Iterable[Iterable[Ids]], count: int) -> tuple[tuple[Ids, ...], ...]:
    """Return `count` corpora unrelated to a workload, made of the prompts of each other workload.

    Prompts are taken from each of the others in turn, and each goes to the smallest corpus, until each has about
    `DISTRACTOR_TOKENS` tokens.  The same arguments give the same corpora. Fewer prompts than corpora raise
    `SettingsError`.
    """
    corpora: list[list[Ids]] = [[] for _ in range(count)]
    sizes = [0] * count
    for prompt in distinct_documents(prompt for each in zip_longest(*others) for prompt in each if prompt is not None):
        smallest = min(sizes, default=DISTRACTOR_TOKENS)
        if smallest == DISTRACTOR_TOKENS:
            break
        at = sizes.index(smallest)
        corpora[at].append(prompt[: DISTRACTOR_TOKENS - smallest])
        sizes[at] += corpora[at][-1].size
    if not all(corpora):
        found = f"prompts for {sum(map(bool, corpora))}"
        expected = f"at least {count}, in other workloads"
        remedy = "Give traces with more workloads, or ask for fewer distractors"
        raise SettingsError.build(
            "too few prompts to make distractors of", found=found, expected=expected, remedy=remedy
        )
    return tuple(map(tuple, corpora))


@contextmanager
def temporary_store(corpora: Corpora) -> Iterator[str | None]:
    """Write corpora to a store, which exists within the context; yields its path, or None if there are no corpora."""
    if not corpora:
        yield None
        return
    with TemporaryDirectory(prefix="specplug-replay-") as folder:
        store = Store.create(f"{folder}/store", Fingerprint("of the traces", "unknown", 2**31 - 1))
        for name, documents in corpora.items():
            store.add(name, (Document(str(number), ids) for number, ids in enumerate(documents)))
        yield str(store.root)
