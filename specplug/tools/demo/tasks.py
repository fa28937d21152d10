"""Tasks typical for speculative decoding, made from real files, with their correct answers.

Training, evaluation and the demo share these formats, so prompts match those of training.  A prompt is plain text; its
markers are single tokens of the shipped tokenizers, so that `tokenizer(prompt)` needs no template and no special flags:

    edit   <|document|>CODE<|edit|>three lines of it, the middle one changed<|answer|>
    quote  <|document|>name: text <|document|>name: text ... <|quote|>first words<|answer|>
    json   <|document|>field: "value" ... <|json|>{"name": "X", "line": null, ...}<|answer|>
    code   <|code|>the beginning of an excerpt
"""

from __future__ import annotations

import json
import keyword
import math
import random
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from specplug.tools.demo.sources import DocumentedDefinition, SourceFile, Split, definitions, source_files

Kind = Literal["edit", "quote", "json", "code"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CLOSED = ("edit", "quote", "json")

EDIT = "<|edit|>"
QUOTE = "<|quote|>"
JSON = "<|json|>"
CODE = "<|code|>"
DOCUMENT = "<|document|>"
ANSWER = "<|answer|>"
END = "<|end|>"
MARKERS = (END, EDIT, QUOTE, JSON, CODE, DOCUMENT, ANSWER)
"""Every marker; `END` is the end-of-sequence token and never part of a prompt or an answer."""

MAX_CHARS = 600
"""Default limit on the material a task is made from, in characters (about three a token)."""

MIN_CHARS = 100
_CHATS = Path(__file__).with_name("chats.jsonl")
_FIRST_CHAT = "first"
_ATTEMPTS = 10_000
_IDENTIFIER = re.compile(r"\b[A-Za-z_][A-Za-z_]{2,23}\b")


@dataclass(frozen=True)
class Task:
    """A prompt and the text that should follow it; for `code`, the text that did follow it.

    Attributes:
        kind: one of `KINDS`, or a kind of chat.
    """

    kind: str
    prompt: str
    answer: str

    def is_correct(self, text: str) -> bool | None:
        """Return whether generated text is correct; `None` for code and chats, which have no single correct answer.

        Edits and quotes must match exactly except for trailing white space.  JSON must parse to the
        same values.
        """
        if self.kind not in CLOSED:
            return None
        if self.kind == "json":
            try:
                return bool(json.loads(text) == json.loads(self.answer))
            except ValueError:
                return False
        return text.rstrip() == self.answer


def make_tasks(kind: Kind, split: Split, count: int, seed: int = 0, *, max_chars: int = MAX_CHARS) -> list[Task]:
    """Make `count` tasks of one kind from one split; the same arguments give the same tasks.

    The shipped models saw the files of the split "train", and never those of "held-out".  Lengths are log-uniform up to
    `max_chars`; of many tasks two may have an excerpt in common.  An unknown kind, or a limit that is too small, raises
    ValueError, and files that do not yield such tasks RuntimeError.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown task kind {kind!r}; expected one of {', '.join(KINDS)}")
    if max_chars < 2 * MIN_CHARS:
        raise ValueError(f"max_chars is {max_chars}; expected at least {2 * MIN_CHARS}")
    rng = random.Random(f"{kind}/{split}/{seed}")
    make = _MAKERS[kind]
    tasks: list[Task] = []
    for _ in range(_ATTEMPTS + 100 * count):
        if len(tasks) >= count:
            return tasks
        task = make(rng, split, max_chars)
        if task is not None:
            tasks.append(task)
    raise RuntimeError(f"the {split} files yield only {len(tasks)} of {count} {kind} tasks")


def chat_tasks(each: int) -> tuple[Task, list[Task]]:
    """Return one chat to begin with, and at most `each` of every kind: the kinds one after the other.

    Chats are for models with a chat template, and have no single right answer.
    """
    rows = [json.loads(line) for line in _CHATS.read_text(encoding="utf-8").splitlines()]
    tasks = [Task(row["kind"], row["prompt"], answer="") for row in rows]
    [first] = [task for task in tasks if task.kind == _FIRST_CHAT]
    kinds = dict.fromkeys(task.kind for task in tasks if task is not first)
    return first, [task for kind in kinds for task in [it for it in tasks if it.kind == kind][:each]]


def _edit(rng: random.Random, split: Split, max_chars: int) -> Task | None:
    """Make a task of applying a snippet: one line with a name exchanged, between its unchanged neighbours.

    Editors apply a model's suggestion to a file in this way.  The neighbours occur only once in the
    excerpt, so that they identify the line.
    """
    file = rng.choice(source_files(split))
    lines = _excerpt(rng, file, max_chars).split("\n")
    middles = [
        i
        for i in range(1, len(lines) - 1)
        if _identifiers(lines[i]) and _is_landmark(lines[i - 1], lines) and _is_landmark(lines[i + 1], lines)
    ]
    if not middles:
        return None
    middle = rng.choice(middles)
    old = rng.choice(_identifiers(lines[middle]))
    new = _new_name(rng, split, old)
    if new == old:
        return None
    edited = list(lines)
    edited[middle] = re.sub(rf"\b{re.escape(old)}\b", new, lines[middle])
    snippet = "\n".join(edited[middle - 1 : middle + 2])
    document = "\n".join(lines)
    answer = "\n".join(edited)
    return Task("edit", f"{DOCUMENT}{document}{EDIT}{snippet}{ANSWER}", answer)


def _is_landmark(line: str, lines: list[str]) -> bool:
    """Return whether a line has some letters and occurs only once among the lines."""
    return sum(map(str.isalpha, line)) >= 5 and lines.count(line) == 1


def _quote(rng: random.Random, split: Split, max_chars: int) -> Task | None:
    """Make a task of repeating the one of several documentation passages that begins with certain words."""
    wanted = _length(rng, max_chars)
    passages: dict[str, str] = {}  # from text to name
    while sum(map(len, passages)) < wanted and len(passages) < 8:
        drawn = _passage(rng, split, max_chars // 2)
        if drawn is None:
            return None
        name, text = drawn
        passages[text] = name
    if sum(map(len, passages)) > max_chars:
        return None
    answer = rng.choice(list(passages))
    first_words = " ".join(answer.split()[: rng.randint(3, 5)])
    documents = "".join(f"{DOCUMENT}{name}: {text}" for text, name in passages.items())
    if first_words == answer or documents.count(first_words) > 1:
        return None
    return Task("quote", f"{documents}{QUOTE}{first_words}{ANSWER}", answer)


def _json(rng: random.Random, split: Split, max_chars: int) -> Task | None:
    """Make a task of writing one of one to three records as JSON of a given form."""
    wanted = rng.randint(1, 3)
    records: dict[str, dict[str, str | int]] = {}
    for _ in range(wanted):
        file = rng.choice(source_files(split))
        found = definitions(file)
        if found:
            definition = rng.choice(found)
            records[definition.name] = _record(file, definition)
    if not records:
        return None
    documents = "".join(f"{DOCUMENT}{_record_text(rng, record)}" for record in records.values())
    if len(documents) > max_chars or "\\" in documents:
        return None
    name, record = rng.choice(list(records.items()))
    fields = rng.sample([field for field in record if field != "name"], rng.randint(2, 4))
    form = json.dumps({"name": name, **dict.fromkeys(fields)})
    answer = json.dumps({"name": name, **{field: record[field] for field in fields}}, indent=2)
    return Task("json", f"{documents}{JSON}{form}{ANSWER}", answer)


def _code(rng: random.Random, split: Split, max_chars: int) -> Task | None:
    """Make a task by cutting an excerpt at a line end about half-way; the rest is one possible answer."""
    lines = _excerpt(rng, rng.choice(source_files(split)), max_chars).splitlines(keepends=True)
    cut = len(lines) // 2
    if cut < 2:
        return None
    return Task("code", CODE + "".join(lines[:cut]), "".join(lines[cut:]))


_MAKERS: dict[Kind, Callable[[random.Random, Split, int], Task | None]] = {
    "edit": _edit,
    "quote": _quote,
    "json": _json,
    "code": _code,
}


def _length(rng: random.Random, max_chars: int) -> int:
    """Draw a length in characters, log-uniform, so that short material is as common as long."""
    return int(math.exp(rng.uniform(math.log(MIN_CHARS), math.log(max_chars))))


def _excerpt(rng: random.Random, file: SourceFile, max_chars: int) -> str:
    """Return consecutive dedented lines of the file, or an empty text if they are unsuitable."""
    lines = file.text.expandtabs().splitlines()
    start = rng.randrange(len(lines))
    wanted = _length(rng, max_chars)
    end = start
    size = 0
    while end < len(lines) and size < wanted:
        size += len(lines[end]) + 1
        end += 1
    chosen = [line.rstrip() for line in lines[start:end]]
    text = textwrap.dedent("\n".join(chosen)).strip("\n")
    suits = text.isascii() and "<|" not in text
    return text if suits and MIN_CHARS // 2 <= len(text) <= max_chars else ""


def _identifiers(text: str) -> list[str]:
    """Return the distinct names in a text in order, except keywords and dunder names."""
    names = dict.fromkeys(_IDENTIFIER.findall(text))
    return [n for n in names if not keyword.iskeyword(n) and not n.startswith("__")]


@lru_cache(maxsize=2048)
def _file_identifiers(file: SourceFile) -> list[str]:
    return _identifiers(file.text)


def _new_name(rng: random.Random, split: Split, old: str) -> str:
    """Return the old name with a prefix, or a name from another file of the split."""
    if rng.random() < 0.4:
        return rng.choice(("new", "my", "the", "local", "other", "base")) + "_" + old
    names = _file_identifiers(rng.choice(source_files(split)))
    return rng.choice(names) if names else f"new_{old}"


def _passage(rng: random.Random, split: Split, max_chars: int) -> tuple[str, str] | None:
    """Return the name of a random definition and one paragraph of its documentation."""
    for _ in range(50):
        found = definitions(rng.choice(source_files(split)))
        if not found:
            continue
        definition = rng.choice(found)
        text = rng.choice(definition.paragraphs)
        if 40 <= len(text) <= max_chars and "<|" not in text:
            return definition.name, text
    return None


def _record(file: SourceFile, definition: DocumentedDefinition) -> dict[str, str | int]:
    return {
        "name": definition.name,
        "module": file.module,
        "kind": definition.kind,
        "line": definition.line,
        "arguments": definition.arguments,
        "summary": definition.paragraphs[0],
    }


def _record_text(rng: random.Random, record: dict[str, str | int]) -> str:
    """Write a record as `field: value` lines: the name first, the others in random order.

    Texts are quoted, so that their tokens are the same as in the answer.
    """
    fields = rng.sample(list(record)[1:], len(record) - 1)
    return "\n".join(f"{field}: {json.dumps(record[field])}" for field in ("name", *fields))
