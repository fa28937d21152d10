"""Tables translate each token to the same bytes, and find tokens by a hash of their bytes."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.text.translate.intersection import ids_by_piece, intersect
from specplug.text.translate.tables import LONGEST_PIECE, PieceHashes, Ragged, expansions, piece_bytes
from specplug.text.translate.translator import Translator
from tests.text.translate.tools import library

PAIRS = [("byte_level", "tekken"), ("spm3", "byte_level"), ("byte_fallback", "spm1"), ("tekken", "byte_fallback")]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_every_token_becomes_its_own_bytes(target: str, draft: str) -> None:
    translator = Translator.between(library(target), library(draft))
    own, other = translator.target, translator.draft
    common = intersect(own, other).to_draft
    table = expansions(own, other, common)
    assert len(table.counts) == len(common)
    for token, piece in enumerate(own.pieces):
        if token in own.controls:
            mapped, ids = translator.controls.to_draft.get(token), table.of_id(token)
            assert ids == [mapped] if mapped is not None else other.bytes_of(ids) == own.controls[token].encode()
        elif piece:
            assert other.bytes_of(table.of_id(token)) == piece
            assert common[token] < 0 or table.of_id(token) == [common[token]]
        else:
            assert table.counts[token] == -1
    assert other.unk_id not in table.values[: table.counts.clip(0).sum()]
    assert table.mean_length >= 1.0


def test_bytes_of_ids_end_where_tokens_end() -> None:
    vocabulary = Translator.between(library("tekken"), library("tekken")).draft
    table = piece_bytes(vocabulary, len(vocabulary.pieces) + 3)
    assert [bytes(table.of_id(token)) for token in range(len(vocabulary.pieces))] == list(vocabulary.pieces)
    assert table.counts[-3:].tolist() == [0, 0, 0]


def test_lists_are_joined() -> None:
    table = Ragged.of([[3, 4], None, [], [5]])
    assert (table.starts.tolist(), table.counts.tolist(), table.values.tolist()) == (
        [0, 2, 2, 2],
        [2, -1, 0, 1],
        [3, 4, 5],
    )
    assert Ragged.of([]).mean_length == 1.0


@pytest.mark.parametrize("name", ["tekken", "byte_fallback"])
def test_hashes_find_every_token_and_no_other(name: str) -> None:
    vocabulary = Translator.between(library(name), library(name)).target
    size = len(vocabulary.pieces) - 5
    hashes = PieceHashes.of(vocabulary, 64, size)
    expected = {
        piece: token
        for piece, token in ids_by_piece(vocabulary).items()
        if len(piece) <= LONGEST_PIECE and token < size
    }
    assert len(set(hashes.keys.tolist())) == len(hashes.keys) == len(expected)
    assert (np.diff(hashes.keys) > 0).all()
    assert (hashes.powers[:64] * hashes.inverses == 1).all(), "modulo 2^64"
    by_key = dict(zip(hashes.keys.tolist(), hashes.ids.tolist(), strict=True))
    for piece, token in list(expected.items())[::17]:
        key = sum((byte + 1) * int(power) for byte, power in zip(piece, hashes.powers.tolist(), strict=False))
        assert by_key[(key + 2**63) % 2**64 - 2**63] == token
