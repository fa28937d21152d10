"""The standing test's table: what becomes of each field of an engine's requests when drafts are verified.

An engine's `test_fields.py` has one `Row` for every field of the engine's own definitions, and `assert_complete` fails
when a newer engine defines a field without a row.  Each row runs in `Situation`s beside the same engine without
specplug, and says what is right there:

    equal      the answer is the control's: text, ids, log-probabilities, usage and reasons
    undrafted  the same, and nothing is verified for the request: its drafts could not be exact
    refused    the request fails, with an error that names the field, on the server with specplug alone
    no text    the field cannot change an answer; `why` says what it does instead

A row of the first two kinds counts only if its control's answer differs from the one without the field.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Fate = Literal["equal", "undrafted", "refused", "no text"]


@dataclass(frozen=True)
class Row:
    """What becomes of one field.

    Attributes:
        name: the field's, as the engine defines it.
        given: parameters of a request that uses it, others that it needs included.
        fate: see above.
        why: for all fates but "equal", the reason, in words for a user.
        base: parameters of the request that the answer must differ from; by default none.
        prompt: a key of the engine's prompts.
    """

    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    fate: Fate = "equal"
    why: str = ""
    base: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = "edit"

    def __post_init__(self) -> None:
        assert bool(self.why) == (self.fate != "equal"), f"{self.name}: {self.fate} and {self.why!r}"


@dataclass(frozen=True)
class Situation:
    """How a row's request meets the engine.

    Attributes:
        draft: whether the oracle's drafts are right as a whole, or wrong at every second token.
        company: whether another request, of another row, runs in the same steps.
        prompt: whether the prompt is computed in one step or in several.
        stop: whether the answer is stopped inside a draft, by a token, or runs to its own end.
    """

    draft: Literal["right", "wrong"]
    company: Literal["alone", "beside"]
    prompt: Literal["whole", "chunks"]
    stop: Literal["end", "inside"]

    def __str__(self) -> str:
        return f"{self.draft}-{self.company}-{self.prompt}-{self.stop}"


SITUATIONS = tuple(
    Situation(*each)
    for each in itertools.product(("right", "wrong"), ("alone", "beside"), ("whole", "chunks"), ("end", "inside"))
)


Case = tuple[Row, Situation]


def pairs(rows: Sequence[Row]) -> Iterator[tuple[Row, Situation]]:
    """Yield each row in two situations that differ in everything, other ones for the next row.

    So each row meets each value, and the rows together meet each pair of values.
    """
    for number, row in enumerate(rows):
        place = number % (len(SITUATIONS) // 2)
        yield row, SITUATIONS[place]
        yield row, SITUATIONS[-1 - place]


def product(rows: Sequence[Row]) -> Iterator[tuple[Row, Situation]]:
    """Yield each row in every situation."""
    return itertools.product(rows, SITUATIONS)


def assert_complete(rows: Iterable[Row], defined: Iterable[str], source: str) -> None:
    """Compare the rows with the fields that an engine defines.

    Args:
        rows: the table.
        defined: the fields' names.
        source: the class or function that defines them, for the message.
    """
    named = [row.name for row in rows]
    twice = sorted({name for name in named if named.count(name) > 1})
    new = sorted({*defined} - {*named})
    gone = sorted({*named} - {*defined})
    assert not [*twice, *new, *gone], (
        f"{source} and the standing test differ; without a row: {new}; not defined any more: {gone}; twice: {twice}. "
        "A new field needs a row that says what becomes of it: equal, undrafted, refused, or no text"
    )


def named(case: Case) -> str:
    """Return the name of a row in a situation."""
    return f"{case[0].name}-{case[1]}"


def stop_inside(case: Case, text: Sequence[int], first: int) -> dict[str, Any]:
    """Return parameters that stop a row inside a draft, at a token of its answer that is not there before.

    Args:
        case: a row in a situation.
        text: the answer's token ids; empty if the request was refused.
        first: the first place that may be the last one.
    """
    row, situation = case
    if situation.stop == "end" or not text:
        return {}
    place = next((n for n in range(first, len(text)) if text[n] not in text[:n]), len(text) - 1)
    return {"stop_token_ids": [*row.given.get("stop_token_ids", ()), text[place]]}


def draft_of(situation: Situation, text: Sequence[int], longest: int) -> list[int]:
    """Return what the oracle drafts: the answer and as much as a draft may hold after it, or wrong second tokens."""
    drafted = [*text, *text[:longest]]
    if situation.draft == "wrong":
        drafted[1::2] = [(token + 1) % 1000 for token in drafted[1::2]]
    return drafted


def difference(expected: Any, found: Any, place: str = "") -> str:
    """Return where two answers differ, numbers by more than 1e-3; "" where they are equal."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        return next(filter(None, (difference(expected[key], found[key], f"{place}.{key}") for key in expected)), "")
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        each = enumerate(zip(expected, found, strict=True))
        return next(filter(None, (difference(*two, f"{place}[{n}]") for n, two in each)), "")
    if isinstance(expected, float) and isinstance(found, float) and math.isclose(expected, found, abs_tol=1e-3):
        return ""
    return "" if expected == found else f"{place}: {expected} expected, {found} found"
