"""Drafted ids become the target's tokens of the same bytes, which continue those that the target has written."""

from __future__ import annotations

import codecs

from hypothesis import assume, given
from hypothesis import strategies as st

from specplug.text.translate.drafts import TargetDraft, target_draft
from specplug.text.translate.translator import TAIL, Context
from specplug.text.translate.vocabulary import ESCAPED
from specplug.text.translate.words import tokens_of
from tests.text.translate.tools import ALL_PAIRS, PAIRS, PARTIAL, TEXTS, target_ids, translator, vocabulary


def after(pair: tuple[str, str], ids: list[int]) -> Context:
    context = Context(translator(*pair))
    context.extend(ids)
    return context


@given(st.sampled_from(PAIRS).flatmap(lambda pair: st.tuples(st.just(pair), target_ids(pair[0]), target_ids(pair[1]))))
def test_the_bytes_are_the_drafted_ones(found):
    (target, draft), ids, drafted = found
    drafted = [token for token in drafted if token not in vocabulary(draft).controls]
    context = after((target, draft), ids)
    drafted = [*vocabulary(draft).spelled(context.held_back.decode(errors=ESCAPED)), *drafted]
    data, (new, num_stable) = vocabulary(draft).bytes_of(drafted), target_draft(context, drafted)
    data = (data.removeprefix(b" ") if context.adds_space else data)[len(context.held_back) :]
    written = vocabulary(target).bytes_of(new)
    written = written.removeprefix(b" ") if context.takes_space else written
    assert data.startswith(written)
    assert len(data) - len(written) < 4  # an incomplete character
    assert 0 <= num_stable <= len(new)
    for count in range(len(drafted)):
        before = target_draft(context, drafted[:count])
        assert before.ids[: before.num_stable] == new[: before.num_stable]


@given(st.sampled_from(PAIRS), TEXTS, st.data())
def test_what_the_target_would_write_is_found(pair, text, data):
    """The target's own tokens of a text, cut anywhere, are continued by its own from the draft's of the same text."""
    target, draft = translator(*pair).target_words, translator(*pair).draft_words
    assume(text and all(len(target.word(word)) <= TAIL for word in target.words(f" {text}")))
    own = target.text(f" {text}" if target.vocabulary.space_prefix != "never" else text)
    cut = data.draw(st.integers(0, len(own)))
    context = after(pair, own[:cut])
    rest = target.vocabulary.bytes_of(own[cut:])
    rest = context.held_back + (rest.removeprefix(b" ") if context.takes_space else rest)
    drafted = draft.text((" " if context.adds_space and rest else "") + rest.decode(errors=ESCAPED))
    assert target_draft(context, drafted).ids == own[cut:]
    found = target_draft(context, drafted[: data.draw(st.integers(0, len(drafted)))])
    assert found.ids[: found.num_stable] == own[cut:][: found.num_stable]


@given(
    st.sampled_from([pair for pair in ALL_PAIRS if {*pair} & {*PARTIAL}]).flatmap(
        lambda pair: st.tuples(st.just(pair), target_ids(pair[0]), target_ids(pair[1]))
    )
)
def test_what_the_targets_tokens_cannot_spell_ends_the_draft(found):
    (target, draft), ids, drafted = found
    own, other, context = vocabulary(target), vocabulary(draft), after((target, draft), ids)
    end = next((at for at, token in enumerate(drafted) if not other.pieces[token]), len(drafted))
    data, (new, num_stable) = other.bytes_of(drafted[:end]), target_draft(context, drafted[:end])
    data = data.removeprefix(b" ") if context.adds_space else data
    written = own.bytes_of(new)
    written = written.removeprefix(b" ") if context.takes_space else written
    if not data.startswith(context.held_back):
        assert new == []  # it contradicts the bytes of a character that the target has begun
        return
    rest = data.removeprefix(context.held_back)
    assert rest.startswith(written)
    assert 0 <= num_stable <= len(new)
    left = codecs.getincrementaldecoder("utf-8")(ESCAPED).decode(rest.removeprefix(written))
    assert not left or own.alters_text or not own.spells(tokens_of(own, left), left)


def test_a_draft_goes_up_to_what_the_target_cannot_spell():
    tiny, gaps, none = (vocabulary(name) for name in ("tiny", "gaps", "no_fallback"))
    drafted = tiny.encode(" the time\x00 of")
    context = after(("gaps", "tiny"), gaps.encode("This is"))
    assert target_draft(context, drafted).ids == gaps.encode(" the time")
    context = after(("no_fallback", "tiny"), none.encode(" This is"))
    assert target_draft(context, tiny.encode(" the 天 time")).ids == none.encode(" the ")
    assert target_draft(context, tiny.encode("天")) == TargetDraft([], 0)
    lower = vocabulary("normalising")
    context = after(("normalising", "tiny"), lower.encode("this is"))
    assert target_draft(context, tiny.encode(" the Time")).ids == [*lower.encode(" the"), *lower.encode(" ")]


def test_complete_words_are_stable():
    drafted = vocabulary("tiny").encode(" is a test")
    found = target_draft(after(("tekken", "tiny"), vocabulary("tekken").encode("This")), drafted)
    assert found.ids == vocabulary("tekken").encode(" is a test")
    assert found.num_stable == 2


def test_tokens_continue_the_targets_own_even_if_its_tokenizer_would_write_the_word_otherwise():
    tekken, tiny = vocabulary("tekken"), vocabulary("tiny")
    context = after(("tekken", "tiny"), tekken.encode(" Hel"))
    assert tekken.encode(" Hello")[0] != tekken.encode(" Hel")[0]
    assert target_draft(context, tiny.encode("lo there")).ids == tekken.encode("lo there")


def test_a_draft_ends_at_a_special_token():
    spm1, tiny = vocabulary("spm1"), vocabulary("tiny")
    context = after(("spm1", "tiny"), [1, *spm1.encode(" Yes")])
    assert target_draft(context, [*tiny.encode(" I do"), tiny.eos_id, 500]) == TargetDraft(
        [*spm1.encode(" I do"), spm1.eos_id], 3
    )
    assert target_draft(context, [*tiny.encode(" I do"), 3, 500]) == TargetDraft(spm1.encode(" I do"), 2)
    for padding in (-1, 2048):
        assert target_draft(context, [*tiny.encode(" I do"), padding, 500]) == TargetDraft(spm1.encode(" I do"), 2)
    assert target_draft(context, []) == TargetDraft([], 0)


def test_the_first_word_after_a_special_token_has_its_space():
    spm3, tekken = vocabulary("spm3"), vocabulary("tekken")
    context = after(("spm3", "tekken"), [1, 3, *spm3.encode(" Hi"), 4])
    assert target_draft(context, tekken.encode("Hello there")).ids == spm3.encode(" Hello there")
    context = after(("tekken", "spm3"), [1, 3, *tekken.encode("Hi"), 4])
    assert target_draft(context, spm3.encode(" Hello there")).ids == tekken.encode("Hello there")


def test_a_character_that_the_target_has_begun_is_completed_or_nothing_is_drafted():
    tekken, tiny = vocabulary("tekken"), vocabulary("tiny")
    context = after(("tekken", "tiny"), [tekken.byte_ids[byte] for byte in "👍".encode()[:2]])
    assert tekken.bytes_of(target_draft(context, tiny.encode("👍 a")).ids) == "👍".encode()[2:] + b" a"
    assert target_draft(context, tiny.encode("é or 天")) == TargetDraft([], 0)
    assert target_draft(context, tiny.spelled("👍")[:1]) == TargetDraft([], 0)


def test_a_word_of_more_tokens_than_are_looked_at_is_continued():
    tekken, tiny = vocabulary("tekken"), vocabulary("tiny")
    digits = "".join(map(str, range(10, 40)))
    context = after(("tekken", "tiny"), tekken.encode(digits))
    assert len(context.tail) == TAIL < len(tekken.encode(digits))
    assert target_draft(context, tiny.encode("567 is")).ids == tekken.encode("567 is")


def test_a_token_of_several_bytes_that_are_no_character_is_continued():
    tekken, tiny = vocabulary("tekken"), vocabulary("tiny")
    piece = next(piece for piece in tekken.pieces if len(piece) == 2 and max(piece) < 0xC0 and min(piece) >= 0x80)
    context = after(("tekken", "tiny"), [tekken.pieces.index(piece)])
    assert target_draft(context, tiny.encode(" is")).ids == tekken.encode(" is")
