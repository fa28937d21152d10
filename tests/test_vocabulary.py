"""Identifiers use the field's terms: no private word of the list below is part of one."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

TERMS = {
    "law": "distribution", "laws": "distributions",
    "width": "draft_length", "widths": "draft_lengths",
    "behind": "after",
    "told": "reported", "said": "status", "asked": "requested", "heard": "received",
    "seat": "slot", "seats": "slots", "resident": "running_request", "residents": "running_requests",
    "filler": "padding",
    "shelf": "corpus_index", "shelves": "corpus_indexes", "stock": "load, or baseline of an engine",
    "luck": "hit_rate", "ballot": "candidate_vote", "ballots": "candidate_votes",
    "opening": "prefix", "openings": "prefixes", "beginnings": "prefixes", "usual": "default, or canonical",
    "mend": "workaround", "mends": "workarounds", "notes": "metadata",
    "desk": "corpus_admin",
    "abreast": "interleaved", "ahead": "prefetch", "lent": "borrowed", "lend": "borrow", "lean": "fast_path",
    "foreign": "external", "lane": "cursor", "lanes": "cursors",
    "nobody": "empty, or idle", "widest": "longest", "doors": "hooks",
    "breathe": "yield_gil", "breath": "yield", "breaths": "yields", "crowded": "places_per_tree",
    "lucks": "hit_rates", "shelved": "from_corpus", "spoken": "predictions", "untold": "unreported",
    "dress": "wrap", "dressed": "wrapped", "restock": "load", "everybody": "shared", "misfit": "wrong_size",
    "desks": "services", "comfort": "optional",
}  # fmt: skip
"""Private words and the terms to use; words that are plain English in prose are free there."""

NAMES = {
    "Places": "SlotAllocator", "Library": "StoreWatcher", "Planning": "StepPlanner", "Bench": "Workspace",
    "StopWatch": "StopDetector", "Say": "Prediction", "Outcomes": "Outcome",
}  # fmt: skip
"""Private names of classes."""

ELSEWHERE = {
    "specplug/tools/cli/output.py": {"width"},  # of a terminal and its columns
    "tests/tools/cli/test_list_doctor.py": {"width"},  # of a terminal
    "tests/policies/test_batch_ragged.py": {"width"},  # of Hypothesis's floats
    "examples/serving_demo.py": {"width"},  # of a terminal
    "examples/models": {"width"},  # of a model
    "adapters/specplug_vllm": {"widest"},  # these names are still to change
    "adapters/specplug_sglang/scheduler": {"widest"},
    "adapters/specplug_sglang/verification": {"widest"},
    "specplug/text/tokenizers.py": {"Library"},  # the tokenizers library
    "tests/engines/sglang_cpu": {"Library"},  # of PyTorch operators
    "tests/engines/plugins/specplug_testkit/tiny_model.py": {"width"},
}
"""Words that are another library's in a file or folder, mean something else there, or are still to change."""


FOLDERS = ("specplug", "proposers", "policies", "adapters", "tests", "examples", "benchmarks")


def files() -> list[str]:
    found = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if not path.is_symlink())
    return [path.relative_to(ROOT).as_posix() for path in found]


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines and identifiers of a file; names of tests, which are sentences, and Python's own are left out."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_name = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
        if is_name and not token.string.startswith(("test_", "__")):
            yield token.start[0], token.string


def private(name: str, source: str) -> list[str]:
    """Return where a file uses a private word, and what to write."""
    allowed = {word for place, words in ELSEWHERE.items() if name.startswith(place) for word in words}
    found = []
    for line, identifier in identifiers(source):
        if identifier in NAMES.keys() - allowed:
            found.append(f"{name}:{line}: {identifier}: write {NAMES[identifier]}")
        for word in {part.lower() for part in WORD.findall(identifier)} & TERMS.keys() - allowed:
            found.append(f"{name}:{line}: {identifier}: for {word!r} write {TERMS[word]}")
    return found


def test_identifiers_use_the_fields_terms():
    found = [line for name in files() for line in private(name, (ROOT / name).read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line", ["max_width = 3", "widest = max(lengths)", "class DraftLaw: ...", "self.TOLD = 1", "x = Places()"]
)
def test_private_words_are_found(line):
    assert private("a.py", line)
