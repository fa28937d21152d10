"""Questions of a retrieval pipeline with their correct answers, over documents from Python's own standard library.

Three situations differ in the content that the retrieved texts add to the prompt, see docs/rag.md:

    records   The store holds records as JSON.  The prompt shows the best one as lines, `field: value`, as pipelines
              render what they found; the answer is JSON again, some of the fields.  The retrieved records are the
              references: what the answer copies, in its own form, from outside the prompt.
    answers   The store also keeps earlier answers, about other records.  Those to questions like this one are the
              references: the form of the answer, not its content.
    quote     The retrieved passage is in the prompt, word for word, and the answer quotes it: nothing to gain.

No store holds an answer that is asked for in the first two.  The files are those that the shipped models never saw.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from functools import cache

from rag_client import Passages

from specplug.tools.demo.sources import definitions, source_files
from specplug.tools.demo.tasks import ANSWER, DOCUMENT, JSON, MAX_CHARS, QUOTE, Task

SITUATIONS = ("records", "answers", "quote")
FORMS = (("module", "line", "summary"), ("kind", "arguments", "summary"))
"""The fields that the pipeline's callers request, in addition to the name."""
FOUND = 4
EARLIER = 60

Record = dict[str, str | int]


@dataclass(frozen=True)
class Question(Task):
    """One request of the pipeline: its prompt holds the best text that was retrieved.

    Attributes:
        references: the retrieved texts, the best first.
        is_found: whether the text in the prompt is the right one.
    """

    references: tuple[str, ...]
    is_found: bool

    @property
    def names(self) -> list[str]:
        """Return the names of the retrieved texts in a store."""
        return [name(text) for text in self.references]


@cache
def records() -> tuple[Record, ...]:
    """Return one record for each name that the library's documentation describes once."""
    found: dict[str, list[Record]] = {}
    for file in source_files("held-out"):
        for one in definitions(file):
            record: Record = {"name": one.name, "module": file.module, "kind": one.kind, "line": one.line}
            record |= {"arguments": one.arguments, "summary": one.paragraphs[0]}
            found.setdefault(one.name, []).append(record)
    single = [same[0] for same in found.values() if len(same) == 1]
    return tuple(one for one in single if len(as_lines(one)) < MAX_CHARS and "\\" not in as_lines(one))


def as_lines(record: Record) -> str:
    """Render a record for a prompt."""
    return "\n".join(f"{field}: {json.dumps(value)}" for field, value in record.items())


def as_json(record: Record, fields: tuple[str, ...] | None = None) -> str:
    """Write a record as in the store, or some of its fields as in an answer."""
    return json.dumps({name: record[name] for name in ("name", *fields)} if fields else record, indent=2)


def name(text: str) -> str:
    """Return a name for a text, derived from its contents."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def store(situation: str, seed: int = 0) -> tuple[str, ...]:
    """Return the texts that the retriever searches, for references, in one situation."""
    if situation == "quote":
        return tuple(f"{record['name']}: {record['summary']}" for record in records())
    if situation == "records":
        return tuple(map(as_json, records()))
    rng = random.Random(f"answers/{seed}")
    return tuple(as_json(record, rng.choice(FORMS)) for record in rng.sample(records(), EARLIER))


@cache
def _index(situation: str, seed: int = 0) -> Passages:
    return Passages(store(situation, seed))


def questions(situation: str, count: int, seed: int = 0) -> list[Question]:
    """Make `count` questions and retrieve texts for them, reproducibly for the same arguments and library."""
    rng = random.Random(f"{situation}/{seed}")
    answered = {json.loads(text)["name"] for text in store("answers", seed)}
    fresh = [record for record in records() if record["name"] not in answered]
    make = _quote if situation == "quote" else _filled
    return [make(rng, record, situation, seed) for record in rng.sample(fresh, count)]


def _filled(rng: random.Random, record: Record, situation: str, seed: int) -> Question:
    fields = rng.choice(FORMS)
    requested = f"The {', '.join(fields)} of {record['name']}?"
    found = _index("records").find(requested, FOUND)
    best = json.loads(found[0])
    form = json.dumps({"name": record["name"], **dict.fromkeys(fields)})
    prompt = f"{DOCUMENT}{as_lines(best)}{JSON}{form}{ANSWER}"
    used = found if situation == "records" else _index("answers", seed).find(requested, FOUND)
    return Question("json", prompt, as_json(record, fields), tuple(used), best == record)


def _quote(rng: random.Random, record: Record, situation: str, seed: int) -> Question:
    text = str(record["summary"])
    first_words = " ".join(text.split()[: rng.randint(3, 5)])
    found = _index(situation).find(f"{record['name']} {first_words}", FOUND)
    prompt = f"{DOCUMENT}{found[0]}{QUOTE}{first_words}{ANSWER}"
    return Question("quote", prompt, text, tuple(found), found[0] == f"{record['name']}: {text}")
