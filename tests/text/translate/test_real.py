"""The tokenizers of real models, whose vocabularies have gaps, added tokens and others' names: translation is exact."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specplug.text.fingerprint_texts import fingerprint_texts
from specplug.text.translate.drafts import target_draft
from specplug.text.translate.intersection import intersect
from specplug.text.translate.translator import TAIL, Context
from specplug.text.translate.vocabulary import ESCAPED
from specplug.text.translate.words import cuts_of, words
from tests.real_models import needs_models
from tests.text.translate import reference
from tests.text.translate.tools import REAL, TEXTS, own_encoding, target_ids, translator, vocabulary

pytestmark = needs_models

PAIRS = (
    *(("gemma3", "smollm2"), ("smollm2", "gemma3"), ("tekken", "smollm2"), ("spm1", "gemma3")),
    *(("gemma3", "tekken"), ("smollm2", "spm3")),
)
SOME = settings(max_examples=60)


def context_of(pair: tuple[str, str], ids: list[int]) -> tuple[Context, list[int]]:
    context = Context(translator(*pair))
    return context, context.extend(ids).ids


def test_what_they_cannot_spell_and_what_was_added():
    smollm2, gemma3 = map(vocabulary, REAL)
    assert [byte for byte in range(0xC0) if smollm2.byte_ids[byte] < 0] == [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D]
    assert (smollm2.byte_ids.count(-1), gemma3.byte_ids.count(-1)) == (21, 0)
    assert (smollm2.alters_text, gemma3.alters_text) == (False, False)
    assert {"<h1>", "</s>", "\n\n"} <= set(gemma3.added)
    assert gemma3.spells(gemma3.encode("a</s>\n\nb"), "a</s>\n\nb")
    names = {text: token for token, text in gemma3.controls.items()}
    others = {text: token for token, text in smollm2.controls.items()}
    controls = translator(*REAL).controls.to_draft
    assert controls[others["<|im_start|>"]] == names["<start_of_turn>"]
    assert controls[others["<|im_end|>"]] == names["<end_of_turn>"]
    assert controls[others["<|endoftext|>"]] == names["<eos>"]


@pytest.mark.parametrize("name", REAL)
def test_words_are_short(name: str) -> None:
    """A rule for boundaries holds for them, so that a step does not encode whole paragraphs."""
    cuts = cuts_of(vocabulary(name))
    assert max(len(word) for word in words("I'll say we have <h1>seen</h1> it, and so on. " * 4, cuts)) < 20


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_texts_become_what_the_drafts_tokenizer_writes(pair: tuple[str, str]) -> None:
    target, draft = pair
    for text in fingerprint_texts():
        if vocabulary(draft).spells(vocabulary(draft).encode(text), text) and len(text) < 200:
            ids = own_encoding(target, text)
            if (
                vocabulary(target).bytes_of(ids[len(vocabulary(target).prefix) :]).lstrip(b" ")
                == text.lstrip(" ").encode()
            ):
                assert context_of(pair, ids)[1] == own_encoding(draft, text)


@SOME
@given(st.sampled_from(PAIRS).flatmap(lambda pair: st.tuples(st.just(pair), target_ids(pair[0]))))
def test_the_context_has_the_targets_bytes_but_for_what_the_draft_cannot_spell(found) -> None:
    pair, ids = found
    draft = vocabulary(pair[1])
    context, written = context_of(pair, ids)
    parts = reference.draft_parts(vocabulary(pair[0]), draft, ids)
    missing = bytes(byte for byte in range(256) if draft.byte_ids[byte] < 0)
    expected = b"".join(part for part in parts if isinstance(part, bytes)).removesuffix(context.held_back)
    got = b"".join(part for part in reference.decoded(draft, written) if isinstance(part, bytes))
    assert got == expected or got.translate(None, missing) == expected.translate(None, missing)
    assert draft.unk_id not in written


@SOME
@given(st.sampled_from(PAIRS), TEXTS, st.data())
def test_what_the_target_would_write_is_found(pair, text, data) -> None:
    target, draft = translator(*pair).target_words, translator(*pair).draft_words
    assume(text and all(len(target.word(word)) <= TAIL for word in target.words(f" {text}")))
    own = target.text(f" {text}" if target.vocabulary.space_prefix != "never" else text)
    assume(target.vocabulary.bytes_of(own).removeprefix(b" ") == text.encode().removeprefix(b" "))
    cut = data.draw(st.integers(0, len(own)))
    context, _ = context_of(pair, own[:cut])
    rest = target.vocabulary.bytes_of(own[cut:])
    rest = context.held_back + (rest.removeprefix(b" ") if context.takes_space else rest)
    drafted = draft.text((" " if context.adds_space and rest else "") + rest.decode(errors=ESCAPED))
    assume(draft.vocabulary.bytes_of(drafted).removeprefix(b" ") == rest.removeprefix(b" "))
    assert target_draft(context, drafted).ids == own[cut:]


def test_common_ids_have_the_same_bytes() -> None:
    target, draft = map(vocabulary, PAIRS[0])
    shared = intersect(target, draft)
    assert shared.of_draft > 90
    for token, to in enumerate(shared.to_target.tolist()):
        if to >= 0 and token not in draft.controls:
            assert draft.pieces[token] == target.pieces[to]
