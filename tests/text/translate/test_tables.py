"""Vocabularies share what they should; tables translate tokens to the same bytes, and find them by their hash."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specplug.text.translate.tables import (
    LONGEST_PIECE,
    PieceHashes,
    Splits,
    TokenLists,
    expansions,
    ids_by_piece,
    intersect,
    match_controls,
    piece_bytes,
)
from specplug.text.translate.vocabulary import ESCAPED, tokens_of
from tests.text.translate.tools import PAIRS, bytes_of, ids_of, vocabulary


@pytest.mark.parametrize("pair", PAIRS)
def test_it_is_one_to_one_and_of_the_same_bytes_or_role(pair):
    target, draft = map(vocabulary, pair)
    found = intersect(target, draft)
    assert found.to_draft.dtype == found.to_target.dtype == np.int32
    assert (len(found.to_draft), len(found.to_target)) == (len(target.pieces), len(draft.pieces))
    (shared,) = np.nonzero(found.to_draft >= 0)
    assert (found.to_target[found.to_draft[shared]] == shared).all()
    assert np.count_nonzero(found.to_target >= 0) == len(shared)
    for token, to in zip(shared.tolist(), found.to_draft[shared].tolist(), strict=True):
        assert target.pieces[token] == draft.pieces[to]
        assert (token in target.controls) == (to in draft.controls)
    same = {piece for piece in target.pieces if piece} & {piece for piece in draft.pieces if piece}
    assert len(same) == sum(bool(target.pieces[token]) for token in shared)
    for each, overlap in ((target, found.of_target), (draft, found.of_draft)):
        size = len({*filter(None, each.pieces)}) + len(each.controls)
        assert overlap == pytest.approx(100 * len(shared) / size)


def test_a_vocabulary_with_itself():
    for name, overlap in (("tiny", 100.0), ("tekken", 100 * 131071 / 131072)):  # all but <unk>
        found = intersect(vocabulary(name), vocabulary(name))
        assert found.of_target == found.of_draft == pytest.approx(overlap)
        kept = found.to_draft >= 0
        assert (found.to_draft[kept] == np.arange(len(kept))[kept]).all()


def test_models_with_more_logits_than_tokens():
    found = intersect(vocabulary("tiny"), vocabulary("spm1"), 2304, 32064)
    assert (found.to_draft.shape, found.to_target.shape) == ((2304,), (32064,))
    assert (found.to_draft[2048:] == -1).all()
    assert (found.to_target[32000:] == -1).all()


def test_a_letter_is_the_token_that_text_is_encoded_to():
    spm1, tiny = vocabulary("spm1"), vocabulary("tiny")
    found = intersect(spm1, tiny)
    (letter,) = tiny.encode("a")
    assert found.to_target[letter] == spm1.encode("a")[0] != spm1.byte_ids[ord("a")]
    assert found.to_draft[spm1.byte_ids[ord("a")]] == -1
    assert found.to_draft[spm1.byte_ids[0xE2]] == tiny.byte_ids[0xE2]


def test_the_first_of_several_equal_tokens_is_used():
    tiny = vocabulary("tiny")
    found = intersect(replace(tiny, pieces=(*tiny.pieces, tiny.pieces[500])), tiny)
    assert found.to_draft[[500, 2048]].tolist() == [500, -1]
    assert found.of_target == 100


def test_control_tokens_correspond_by_text_then_by_role_and_ends_to_the_end():
    spm1, tiny, byte_level, tekken = map(vocabulary, ("spm1", "tiny", "byte_level", "tekken"))
    assert match_controls(spm1, tekken).to_draft == {1: 1, 2: 2}
    assert match_controls(spm1, byte_level).to_draft == {1: 0}
    assert match_controls(tiny, byte_level).to_draft == {0: 2}
    ends = match_controls(replace(byte_level, eos_id=2), spm1)
    assert ends.to_draft == {0: 1, 2: 2}
    assert ends.to_target == {1: 0, 2: 2}


PAIRS = [("byte_level", "tekken"), ("spm3", "added"), ("byte_fallback", "spm1"), ("tekken", "byte_fallback")]
PAIRS_WITH_GAPS = [("byte_level", "gaps"), ("tiny", "no_fallback"), ("added", "normalising"), ("gaps", "spaced")]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_every_token_becomes_its_own_bytes(target: str, draft: str) -> None:
    own, other = vocabulary(target), vocabulary(draft)
    controls = match_controls(own, other).to_draft
    common = intersect(own, other).to_draft
    table = expansions(own, other, common)
    assert len(table.counts) == len(common)
    for token, piece in enumerate(own.pieces):
        if token in own.controls:
            mapped, ids = controls.get(token), ids_of(table, token)
            assert ids == [mapped] if mapped is not None else bytes_of(other, ids) == own.controls[token].encode()
        elif piece:
            assert bytes_of(other, ids_of(table, token)) == piece
            assert common[token] < 0 or ids_of(table, token) == [common[token]]
        else:
            assert table.counts[token] == -1
    assert other.unk_id not in table.values[: table.counts.clip(0).sum()]
    assert table.mean_length >= 1.0


@pytest.mark.parametrize(("target", "draft"), PAIRS_WITH_GAPS)
def test_a_token_that_cannot_be_spelled_becomes_what_the_draft_reads(target: str, draft: str) -> None:
    own, other = vocabulary(target), vocabulary(draft)
    common = intersect(own, other).to_draft
    table = expansions(own, other, common)
    num_read = 0
    for token, piece in enumerate(own.pieces):
        if token in own.controls or common[token] >= 0:
            continue
        ids, text = ids_of(table, token), piece.decode(errors=ESCAPED)
        if other.spells(ids, text):
            continue
        num_read += 1
        assert ids == list(tokens_of(other, text))
        assert all(other.pieces[each] or each == other.unk_id for each in ids)
    assert (num_read > 0) == (draft != "spaced")


def test_bytes_of_ids_end_where_tokens_end() -> None:
    pieces = vocabulary("tekken").pieces
    table = piece_bytes(vocabulary("tekken"), len(pieces) + 3)
    assert [bytes(ids_of(table, token)) for token in range(len(pieces))] == list(pieces)
    assert table.counts[-3:].tolist() == [0, 0, 0]


def test_lists_are_joined() -> None:
    table = TokenLists.of([[3, 4], None, [], [5]])
    assert (table.starts.tolist(), table.counts.tolist(), table.values.tolist()) == (
        [0, 2, 2, 2],
        [2, -1, 0, 1],
        [3, 4, 5],
    )
    assert TokenLists.of([]).mean_length == 1.0


@pytest.mark.parametrize("name", ["tekken", "byte_fallback"])
def test_hashes_find_every_token_and_no_other(name: str) -> None:
    size = len(vocabulary(name).pieces) - 5
    hashes = PieceHashes.of(vocabulary(name), 64, size)
    expected = {
        piece: token
        for piece, token in ids_by_piece(vocabulary(name)).items()
        if len(piece) <= LONGEST_PIECE and token < size
    }
    assert len(set(hashes.keys.tolist())) == len(hashes.keys) == len(expected)
    assert (np.diff(hashes.keys) > 0).all()
    assert (hashes.powers[:64] * hashes.inverses == 1).all(), "modulo 2^64"
    by_key = dict(zip(hashes.keys.tolist(), hashes.ids.tolist(), strict=True))
    for piece, token in list(expected.items())[::17]:
        key = sum((byte + 1) * int(power) for byte, power in zip(piece, hashes.powers.tolist(), strict=False))
        assert by_key[(key + 2**63) % 2**64 - 2**63] == token


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny", Splits((32, *b"\t\n\v\f\r"), True, False)),  # it splits numbers into digits
        ("tekken", Splits((32, *b"\t\v\f\r"), True, True)),
        ("gaps", Splits((32, *b"\t\n"), False, True)),
        ("byte_level", Splits((), True, True)),
    ],
)
def test_the_rules_by_which_text_is_split_are_found(name: str, expected: Splits) -> None:
    assert Splits.of(vocabulary(name)) == expected
