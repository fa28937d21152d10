"""Drafted ids become draft tokens of the target: common ids one by one, all others by their text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cache
from itertools import groupby, takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.draft_model.pairing import Pair, SameIds
from specplug.text.translate.intersection import intersect
from specplug.text.translate.translator import Context
from specplug.text.translate.vocabulary import ESCAPED
from specplug_crosstok.writing import COMMON, OPEN_WORD, TEXT, Tokens, target_tokens
from tests.proposers.crosstok_tools import OTHER, VOCAB, tokenizer
from tests.text.translate.tools import TEXTS, translator, vocabulary

PAIRS = (("tiny", "tekken"), ("tekken", "tiny"), ("tiny", "byte_level"), ("byte_level", "tekken"), ("tekken", "spm3"))


@cache
def to_target(target: str, draft: str) -> np.ndarray:
    return intersect(vocabulary(target), vocabulary(draft)).to_target


@cache
def pair() -> Pair:
    return Pair.of(tokenizer(), tokenizer(OTHER), VOCAB, 1024)


def after(text: str) -> Context:
    context = pair().translation()
    assert isinstance(context, Context)
    context.extend(target(text))
    return context


def target(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


def draft(text: str) -> list[int]:
    return tokenizer(OTHER).encode(text, add_special_tokens=False)


def written(before: str, drafted: Sequence[int], is_common: Sequence[bool]) -> Tokens:
    probabilities = np.linspace(0.5, 0.9, len(drafted))
    return target_tokens(after(before), pair().intersection.to_target, drafted, is_common, probabilities)


def test_common_ids_become_the_tokens_that_they_correspond_to():
    drafted = [token for token in draft("return self") if pair().intersection.to_target[token] >= 0]
    assert len(drafted) >= 2
    found = written("x", drafted, [True] * len(drafted))
    assert found.ids == [int(pair().intersection.to_target[token]) for token in drafted]
    assert found.sources == [COMMON] * len(drafted)
    assert found.steps == list(range(len(drafted)))
    assert found.probabilities == np.linspace(0.5, 0.9, len(drafted)).tolist()


def test_with_one_tokenizer_ids_stay_as_they_are():
    found = target_tokens(SameIds(VOCAB), np.arange(VOCAB, dtype=np.int32), [5, 0, 7], [True] * 3, np.ones(3))
    assert (found.ids, found.sources, found.steps) == ([5, 0, 7], [COMMON] * 3, [0, 1, 2])


def test_text_becomes_the_targets_own_tokens_and_only_its_last_word_may_go_on():
    text = " return the value of"
    found = written("def f():\n   ", draft(text), [False] * len(draft(text)))
    assert found.ids == target(text)
    assert found.steps == [-1] * len(found.ids)
    last = len(target(" of"))
    assert found.sources == [TEXT] * (len(found.ids) - last) + [OPEN_WORD] * last


def test_text_between_common_ids_continues_them():
    """The text after a common id is encoded as the target writes it after that token."""
    start, rest = draft(" in"), draft("put value is")
    assert len(start) == 1
    found = written("the", [*start, *rest], [True] + [False] * len(rest))
    own = int(pair().intersection.to_target[start[0]])
    assert found.ids[0] == own
    assert tokenizer().decode(found.ids) == " input value is"
    assert found.ids[-2:] == target(" value is")
    assert (found.sources[0], found.steps) == (COMMON, [0] + [-1] * (len(found.ids) - 1))


@pytest.mark.parametrize(
    ("names", "before", "common", "rest", "expected"),
    [
        (("tekken", "tiny"), "1", "!", "_string", ["!", "_", "string"]),  # alone it would begin with "_string"
        (("spm3", "tekken"), "", " material", " no", [" material", " no"]),  # only a text's beginning has another space
    ],
)
def test_the_tokens_before_a_text_decide_how_it_is_written(names, before, common, rest, expected):
    own, other = map(vocabulary, names)
    context = Context(translator(*names))
    context.extend(own.encode(before))
    drafted = [*other.encode(common), *other.encode(rest)]
    is_common = [True] + [False] * (len(drafted) - 1)
    found = target_tokens(context, to_target(*names), drafted, is_common, np.ones(len(drafted)))
    assert [own.pieces[token].decode() for token in found.ids] == expected


def test_common_ids_may_follow_text():
    first, last = draft("Returns it"), draft(" is")
    assert pair().intersection.to_target[last[0]] >= 0
    found = written("\n", [*first, *last], [False] * len(first) + [True])
    assert found.ids == [*target("Returns it"), int(pair().intersection.to_target[last[0]])]
    assert (found.sources[-1], found.steps[-1]) == (COMMON, len(first))


@pytest.mark.parametrize("as_common", [True, False])
def test_a_draft_ends_with_its_first_special_token(as_common: bool):
    words, end = draft(" end"), pair().translator.draft.eos_id
    drafted = [*words, end, *words, *words]
    found = written("x", drafted, [as_common] * len(drafted))
    assert found.ids[-1] == pair().translator.target.eos_id
    assert tokenizer().decode(found.ids[:-1]) == " end"
    assert len(found.ids) == len(found.sources) == len(found.probabilities) == len(found.steps)
    mixed = written("x", drafted, [False] * len(words) + [True] + [False] * 2 * len(words))
    assert mixed.ids == [*target(" end"), pair().translator.target.eos_id]


def test_padding_of_the_draft_models_logits_ends_the_draft_before_it():
    padding = len(pair().translator.draft.pieces)
    found = written("x", [*draft(" end"), padding, *draft(" more")], [False] * (len(draft(" end more")) + 1))
    assert found.ids == target(" end")


def test_a_special_token_that_the_target_lacks_ends_the_draft_before_it():
    names = ("tiny", "spm3")
    lacking = next(token for token in vocabulary("spm3").controls if token not in translator(*names).controls.to_target)
    context = Context(translator(*names))
    context.extend(target("x"))
    drafted = [*vocabulary("spm3").encode(" end"), lacking, *vocabulary("spm3").encode(" more")]
    found = target_tokens(context, to_target(*names), drafted, [False] * len(drafted), np.ones(len(drafted)))
    assert found.ids == target(" end")


def test_a_text_that_ends_within_a_character_ends_the_draft():
    whole, begun = draft(" a"), draft("天")[:1]
    assert len(draft("天")) > 1
    common = next(token for token in draft(" is") if pair().intersection.to_target[token] >= 0)
    found = written("x", [*whole, *begun, common], [False] * (len(whole) + 1) + [True])
    assert found.ids == target(" a")
    assert written("x", begun, [False]).ids == []


def test_a_character_that_the_target_has_begun_is_completed():
    context = pair().translation()
    context.extend(target("天")[:1])
    assert context.held_back
    found = target_tokens(
        context, pair().intersection.to_target, draft("天 is"), [False] * len(draft("天 is")), np.ones(9)
    )
    assert tokenizer().decode([*target("天")[:1], *found.ids]) == "天 is"
    other = target_tokens(context, pair().intersection.to_target, draft("é"), [False] * len(draft("é")), np.ones(9))
    assert other.ids == []


def test_a_token_is_as_probable_as_what_begins_in_it():
    drafted = draft(" cont")
    assert (len(drafted), len(target(" cont"))) == (1, 2)
    found = target_tokens(after("x"), pair().intersection.to_target, drafted, [False], np.array([0.4]))
    assert found.probabilities == [0.4, 1.0]
    word = target(" self")
    assert (len(word), len(draft(" self"))) == (1, 1)
    letters = [token for letter in " self" for token in draft(letter)]
    found = target_tokens(after("x"), pair().intersection.to_target, letters, [False] * 5, np.full(5, 0.5))
    assert (found.ids, found.probabilities) == (word, [0.5**5])
    two = draft(" self is")
    assert len(two) == len(target(" self is")) == 2
    found = target_tokens(after("x"), pair().intersection.to_target, two, [False] * 2, np.array([0.5, 0.25]))
    assert found.probabilities == [0.5, 0.25]


def test_bytes_that_are_held_back_count_for_the_first_token():
    context = pair().translation()
    context.extend(target("天")[:1])
    (common,) = draft(" is")
    drafted = [*draft("天"), common]
    probabilities = np.full(len(drafted), 0.5)
    found = target_tokens(
        context, pair().intersection.to_target, drafted, [False] * (len(drafted) - 1) + [True], probabilities
    )
    assert found.ids == [*target("天")[1:], int(pair().intersection.to_target[common])]
    assert found.probabilities == [0.25, *[0.5] * (len(found.ids) - 1)]


@st.composite
def drafts(draw: st.DrawFn) -> tuple[tuple[str, str], str, list[int], list[bool]]:
    """Return a pair of tokenizers, a text before, and drafted ids, some of which are taken as common ones."""
    names = draw(st.sampled_from(PAIRS))
    found = vocabulary(names[1])
    parts = draw(st.lists(st.one_of(TEXTS.map(found.encode), st.lists(st.integers(0, 999), max_size=4)), max_size=4))
    ids = [token for part in parts for token in part if not (token in found.controls and draw(st.booleans()))][:60]
    may = to_target(*names)[ids] >= 0
    return names, draw(TEXTS), ids, [bool(can) and draw(st.booleans()) for can in may]


def expected_bytes(names: tuple[str, str], ids: list[int], is_common: list[bool]) -> bytes:
    """Return the drafted bytes up to the first special token, or to the first text that ends within a character."""
    pieces, data = vocabulary(names[1]).pieces, b""
    for common, group in groupby(range(len(ids)), is_common.__getitem__):
        own = [pieces[ids[at]] for at in group]
        plain = list(takewhile(len, own))
        decoder = codecs.getincrementaldecoder("utf-8")(ESCAPED)
        decoder.decode(b"".join(plain), final=common or len(plain) < len(own))
        begun = len(decoder.getstate()[0])
        data += b"".join(plain)[: -begun or None]
        if begun or len(plain) < len(own):
            return data
    return data


@given(drafts())
def test_the_bytes_are_the_drafted_ones(found):
    names, before, ids, is_common = found
    context, own = Context(translator(*names)), vocabulary(names[0])
    context.extend(own.encode(f"{before}."))
    tokens = target_tokens(context, to_target(*names), ids, is_common, np.full(len(ids), 0.5))
    plain = [token for token in tokens.ids if token not in own.controls]
    assert own.bytes_of(plain) == expected_bytes(names, ids, is_common)
    assert tokens.ids[: len(plain)] == plain
    assert len(tokens.ids) - len(plain) <= 1, "a special token ends the draft"
    assert len(tokens.ids) == len(tokens.sources) == len(tokens.probabilities) == len(tokens.steps)
    for token, source, step in zip(tokens.ids, tokens.sources, tokens.steps, strict=True):
        assert (source == COMMON) == (step >= 0)
        assert step < 0 or (is_common[step] and token == to_target(*names)[ids[step]])
    steps = [step for step in tokens.steps if step >= 0]
    assert steps == sorted(set(steps))
    assert all(0 < probability <= 1 for probability in tokens.probabilities)
