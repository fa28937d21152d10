"""The draft's context has the target's bytes, however it grows, and is what the draft's tokenizer would write."""

from __future__ import annotations

import gc
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from specplug.errors import ContractError
from specplug.text.fingerprint_texts import fingerprint_texts
from specplug.text.translate.intersection import intersect
from specplug.text.translate.tables import Ragged, expansions
from specplug.text.translate.translator import Context, TokenContext, Translator
from specplug.text.translate.vocabulary import ESCAPED, Vocabulary
from specplug.text.translate.words import LONGEST_WORD, WordEncoder, tokens_of
from tests.text.translate import reference
from tests.text.translate.tools import ALL_PAIRS, PAIRS, TEXTS, own_encoding, target_ids, translator, vocabulary


def extended(context: Context, before: list[int], ids: Sequence[int]) -> list[int]:
    """Return the draft's context after some more ids, and check that as much of it is kept as possible."""
    assert len(context) == len(before)
    keep, new = context.extend(ids)
    after = before[:keep] + new
    assert 0 <= keep <= len(before)
    assert keep == len(before) or not new or new[0] != before[keep]
    assert len(context) == len(after)
    return after


def whole(pair: tuple[str, str], ids: Sequence[int]) -> list[int]:
    return extended(Context(translator(*pair)), [], ids)


PAIR_AND_IDS = st.sampled_from(PAIRS).flatmap(lambda pair: st.tuples(st.just(pair), target_ids(pair[0])))


@given(PAIR_AND_IDS)
def test_the_bytes_are_the_targets_and_no_token_is_unknown(found):
    (target, draft), ids = found
    context = Context(translator(target, draft))
    written = extended(context, [], ids)
    expected = reference.draft_parts(vocabulary(target), vocabulary(draft), ids)
    if context.held_back:
        last = expected.pop()
        assert isinstance(last, bytes)
        assert last.endswith(context.held_back)
        expected += [last.removesuffix(context.held_back)] if last != context.held_back else []
    assert reference.decoded(vocabulary(draft), written) == expected
    assert vocabulary(draft).unk_id not in written
    texts = [part.decode(errors=ESCAPED) for part in expected if isinstance(part, bytes)]
    is_short = all(len(word) < LONGEST_WORD for text in texts for word in encoder(draft).words(f" {text}"))
    if is_short and not context.held_back and not any("\u2581" in text for text in texts):
        assert written == reference.draft_ids(vocabulary(target), vocabulary(draft), ids)


ANY_PAIR_AND_IDS = st.sampled_from(ALL_PAIRS).flatmap(lambda pair: st.tuples(st.just(pair), target_ids(pair[0])))


@given(ANY_PAIR_AND_IDS)
def test_what_cannot_be_spelled_is_as_the_drafts_tokenizer_reads_it_and_all_else_exact(found):
    (target, draft), ids = found
    own, other, context = vocabulary(target), vocabulary(draft), Context(translator(target, draft))
    written = extended(context, [], ids)
    expected, has_text = list[int](), False
    parts = reference.draft_parts(own, other, ids)
    for at, part in enumerate(parts):
        if isinstance(part, int):
            expected.append(part)
            continue
        adds_space = other.space_prefix == "every" or (other.space_prefix == "first" and not has_text)
        part = part.removesuffix(context.held_back) if at == len(parts) - 1 else part
        text = part.decode(errors=ESCAPED)
        for word in encoder(draft).words(f" {text}" if adds_space and text else text):
            tokens, own_reading = tokens_of(other, word), other.encode(word) if word.isprintable() else None
            assert other.spells(tokens, word) or own_reading is None or list(tokens) == own_reading
            assert other.spells(tokens, word) or not is_spelled(other, word)
            expected += tokens
        has_text = True
    assert written == expected


def is_spelled(found: Vocabulary, text: str) -> bool:
    """Return whether a vocabulary has tokens for a text: its own, or those of its bytes if it alters no text."""
    alone = [found.spells(found.encode(each), each) for each in text if not "\udc80" <= each <= "\udcff"]
    whole = all(alone) and len(alone) == len(text) and found.spells(found.encode(text), text)
    return whole or (not found.alters_text and found.spelled(text) is not None)


@given(ANY_PAIR_AND_IDS, st.data())
def test_it_does_not_matter_how_many_ids_come_at_once(found, data):
    pair, ids = found
    context, written, at = Context(translator(*pair)), list[int](), 0
    while at < len(ids):
        size = data.draw(st.integers(0, 5))
        written = extended(context, written, ids[at : at + size])
        at += size
    assert extended(context, written, []) == whole(pair, ids)


@cache
def table_of(target: str, draft: str) -> Ragged:
    own, other = vocabulary(target), vocabulary(draft)
    return expansions(own, other, intersect(own, other).to_draft)


@given(ANY_PAIR_AND_IDS, st.data())
def test_by_tokens_each_has_its_own_bytes(found, data):
    """However many come at once; a prefix of the target's stands for the draft's own."""
    (target, draft), ids = found
    pair, own, other, table = translator(target, draft), vocabulary(target), vocabulary(draft), table_of(target, draft)
    context, written, at = TokenContext(pair, table), list[int](), 0
    while at < len(ids):
        size = data.draw(st.integers(1, 5))
        keep, new = context.extend(ids[at : at + size])
        assert keep == len(written) == len(context) - len(new)
        written, at = written + new, at + size
    expected = list(other.prefix) if ids else []
    for place, token in enumerate(ids):
        expected += [] if own.prefix[place : place + 1] == (token,) else table.of_id(token)
    assert written == expected
    assert context.held_back == b""
    assert list(context.tail) == tail_of(pair, ids)


def tail_of(pair: Translator, ids: Sequence[int]) -> list[int]:
    context = Context(pair)
    context.extend(ids)
    return list(context.tail)


def test_what_a_draft_has_no_token_for_is_unknown_or_left_out_and_normalised_text_is_read_so():
    for draft, expected in (
        ("gaps", [b"a  B"]),
        ("no_fallback", [b" a ", 2, b" B"]),
        ("normalising", ["a \U0010ffff b".encode()]),
    ):
        found, own = vocabulary(draft), vocabulary("tekken")
        ids = whole(("tekken", draft), own.encode("a \U0010ffff B"))[len(found.prefix) :]
        parts: list[bytes | int] = []
        for token in ids:
            if token == found.unk_id:
                parts.append(token)
            elif parts and isinstance(parts[-1], bytes):
                parts[-1] += found.piece(token)
            else:
                parts.append(found.piece(token))
        assert parts == expected


@pytest.mark.parametrize("token", [-1, 10**6])
def test_by_tokens_ids_of_no_token_are_refused(token):
    with pytest.raises(ContractError, match="no token has this id"):
        TokenContext(translator("byte_fallback", "spm1"), table_of("byte_fallback", "spm1")).extend([token])


def is_plain(text: str, *names: str) -> bool:
    """Return whether tokenizers keep a text as it is, find no special tokens in it, and no word that is cut."""
    if "\u2581" in text or unicodedata.normalize("NFC", text) != text:
        return False
    if text[:1].isspace() and {"byte_fallback", "spaced"} & {*names}:  # these put no space before one
        return False
    is_short = all(len(word) < LONGEST_WORD for name in names for word in encoder(name).words(f" {text}"))
    return is_short and not any(each in text for name in names for each in vocabulary(name).controls.values())


def encoder(name: str) -> WordEncoder:
    return translator(name, "tiny" if name != "tiny" else "tekken").target_words


@given(st.sampled_from(PAIRS), TEXTS)
@example(("tekken", "spm1"), " Leading and  double")
@example(("spm3", "tekken"), "I'll say: \"we've seen\" (it).\n\n    return x\n")
def test_a_text_becomes_what_the_drafts_tokenizer_writes(pair, text):
    assume(is_plain(text, *pair))
    assert whole(pair, own_encoding(pair[0], text)) == own_encoding(pair[1], text)


def test_the_first_bytes_of_a_character_are_held_back():
    target, context, written = vocabulary("tekken"), Context(translator("tekken", "tiny")), list[int]()
    for byte in "é👍".encode():
        written = extended(context, written, [target.byte_ids[byte]])
        assert vocabulary("tiny").bytes_of(written).decode() in ("", "é", "é👍")
    assert context.held_back == b""
    assert vocabulary("tiny").bytes_of(extended(context, written, [target.byte_ids[0xE2]])) == "é👍".encode()
    assert context.held_back == b"\xe2"


def test_a_special_token_ends_a_character_that_is_not_complete():
    tekken, tiny = vocabulary("tekken"), vocabulary("tiny")
    ids = [*tekken.encode("a"), *tekken.spelled("👍")[:3], tekken.eos_id, *tekken.encode("b")]
    assert reference.decoded(tiny, whole(("tekken", "tiny"), ids)) == [b"a\xf0\x9f\x91", tiny.eos_id, b"b"]


def test_special_tokens_become_those_of_the_same_role_or_their_text():
    spm3, tiny, byte_level = (vocabulary(name) for name in ("spm3", "tiny", "byte_level"))
    names = {text: token for token, text in spm3.controls.items()}
    ids = [*spm3.prefix, names["[INST]"], *own_encoding("spm3", "Say [INST]")[1:], names["</s>"]]
    assert reference.decoded(tiny, whole(("spm3", "tiny"), ids)) == [b"[INST]Say [INST]", tiny.eos_id]
    tekken = vocabulary("tekken")
    parts = reference.decoded(tekken, whole(("spm3", "tekken"), ids))
    assert parts == [*tekken.prefix, 3, b"Say [INST]", tekken.eos_id]  # Tekken has an [INST] too
    assert reference.decoded(byte_level, whole(("tiny", "byte_level"), [1])) == [*byte_level.prefix, b"<|edit|>"]


def test_an_unknown_token_is_read_as_its_name_and_an_id_of_no_token_is_refused():
    assert reference.decoded(vocabulary("spm3"), whole(("spm1", "spm3"), [1, 0])) == [1, b"<unk>"]
    for token in (-1, 2048):
        with pytest.raises(ContractError, match=r"tiny: no token has this id.*expected"):
            Context(translator("tiny", "spm1")).extend([token])


def counted(found: Vocabulary, characters: list[int]) -> Vocabulary:
    def encode(text: str) -> list[int]:
        characters.append(len(text))
        return found.encode(text)

    return replace(found, encode=encode)


def work(context_length: int) -> tuple[int, int, int]:
    """Return the characters encoded, ids written and functions called in 64 steps after a context of some length."""
    characters: list[int] = []
    pair = Translator(vocabulary("spm3"), counted(vocabulary("tekken"), characters), cached=0)
    ids = [token for text in fingerprint_texts() for token in vocabulary("spm3").encode(f" {text}\n")]
    context = Context(pair)
    context.extend((ids * (1 + context_length // len(ids)))[-context_length:])
    characters.clear()
    calls = written = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    gc.disable()  # other tests' objects have finalizers
    sys.setprofile(count)
    try:
        for token in ids[:64]:
            written += len(context.extend([token]).ids)
    finally:
        sys.setprofile(None)
        gc.enable()
    return sum(characters), written, calls


def test_a_step_costs_no_more_after_128k_tokens_than_after_1k():
    short, long = work(1 << 10), work(1 << 17)
    assert long == short
    assert short[0] < 64 * 40
