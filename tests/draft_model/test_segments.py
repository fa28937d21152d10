"""Drafted ids become the target's tokens as the plain reference says, and their bytes are the drafted ones."""

from __future__ import annotations

import functools
import math
import re
from itertools import pairwise, takewhile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.draft_model.pairing import TokenizerPair
from specplug.draft_model.segments import BYTES_PER_ID, Segmenter, Segments
from specplug.text.fingerprint import fingerprint_texts
from specplug.text.translate.tables import LONGEST_PIECE, NEVER, Splits, ids_by_piece, intersect, match_controls
from tests.text.translate.tools import bytes_of, vocabulary

PAIRS = [("byte_level", "tekken"), ("tekken", "byte_level"), ("byte_fallback", "byte_level"), ("spm3", "byte_fallback")]
PAIRS_WITH_GAPS = [("gaps", "tekken"), ("no_fallback", "byte_level"), ("normalising", "gaps"), ("added", "no_fallback")]
NUM_DRAFTED = 7
TEXTS = ("def f(x):\n        return  x", "Straße 天地 👍🏽", "a\n\n  b", "it's 12345", "x")


class Found:
    """A pair's segmenter beside its reference."""

    def __init__(self, target: str, draft: str) -> None:
        self.target, self.draft = vocabulary(target), vocabulary(draft)
        self.controls = match_controls(self.target, self.draft).to_target
        intersection = intersect(self.target, self.draft)
        self.to_target = torch.from_numpy(intersection.to_target).long()
        pair, size = TokenizerPair(intersection, (self.target, self.draft)), len(self.target.pieces)
        self.segmenters = [
            Segmenter(pair, self.to_target, size, NUM_DRAFTED, is_exact=is_exact) for is_exact in (False, True)
        ]
        self.by_piece = ids_by_piece(self.target)
        self.splits = Splits.of(self.target)

    def find(
        self,
        drafted: list[list[int]],
        fixed: list[list[bool]] | None = None,
        *,
        count: int | None = None,
        num_tokens: int = 2 * NUM_DRAFTED,
    ) -> Segments:
        """Return the tokens of rows as long, which are the same with fixed shapes and with those that are needed."""
        padding = [0] * (NUM_DRAFTED - len(drafted[0]))
        number = torch.tensor([len(drafted[0]) if count is None else count])
        ids = torch.tensor([row + padding for row in drafted])
        is_fixed = torch.zeros(ids.shape, dtype=torch.bool)
        if fixed is not None:
            is_fixed[:, : len(drafted[0])] = torch.tensor(fixed)
        probabilities = torch.full(ids.shape, 0.5, dtype=torch.float64)
        one, other = (it.find(ids, number, is_fixed, probabilities, num_tokens) for it in self.segmenters)
        assert all(self.ids(one, row) == self.ids(other, row) for row in range(len(drafted)))
        return one

    def ids(self, tokens: Segments, row: int = 0) -> list[int]:
        found: list[int] = tokens.ids[row, : int(tokens.counts[row])].tolist()
        return found

    def expected(self, drafted: list[int], fixed: list[bool]) -> list[int]:
        """Return the target's tokens for drafted ids, by plain loops."""
        found: list[int] = []
        text, total = b"", 0
        parts: list[tuple[bytes, int | None]] = []  # text, and the token that follows it
        for token, is_fixed in zip(drafted, fixed, strict=True):
            piece = self.draft.pieces[token] if token < len(self.draft.pieces) else b""
            control = self.controls.get(token) if token in self.draft.controls else None
            stands_alone = is_fixed or control is not None
            total += 1 if stands_alone else len(piece)
            if total > BYTES_PER_ID * NUM_DRAFTED or not (stands_alone or piece):
                break
            if stands_alone:
                parts.append((text, int(self.to_target[token]) if control is None else control))
                text = b""
            else:
                text += piece
            if control is not None:
                break
        for part, token in [*parts, (text, None)]:
            tokens = self.written(part)
            found += tokens
            if bytes_of(self.target, tokens) != part:
                return found
            found += [] if token is None else [token]
        return found

    def written(self, text: bytes) -> list[int]:
        """Return the tokens of a text, whatever follows it, up to the first byte that has none."""
        rules = [rb"(?<=[%s])(?=[A-Za-z\x80-\xff])" % _SIGNED] if self.splits.after_signs else []
        if self.splits.spaces:
            rules.append(rb"(?<=\s)(?=[%s]\S)" % re.escape(bytes(self.splits.spaces)))
        cuts = {match.start() for rule in rules for match in re.finditer(rule, text)}
        if self.splits.after_signs:
            cuts = {at for at in cuts if not text[at : at + 1].isalpha() or re.search(_AFTER_SIGNS, text[:at])}
        if self.splits.by_three:
            for number in re.finditer(rb"[0-9]+", text):
                cuts |= set(range(number.start() + 3, number.end(), 3))
        ends = sorted(at for at in cuts if 0 < at < len(text))
        found: list[int] = []
        for begin, end in pairwise([0, *ends, len(text)]):
            tokens, is_whole = self._part(text[begin:end])
            found += tokens
            if not is_whole:
                break
        return found

    def _part(self, text: bytes) -> tuple[list[int], bool]:
        pieces = self._merged(text) if self.target.merges else self._longest(text)
        known = list(takewhile(self.by_piece.__contains__, pieces))
        return [self.by_piece[piece] for piece in known], len(known) == len(pieces)

    def _longest(self, text: bytes) -> list[bytes]:
        found = []
        while text:
            sizes = range(min(len(text), LONGEST_PIECE), 0, -1)
            size = next((size for size in sizes if text[:size] in self.by_piece), 1)
            found.append(text[:size])
            text = text[size:]
        return found

    def _merged(self, text: bytes) -> list[bytes]:
        """Merge the first pair of the lowest rank until there is none."""
        pieces = [text[at : at + 1] for at in range(len(text))]
        if self.target.merges_across_words:
            by_lead = rb"[\xc0-\xdf][\x80-\xbf]?|[\xe0-\xef][\x80-\xbf]{0,2}|[\xf0-\xff][\x80-\xbf]{0,3}|."
            characters = re.findall(by_lead, text, re.DOTALL)
            sizes = [(it, 1 + sum(it[0] >= least for least in (0xC0, 0xE0, 0xF0))) for it in characters]
            split = [[it] if len(it) == size and it in self.by_piece else list(map(_byte, it)) for it, size in sizes]
            pieces = [piece for each in split for piece in each]
        while True:
            ranks = [(self._rank(*pair), at) for at, pair in enumerate(pairwise(pieces))]
            rank, at = min(ranks, default=(NEVER, 0))
            if rank == NEVER:
                return pieces
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]

    def _rank(self, left: bytes, right: bytes) -> int:
        token = self.by_piece.get(left + right, -1)
        rank, size = self.target.merges.get(token, (NEVER, 0))
        return rank if size in (0, len(left)) and len(left + right) <= LONGEST_PIECE else NEVER


_SIGNED = rb"!-/:-@\[-`{-~"
_AFTER_SIGNS = re.compile(rb"[ %s][%s]$" % (_SIGNED, _SIGNED))


def _byte(value: int) -> bytes:
    return bytes([value])


@functools.cache
def found(target: str, draft: str) -> Found:
    return Found(target, draft)


@pytest.mark.parametrize(("target", "draft"), [*PAIRS, *PAIRS_WITH_GAPS])
def test_they_are_the_references(target: str, draft: str) -> None:
    it = found(target, draft)
    encoded = sorted({token for text in TEXTS for token in it.draft.encode(text)})
    ids = st.one_of(
        st.sampled_from(encoded), st.integers(0, len(it.to_target) - 1), st.sampled_from(sorted(it.draft.controls))
    )

    def rows(length: int) -> st.SearchStrategy[list[list[tuple[int, bool]]]]:
        row = st.lists(st.tuples(ids, st.booleans()), min_size=length, max_size=length)
        return st.lists(row, min_size=8, max_size=8)

    @settings(max_examples=20)
    @given(st.integers(1, NUM_DRAFTED).flatmap(rows))
    def check(drawn: list[list[tuple[int, bool]]]) -> None:
        drafted = [[token for token, _ in row] for row in drawn]
        fixed = [[bool(is_fixed and it.to_target[token] >= 0) for token, is_fixed in row] for row in drawn]
        tokens = it.find(drafted, fixed)
        for number, row in enumerate(drafted):
            assert it.ids(tokens, number) == it.expected(row, fixed[number])[: 2 * NUM_DRAFTED]

    check()


def test_how_long_drawn_ids_are_decides_nothing() -> None:
    it = found("tekken", "byte_level")
    common = (it.to_target >= 0).nonzero()[:, 0].tolist()
    longest = sorted(common, key=lambda token: -len(it.draft.pieces[token]))[:NUM_DRAFTED]
    assert sum(len(it.draft.pieces[token]) for token in longest) > BYTES_PER_ID * NUM_DRAFTED
    tokens = it.find([longest], [[True] * NUM_DRAFTED])
    assert it.ids(tokens) == it.to_target[longest].tolist()


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_text_of_the_draft_is_one_of_the_target(target: str, draft: str) -> None:
    it = found(target, draft)
    for text in TEXTS:
        drafted = it.draft.encode(text)[:NUM_DRAFTED]
        tokens = it.find([drafted], num_tokens=60)
        ids = it.ids(tokens)
        assert bytes_of(it.target, ids) == bytes_of(it.draft, drafted)
        logs = tokens.probabilities[0, : len(ids)].log().sum()
        assert float(logs) == pytest.approx(len(drafted) * math.log(0.5))
        assert tokens.is_last[0, : len(ids)].tolist() == [False] * (len(ids) - 1) + [True]


def test_the_draft_ends_before_what_no_token_spells() -> None:
    it = found("gaps", "tekken")
    drafted = it.draft.encode("the time\x00 of")
    tokens = it.find([drafted])
    ids = it.ids(tokens)
    assert bytes_of(it.target, ids) == b"the time"
    assert not tokens.is_last[0, : len(ids)].any()


def test_what_was_not_drafted_is_ignored() -> None:
    it = found("tekken", "byte_level")
    drafted = it.draft.encode("one two three")[:NUM_DRAFTED]
    short, all_of_them = it.find([drafted], count=2), it.find([drafted[:2]])
    assert torch.equal(short.counts, all_of_them.counts)
    assert torch.equal(short.ids[0, : int(short.counts[0])], all_of_them.ids[0, : int(short.counts[0])])


@pytest.mark.parametrize(
    ("name", "least"), [("tiny", 1.0), ("gaps", 0.99), ("tekken", 0.95), ("spm3", 1.0), ("byte_level", 0.9)]
)
def test_texts_are_written_as_the_targets_tokenizer_does(name: str, least: float) -> None:
    """Tokens that differ are of expressions that the rules do not have, and of scripts whose words are long."""
    it, total, same = Found(name, "spm1" if name != "spm1" else "tekken"), 0, 0
    for text in fingerprint_texts():
        words = text.split(" ")
        for begin in range(0, len(words), 8):
            part = " ".join(words[begin : begin + 8])
            expected = it.target.encode(part)
            if bytes_of(it.target, expected) == part.encode():
                found = it.written(part.encode())
                total += len(expected)
                same += sum(one == other for one, other in zip(expected, found, strict=False))
    assert same >= least * total
