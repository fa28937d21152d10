"""Public functions are named in the field's words: by an allowed verb, by what they ask, or by the noun they return."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("specplug", "proposers", "policies", "adapters")


def words(text: str) -> set[str]:
    return set(text.split())


VERBS = words("""
abort accept activate add admit advance allocate allow announce answer append apply ask assert assign attach audit
begin bench build cache calibrate call capture check choose clean clear close collect commit compare compile complete
compose connect copy count create cut decode describe detach discard discover draft drop encode end execute explain
export extend feed find finish fit flatten flush follow forecast forget forward free gather generate get grow guard
handle hook ignore ingest init inspect install intersect join judge jump keep launch learn leave limit list load log
make match measure merge move observe open pack pad parse pick plan preempt prepare print probe propose put quote read
record refresh refuse register release remember remove replace replay report require resend reserve reset resolve
restart resume rollback run sample sanitize save scan schedule search send serve set settle share shift shorten show
shut splice split start step stop store stream submit suggest summarise sync take tokenize train trim try update use
validate verify vote wait warm warmup watch wrap write yield
""")
"""What a function does."""

QUESTIONS = words("is are has was can may needs takes learns applies fits admits covers knows")
"""What a function asks."""

CONVERSIONS = words("test as at by from in of on to with without specplug")
"""``as_dict``, ``from_plain``, ``with_client``; ``on_event`` and ``specplug_register`` are hooks."""

NOUNS = words("""
acceptance access advice alphabet ancestor anchor answer app args argument backend barrier batch bit body budget
buffer byte cap case ceiling chain character check checksum child children chunk class client command confidence
console context continuation control core corpora corpus cost count counter curve decision decoder definition demo
description detail device difference digest distribution doctor document draft drafter driver dtype encoder engine
entry environment error event evidence excerpt excess expansion exporter factor fault field figure file fingerprint
flag folder form gain gap generation grammar graph group growth hash hint horizon id identity import info intake
invariant kernel key kind label launch layout leaf leaves legend length level library limit line log2 logit logprob
manifest mapping mask match matches mean memory message method metric mistake mode model module name node noise number
object option order outcome output owner page pair parameter parent parser part path piece pipeline plan planner
plugin point policy pool position power prediction preemption prefill prefix prob probability problem process
processor profile progress prompt proposer query rank rate ratio reader reason refusal registry remedy report request
reset result role room root route row runner sampling scheduler schema score seam second section seed server setting
share size slot snapshot source span speculation speedup start state statistic stats status stem step stop store
stream sum survival table tally target task tau temperature tenant tensor test text threshold time title token
tokenizer tolerance total totals traceback tree trimmer type uniform value verdict verification verifier version view
vocab vocabulary waste weight width window worker
""")
"""What a function returns, also in the plural."""

COUNTS = words("accepted cached drafted emitted never_verified proposed rejected tested verified wasted")
"""Counts of draft tokens, as metrics name them."""

PREPOSITIONS = {"of", "in", "for", "at", "by", "after", "from"}

STILL_TO_CHANGE = 241
"""Number of names in other words; it may only become smaller."""


def public_functions(source: str) -> Iterator[str]:
    """Yield the names of a file's public functions and of its public classes' public methods."""
    waiting = [ast.parse(source)]
    for node in waiting:
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.ClassDef) and not inner.name.startswith("_"):
                waiting.append(inner)  # type: ignore[arg-type]
            elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)) and not inner.name.startswith("_"):
                yield inner.name


def is_in_the_fields_words(name: str) -> bool:
    """Return whether a name begins with a verb, asks or converts, or ends with the noun that is returned."""
    if name.partition("_")[0] in VERBS | QUESTIONS | CONVERSIONS or name in COUNTS:
        return True
    parts = name.split("_")
    noun = parts[-2] if len(parts) > 1 and parts[-1] in PREPOSITIONS else parts[-1]
    singular = {noun, noun.removesuffix("s"), noun.removesuffix("es"), noun.removesuffix("ies") + "y"}
    return not singular.isdisjoint(NOUNS)


def other_names() -> dict[str, list[str]]:
    """Return the names in other words, by room."""
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            room = "/".join(file.relative_to(ROOT).parts[:2])
            names = public_functions(file.read_text("utf-8"))
            found.setdefault(room, set()).update(name for name in names if not is_in_the_fields_words(name))
    return {room: sorted(names) for room, names in found.items()}


def test_public_functions_are_named_in_the_fields_words():
    names = other_names()
    assert sum(map(len, names.values())) <= STILL_TO_CHANGE, names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(
            (name, True)
            for name in words("parse_fields is_encoded with_client digest policies corpus_totals tenant_of")
        ),
        *((name, False) for name in words("handed tell hold lacking most_held told_of")),
    ],
)
def test_other_words_are_found(name: str, expected: bool):
    assert is_in_the_fields_words(name) is expected


def test_private_names_are_free():
    classes = "class _Heat:\n    def handed(self): ...\nclass Draft:\n    def _fate(self): ...\n    def hold(self): ..."
    assert list(public_functions(f"def told(): ...\n{classes}")) == ["told", "hold"]
