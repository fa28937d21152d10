"""States of SGLang's grammars, of its backends; those that cannot roll back get no drafts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from specplug.grammar.states import follow
from specplug.text.request_tokenizer import TAIL, JumpForwardTokenizer
from specplug.types.draft import NO_TOKEN
from specplug_sglang.requests import can_roll_back
from specplug_sglang.scheduler.grammar import GrammarObjectState
from tests.engines.matchers import REGEX, allows, legal, matcher
from tests.engines.plain import ids, tokenizer
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.launch import FEATURES
from tests.engines.suites.features import LOOP, assert_same
from tests.engines.suites.grammar import LOOKUP

pytestmark = pytest.mark.parametrize("kind", ["overlap"], indirect=True, scope="session")


@pytest.fixture
def drafting(start) -> Engine:
    """The engine of `test_grammar`."""
    return start(LOOKUP, name="grammars", **FEATURES).engine


def state_of(regex: str | None, text: list[int]) -> GrammarObjectState:
    """Return the adapter's state of SGLang's own grammar object after a text."""
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar

    after = matcher(regex)
    assert allows(after, text)
    vocabulary = tokenizer()
    grammar = XGrammarGrammar(after, len(vocabulary), None, None)
    return GrammarObjectState(grammar, len(vocabulary), JumpForwardTokenizer(vocabulary), text[-TAIL:])


@pytest.mark.parametrize("regex", [None, "(ab|a,)*[0-9]{3}"])
def test_states_say_what_the_matcher_says(regex, drafting):
    assert drafting.inside(follow_texts, regex=regex) > 2


def follow_texts(scheduler: Any, regex: str | None) -> int:
    """Along a random legal text, the legal, forced and followed tokens equal those found by trying each token."""
    stream, plain, vocabulary = random.Random(3), matcher(regex), len(tokenizer())
    text: list[int] = []
    for _ in range(24):
        allowed = legal(plain, text)
        state = state_of(regex, text)
        assert state.forced() == (next(iter(allowed)) if len(allowed) == 1 else NO_TOKEN)
        for token in stream.sample(range(vocabulary), 40) + list(allowed)[:20]:
            assert state.advance(token) == (token in allowed)
            state.rollback(int(token in allowed))
        drafted = [*stream.sample(sorted(allowed), 1), *stream.sample(range(vocabulary), 2)]
        found = follow(state, drafted, 8)
        assert found == follow(state, drafted, 8), "it is left as it was"
        kept = max(length for length in range(len(drafted) + 1) if allows(plain, text + drafted[:length]))
        assert allows(plain, text + drafted[:kept] + found.added)
        for place, level in enumerate(found.confidence):
            after = text + drafted[:kept] + found.added[:place]
            assert level < 1.0 or legal(plain, after) == {found.added[place]}
        text.append(stream.choice(sorted(allowed)))
        if text[-1] == tokenizer().eos_token_id:
            break
    return len(text)


def test_rollbacks_copy_none_of_the_output(drafting):
    """SGLang's own copy the whole list of accepted tokens, at each of a draft's nodes."""
    assert drafting.inside(roll_back, count=40) == [True, 25]


def roll_back(scheduler: Any, count: int) -> list[bool | int]:
    """Return whether XGrammar's list of accepted tokens is the same one after a rollback, and its length then."""
    grammar = state_of("[x]*", [])._grammar
    for _ in range(count):
        grammar.accept_token(ids("x")[0])
    accepted = grammar.accepted_tokens
    grammar.rollback(0)
    grammar.rollback(15)
    return [grammar.accepted_tokens is accepted, len(grammar.accepted_tokens)]


def test_grammars_that_cannot_go_back_get_no_drafts(start):
    """Those of Outlines, that is; others of the batch get them."""
    served = start(LOOKUP, name="outlines", **{**FEATURES, "grammar_backend": "outlines"})
    served.engine.inside(hash_tokenizers)
    params = [{"structured_outputs": {"regex": REGEX}}, {"ignore_eos": True}]
    expected = start(None, name="plain grammars", **FEATURES).generate([LOOP] * 2, params, together=True)
    alone, both = served.counted([LOOP], params[0]), served.counted([LOOP] * 2, params)
    assert alone["total"]["verified"] == 0 < both["total"]["verified"]
    for one, other in zip(expected, both["answers"], strict=True):
        assert_same(one, other)


def test_a_reasoners_grammar_goes_back_if_the_one_within_does(drafting):
    assert drafting.inside(which_go_back) == [False, True]


def which_go_back(scheduler: Any) -> list[bool]:
    """Return it of reasoners' grammars around one without a way back, as Outlines' are, and around XGrammar's."""
    from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject
    from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject

    within = BaseGrammarObject(), state_of(REGEX, [])._grammar
    return [can_roll_back(ReasonerGrammarObject(grammar, [5])) for grammar in within]


def hash_tokenizers(scheduler: Any) -> None:
    """Let Outlines hash its tokenizer without the package `datasets`."""
    from outlines.models.transformers import TransformerTokenizer

    TransformerTokenizer.__hash__ = lambda tokenizer: hash(tokenizer.eos_token_id)
