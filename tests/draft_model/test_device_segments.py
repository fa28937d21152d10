"""Drafted ids become the target's tokens as the plain reference says, and their bytes are the drafted ones."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.draft_model.device.segments import BYTES_PER_ID, Segmenter, Segments
from specplug.draft_model.pairing import Pair
from specplug.text.translate.intersection import ids_by_piece, intersect
from specplug.text.translate.tables import LONGEST_PIECE, leaves_last_space
from specplug.text.translate.translator import Translator
from tests.text.translate.tools import library

PAIRS = [("byte_level", "tekken"), ("tekken", "byte_level"), ("byte_fallback", "byte_level"), ("spm3", "byte_fallback")]
PAIRS_WITH_GAPS = [("gaps", "tekken"), ("no_fallback", "byte_level"), ("normalising", "gaps"), ("added", "no_fallback")]
NUM_DRAFTED = 7
TEXTS = ("def f(x):\n        return  x", "Straße 天地 👍🏽", "a\n\n  b", "it's 12345", "x")


class Found:
    """A pair's segmenter beside its reference."""

    def __init__(self, target: str, draft: str) -> None:
        self.translator = Translator.between(library(target), library(draft))
        intersection = intersect(self.translator.target, self.translator.draft)
        self.to_target = torch.from_numpy(intersection.to_target).long()
        pair, size = Pair(intersection, self.translator), len(self.translator.target.pieces)
        self.segmenter = Segmenter(pair, self.to_target, size, NUM_DRAFTED)
        self.by_piece = ids_by_piece(self.translator.target)

    def find(
        self, drafted: list[int], fixed: list[bool], *, count: int | None = None, num_tokens: int = 2 * NUM_DRAFTED
    ) -> Segments:
        padding = [0] * (NUM_DRAFTED - len(drafted))
        number = torch.tensor([len(drafted) if count is None else count])
        ids, is_fixed = torch.tensor([drafted + padding]), torch.tensor([fixed + [False] * len(padding)])
        probabilities = torch.tensor([[0.5] * NUM_DRAFTED], dtype=torch.float64)
        return self.segmenter.find(ids, number, is_fixed, probabilities, num_tokens)

    def expected(self, drafted: list[int], fixed: list[bool]) -> list[int]:
        draft, controls = self.translator.draft, self.translator.controls.to_target
        pieces: list[bytes | int] = []
        total = 0
        for token in drafted:
            if token in draft.controls and token in controls:
                pieces.append(controls[token])
                total += 1
            else:
                pieces.append(draft.pieces[token] if token < len(draft.pieces) else b"")
                total += len(draft.pieces[token]) if token < len(draft.pieces) else 0
            if total > BYTES_PER_ID * NUM_DRAFTED:
                pieces[-1] = b""
        leaves = leaves_last_space(self.translator.target)
        return segmented(self.by_piece, pieces, fixed, self.to_target[drafted].tolist(), leaves_last_space=leaves)


def segmented(
    pieces: Mapping[bytes, int],
    drafted: Sequence[bytes | int],
    is_fixed: Sequence[bool],
    tokens: Sequence[int],
    *,
    leaves_last_space: bool = False,
) -> list[int]:
    """Return the target's tokens for drafted ids: a plain reference for `Segmenter.find`.

    Args:
        pieces: the target's ids by their bytes.
        drafted: the bytes of each drafted id, empty if it has none; an integer is the target's token of a special one,
            with which the draft ends.
        is_fixed: whether the token that corresponds to each is to be used.
        tokens: this token.
        leaves_last_space: see `specplug.text.translate.tables.leaves_last_space`.
    """
    found: list[int] = []
    text = b""

    def flush(following: bytes = b"") -> bool:
        """Append the longest tokens of the text, which these bytes follow; return whether they are all of it."""
        nonlocal text
        whole = text + following[:1]
        for part in re.split(rb"(?<=\s)(?=\s\S)", whole) if leaves_last_space else [whole]:
            left = part[: len(text)]
            text = text[len(left) :]
            while left:
                sizes = range(min(len(left), LONGEST_PIECE), 0, -1)
                size = next((size for size in sizes if left[:size] in pieces), 0)
                if not size:
                    return False
                found.append(pieces[left[:size]])
                left = left[size:]
        return True

    for piece, fixed, token in zip(drafted, is_fixed, tokens, strict=True):
        if isinstance(piece, int):
            return [*found, piece] if flush(b"<") else found
        if not piece:
            break
        if fixed:
            if not flush(piece):
                return found
            found.append(token)
        else:
            text += piece
    flush()
    return found


@functools.cache
def found(target: str, draft: str) -> Found:
    return Found(target, draft)


@pytest.mark.parametrize(("target", "draft"), [*PAIRS, *PAIRS_WITH_GAPS])
def test_they_are_the_references(target: str, draft: str) -> None:
    it = found(target, draft)
    vocabulary = it.translator.draft
    encoded = sorted({token for text in TEXTS for token in vocabulary.encode(text)})
    ids = st.one_of(
        st.sampled_from(encoded), st.integers(0, len(it.to_target) - 1), st.sampled_from(sorted(vocabulary.controls))
    )

    @settings(max_examples=150)
    @given(st.lists(st.tuples(ids, st.booleans()), min_size=1, max_size=NUM_DRAFTED))
    def check(drawn: list[tuple[int, bool]]) -> None:
        drafted = [token for token, _ in drawn]
        fixed = [bool(is_fixed and it.to_target[token] >= 0) for token, is_fixed in drawn]
        expected, most = it.expected(drafted, fixed), 2 * NUM_DRAFTED
        tokens = it.find(drafted, fixed)
        assert tokens.ids[0, : int(tokens.counts[0])].tolist() == expected[:most]

    check()


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_text_of_the_draft_is_one_of_the_target(target: str, draft: str) -> None:
    it = found(target, draft)
    for text in TEXTS:
        drafted = it.translator.draft.encode(text)[:NUM_DRAFTED]
        tokens = it.find(drafted, [False] * len(drafted), num_tokens=60)
        ids = tokens.ids[0, : int(tokens.counts[0])].tolist()
        assert it.translator.target.bytes_of(ids) == it.translator.draft.bytes_of(drafted)
        logs = tokens.probabilities[0, : len(ids)].log().sum()
        assert float(logs) == pytest.approx(len(drafted) * math.log(0.5))
        assert tokens.is_last[0, : len(ids)].tolist() == [False] * (len(ids) - 1) + [True]


def test_the_draft_ends_before_what_no_token_spells() -> None:
    it = found("gaps", "tekken")
    drafted = it.translator.draft.encode("the time\x00 of")
    tokens = it.find(drafted, [False] * len(drafted))
    ids = tokens.ids[0, : int(tokens.counts[0])].tolist()
    assert it.translator.target.bytes_of(ids) == b"the time"
    assert not tokens.is_last[0, : len(ids)].any()


def test_what_was_not_drafted_is_ignored() -> None:
    it = found("tekken", "byte_level")
    drafted = it.translator.draft.encode("one two three")[:NUM_DRAFTED]
    short, all_of_them = it.find(drafted, [False] * len(drafted), count=2), it.find(drafted[:2], [False] * 2)
    assert torch.equal(short.counts, all_of_them.counts)
    assert torch.equal(short.ids[0, : int(short.counts[0])], all_of_them.ids[0, : int(short.counts[0])])


@pytest.mark.parametrize("name", ["tekken", "byte_level", "spm3", "byte_fallback"])
def test_whether_a_word_has_the_last_space_is_known(name: str) -> None:
    """One of these has tokens of four and eight spaces, which it finds before it splits."""
    assert leaves_last_space(Translator.between(library(name), library(name)).target) == (name != "byte_level")
