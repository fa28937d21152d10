"""The visible length of an output whose text was cut at a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from specplug.steps.stops import tokens_before_stop

PIECES = [b"", b"a", b"ab", b"b", b"ba", b" ", b"\n", "東".encode(), b"\xe6", b"\x9d", b"\xb1", b"\x9d\xb1a", b"a\xe6"]
"""What tokens spell: nothing (special ones), letters, and a character cut across tokens."""

STOPS = ["a", "ab", "ba", "b\n", "東", "a東", " b", "aba"]
STOP_LISTS = st.lists(st.sampled_from(STOPS), min_size=1, max_size=2)


def decode(ids: Sequence[int]) -> str:
    return b"".join(PIECES[token] for token in ids).decode(errors="replace")


def ids_of(*pieces: bytes) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def plain(output: Sequence[int], stop: Sequence[str], *, keep: bool) -> int | None:
    """Count tokens whose bytes all lie in front of the cut, up to the last one that has any."""
    seen = plain_text(output, stop, keep)
    if seen is None:
        return None
    text, cut = decode(output), len(seen)
    count = max(n for n in range(len(output) + 1) if len(decode(output[:n]).rstrip("\ufffd")) <= cut)
    while count and not fits(output[:count], text[:cut]):
        count -= 1
    while count and not PIECES[output[count - 1]]:
        count -= 1
    return count


def fits(tokens: Sequence[int], seen: str) -> bool:
    """Return whether tokens spell a prefix of `seen`, or of a text that ends within its last character."""
    data = b"".join(PIECES[token] for token in tokens)
    return seen.encode().startswith(data)


WELL_FORMED = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 0]) | st.just("split"), max_size=30).map(
    lambda parts: [
        token for part in parts for token in (ids_of(b"\xe6", b"\x9d", b"\xb1") if part == "split" else [part])
    ]
)


@given(output=WELL_FORMED, stop=STOP_LISTS, keep=st.booleans())
@example(output=ids_of(b"a", b"ba"), stop=["ba", "aba"], keep=False)
def test_every_token_before_the_cut_and_none_behind_it(output, stop, keep):
    assert tokens_before_stop(output, stop, decode, keep=keep) == plain(output, stop, keep=keep)


@given(output=st.lists(st.integers(0, len(PIECES) - 1), max_size=30), stop=STOP_LISTS, keep=st.booleans())
@example(output=ids_of(b"a", b"\xe6", b"\x9d"), stop=["a"], keep=True)
def test_broken_characters_never_let_through_what_nobody_saw(output, stop, keep):
    expected, found = plain_text(output, stop, keep), tokens_before_stop(output, stop, decode, keep=keep)
    assert (found is None) == (expected is None)
    if found is not None:
        assert expected.startswith(decode(output[:found]).rstrip("\ufffd"))


def plain_text(output: Sequence[int], stop: Sequence[str], keep: bool) -> str | None:
    """Return the text before, or with, the stop string that it completes first; of several the first listed."""
    text = decode(output)
    for end in range(len(text) + 1):
        for string in stop:
            if text[:end].endswith(string):
                return text[: end if keep else end - len(string)]
    return None


@pytest.mark.parametrize(("least", "expected"), [(0, 0), (1, 2), (2, 2), (3, 4), (5, None)])
def test_a_stop_string_that_ends_too_early_is_none(least, expected):
    output = ids_of(b"a", b"b", b"a", b"b", b"a")
    assert tokens_before_stop(output, ["a"], decode, least=least) == expected


def test_what_stands_in_the_prompt_is_no_stop():
    """The prompt's end is decoded in front, as engines do, and not looked at."""
    lead = ids_of(b"a", b"b", b"\n")
    assert tokens_before_stop(ids_of(b"b", b"a"), ["b\n"], decode, lead=lead) is None
    assert tokens_before_stop(ids_of(b"b", b"b", b"\n", b"a"), ["b\n"], decode, lead=lead) == 1


@given(output=WELL_FORMED, stop=STOP_LISTS, keep=st.booleans(), least=st.integers(0, 6), newest=st.integers(1, 20))
@example(output=ids_of(b"\xe6", b"\x9d", b"\xb1", b"a", b"a"), stop=["a"], keep=False, least=4, newest=4)
@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
def test_decoding_the_newest_tokens_alone_finds_the_same_cut(output, stop, keep, least, newest):
    """This holds if no stop string begins before them, not even in a character that they complete."""
    text, preceding = decode(output), len(decode(output[:-newest]))
    assume(len(output) > newest and all(text.find(string) < 0 or text.find(string) >= preceding for string in stop))
    expected = tokens_before_stop(output, stop, decode, keep=keep, least=least)
    assert tokens_before_stop(output, stop, decode, keep=keep, least=least, newest=newest) == expected


@pytest.mark.parametrize(
    ("tail", "found", "newest", "most"),
    [
        ([b"b", b"\n", b" ", b" "], 5000, None, 5104),
        ([b"a", b"a"], None, 64, 3 * 64),
        ([b"b", b"\n", b"a"], 5000, 64, 3 * 64),
    ],
)
def test_a_long_output_is_decoded_once_or_only_its_newest_tokens(tail, found, newest, most):
    """Besides the whole text, or the newest tokens, only the part after the cut is decoded."""
    decoded: list[int] = []

    def counting(ids: list[int]) -> str:
        decoded.append(len(ids))
        return decode(ids)

    output = ids_of(b"a") * 5000 + ids_of(*tail)
    assert tokens_before_stop(output, ["b\n"], counting, newest=newest) == found
    assert sum(decoded) < most
