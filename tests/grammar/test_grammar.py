"""Drafts and grammars, on toy grammars; tests/engines holds the same functions to XGrammar's matchers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.faults import FaultGuard
from specplug.grammar.drafts import SOURCE, Completer, complete, split_grammar_verdict
from specplug.grammar.states import CERTAIN, LIKELY, AllowedState, MaskState, bit, bits_of, follow, only_bit
from specplug.metrics import SpecMetrics
from specplug.testing.batches import make_batch
from specplug.text.request_tokenizer import JumpForwardTokenizer
from specplug.types.caps import Distribution
from specplug.types.draft import NO_TOKEN
from specplug.types.paths import ROOT
from specplug.types.step import Draft, Outcome, Verdict

VOCAB, END = 8, 7
TEXT = [1, 2]

Rules = dict[tuple[int, ...], frozenset[int]]


def allowed_by(rules: Rules):
    """A grammar of the last two tokens; texts that it does not know go on with anything."""

    def allowed(text: Sequence[int]) -> frozenset[int]:
        return rules.get(tuple(text[-2:]), frozenset(range(VOCAB)))

    return allowed


tokens = st.integers(0, VOCAB - 1)
grammars = st.dictionaries(st.tuples(tokens, tokens), st.frozensets(tokens, max_size=3), max_size=64).map(allowed_by)


def is_legal(allowed, text: Sequence[int], more: Sequence[int]) -> bool:
    return all(token in allowed([*text, *more[:place]]) for place, token in enumerate(more))


def legal_part(allowed, drafted: Sequence[int]) -> list[int]:
    """The longest legal part of a draft, up to its end."""
    kept: list[int] = []
    while len(kept) < len(drafted) and END not in kept and drafted[len(kept)] in allowed([*TEXT, *kept]):
        kept.append(drafted[len(kept)])
    return kept


class Masked(MaskState):
    """A `MaskState` over the same kind of function, kept as engines keep theirs."""

    def __init__(self, allowed, text: Sequence[int]) -> None:
        super().__init__(VOCAB)
        self.allowed, self.text, self.start = allowed, list(text), len(text)

    def _fill(self) -> None:
        assert (self._mask == -1).all()
        self._mask[0, 0] = sum(1 << token for token in self.allowed(self.text))

    def _accept(self, token: int) -> bool:
        self.text.append(token)
        return True

    def _take_back(self, count: int) -> None:
        assert 0 < count <= len(self.text) - self.start
        del self.text[-count:]

    def _jump_forward(self) -> str:
        return ""

    @property
    def is_ended(self) -> bool:
        return len(self.text) > self.start and self.text[-1] == END


@settings(deadline=None, max_examples=200)
@given(grammars, st.lists(tokens, max_size=6), st.integers(0, 8))
def test_following(allowed, drafted, more):
    """All tokens are added that are forced after the longest legal part."""
    room = len(drafted) + more
    state = Masked(allowed, TEXT)
    found = follow(state, drafted, room)
    assert state.text == TEXT
    kept = legal_part(allowed, drafted)
    text = [*TEXT, *kept]
    for token in found.added:
        assert allowed(text) == {token} != {END}
        text.append(token)
    assert found.confidence == [CERTAIN] * len(found.added)
    whole = len(kept) + len(found.added)
    assert whole <= room
    if whole < room and END not in kept:
        assert len(allowed(text)) != 1 or allowed(text) == {END}


@settings(deadline=None, max_examples=200)
@given(grammars, st.lists(tokens, max_size=6), st.integers(0, 8))
def test_masks_say_what_the_reference_says(allowed, drafted, more):
    room = len(drafted) + more
    states = Masked(allowed, TEXT), AllowedState(allowed, TEXT, {END})
    masked, plain = (complete(draft_of([drafted], room), [state], [room]) for state in states)
    assert (masked.cut, ids_of(masked.draft)) == (plain.cut, ids_of(plain.draft))


def batch_of(rows: int):
    return make_batch([TEXT] * rows, vocab_size=VOCAB)


def draft_of(rows: Sequence[Sequence[int]], draft_length: int, parents: Sequence[Sequence[int]] | None = None) -> Draft:
    draft = Draft.allocate(len(rows), draft_length, trees=parents is not None, sources=("only",))
    for row, ids in enumerate(rows):
        draft.set_row(row, ids, 0.5, parents=None if parents is None else parents[row])
    return draft


def ids_of(draft: Draft) -> list[list[int]]:
    return [row[:length] for row, length in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)]


chains = st.lists(st.tuples(st.lists(tokens, max_size=6), st.none() | grammars), min_size=1, max_size=4)


@settings(deadline=None, max_examples=100)
@given(chains, st.integers(0, 6), st.none() | st.integers(0, 20))
def test_batches_row_by_row(rows, more, budget):
    draft_length = max(len(ids) for ids, _ in rows) + more
    drafted = [ids for ids, _ in rows]
    given_draft = draft_of(drafted, draft_length)
    states = [None if allowed is None else Masked(allowed, TEXT) for _, allowed in rows]
    done = complete(given_draft, states, [draft_length] * len(rows), budget)
    assert ids_of(given_draft) == drafted, "it is not ours to change"
    free = follow_all(rows, draft_length)
    added = [[] for _ in rows] if done.forced is None else ids_of(done.forced)
    assert ids_of(done.draft) == [kept + more for (kept, _), more in zip(free, added, strict=True)], (
        "cut, and what was added behind"
    )
    for (_, most), own in zip(free, added, strict=True):
        assert own == most[: len(own)]
    legal = sum(len(kept) for kept, _ in free)
    if budget is None:
        assert added == [most for _, most in free]
    else:
        assert sum(map(len, added)) == min(sum(len(most) for _, most in free), max(0, budget - legal))
    assert done.cut == [len(ids) - len(kept) for (ids, _), (kept, _) in zip(rows, free, strict=True)]
    done.draft.validate()
    assert (done.draft.confidence[~done.draft.mask()] == 0).all()
    assert (done.draft.token_ids[~done.draft.mask()] == NO_TOKEN).all()


def follow_all(rows, draft_length: int) -> list[tuple[list[int], list[int]]]:
    found = []
    for ids, allowed in rows:
        if allowed is None:
            found.append((list(ids), []))
        else:
            found.append((legal_part(allowed, ids), follow(Masked(allowed, TEXT), ids, draft_length).added))
    return found


@st.composite
def forests(draw):
    count = draw(st.integers(1, 8))
    return [draw(tokens) for _ in range(count)], [draw(st.integers(ROOT, node - 1)) for node in range(count)]


@settings(deadline=None, max_examples=200)
@given(forests(), grammars, st.integers(0, 4))
def test_trees_lose_what_hangs_on_illegal_nodes(tree, allowed, more):
    ids, parents = tree
    draft_length = len(ids) + more
    state = Masked(allowed, TEXT)
    done = complete(draft_of([ids], draft_length, [parents]), [state], [draft_length])
    assert state.text == TEXT
    expected = [path for path in paths_of(ids, parents) if is_legal(allowed, TEXT, path) and END not in path[:-1]]
    own = int(done.draft.lengths[0]) - (0 if done.forced is None else int(done.forced.lengths[0]))
    assert done.draft.parents is not None
    found_ids, found_parents = ids_of(done.draft)[0], done.draft.parents[0].tolist()
    assert paths_of(found_ids[:own], found_parents[:own]) == expected
    is_chain = found_parents[:own] == list(range(-1, own - 1))
    if done.forced is not None:
        assert is_chain
        assert found_parents[: len(found_ids)] == list(range(-1, len(found_ids) - 1))
    elif is_chain:
        assert follow(Masked(allowed, TEXT), found_ids, draft_length).added == []


def paths_of(ids: Sequence[int], parents: Sequence[int]) -> list[list[int]]:
    """The text that leads to each node, itself included."""
    paths: list[list[int]] = []
    for token, parent in zip(ids, parents, strict=False):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


# -- distributions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", [Distribution.PROBS, Distribution.LOGITS])
def test_rows_with_a_grammar_state_no_distribution(distribution):
    """Cut or not; the others keep theirs."""
    draft = Draft.allocate(3, 4, distribution=distribution, vocab_size=VOCAB, sources=("only",))
    stated = draft.draft_probs if distribution is Distribution.PROBS else draft.draft_logits
    assert stated is not None
    stated.copy_(torch.rand(3, 4, VOCAB) if distribution is Distribution.PROBS else torch.randn(3, 4, VOCAB))
    before = stated.clone()
    for row in range(3):
        draft.set_row(row, [3, 4], 0.5)
    states = [Masked(allowed_by({(1, 2): frozenset({5})}), TEXT), None, Masked(allowed_by({}), TEXT)]
    done = complete(draft, states, [4, 4, 4])
    assert ids_of(done.draft) == [[5], [3, 4], [3, 4]]
    stated = done.draft.draft_probs if distribution is Distribution.PROBS else done.draft.draft_logits
    assert stated is not None
    assert done.draft.drawn is not None
    assert done.draft.drawn.all(1).tolist() == [False, True, False]
    assert done.draft.drawn.any(1).tolist() == [False, True, False]
    assert torch.equal(stated[1], before[1])


# -- what is told ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(*[st.integers(0, 4)] * 5), min_size=1, max_size=5))
def test_reported_apart(rows):
    """The proposer's and the grammar's counts add up to the engine's, and proposers do not see the grammar's."""
    proposed, cut, forced, verified, accepted = (torch.tensor(column).int() for column in zip(*rows, strict=True))
    cut = torch.minimum(cut, proposed)
    verified = torch.minimum(verified, proposed - cut + forced)
    accepted = torch.minimum(accepted, verified)
    added = Draft.of_rows([[5] * int(n) for n in forced], [[1.0] * int(n) for n in forced], 4)
    outcome = Outcome(verified, accepted, accepted + 1, cut_by_grammar=cut, forced=added)
    verdict = Verdict.build(proposed, outcome)
    draft, fate, reached = split_grammar_verdict(batch_of(len(rows)).lengths, outcome, verdict)
    draft.validate()
    assert torch.equal(verdict.verified + fate.verified, verified)
    assert torch.equal(verdict.accepted + fate.accepted, accepted)
    assert torch.equal(fate.proposed, forced)
    assert torch.equal(reached, (verdict.accepted == proposed - cut) & (fate.verified > 0))
    metrics = SpecMetrics(("own", SOURCE), 4)
    metrics.record(torch.zeros(len(rows), 4, dtype=torch.int32), verdict)
    metrics.record_added(SOURCE, fate, reached)
    by_source = metrics.snapshot().by_source
    assert by_source[SOURCE].accepted + by_source["own"].accepted == int(accepted.sum())
    assert by_source[SOURCE].target_steps == by_source[SOURCE].emitted == 0
    assert by_source["own"].emitted == int(accepted.sum()) + len(rows)
    assert by_source[SOURCE].tested == int((torch.minimum(fate.accepted + 1, fate.verified) * reached).sum())
    assert by_source[SOURCE].rejected <= len(rows)
    assert draft.sources == (SOURCE,)
    assert draft.source[draft.mask()].tolist() == [0] * int(forced.sum()), "under a name of their own"


def test_faults_cost_what_grammars_would_do():
    raised: list[tuple[str, str]] = []

    class Broken(Masked):
        def _fill(self) -> None:
            raise RuntimeError("planted")

    completer = Completer(FaultGuard(SOURCE, sink=lambda *reported: raised.append(reported)))
    draft = draft_of([[3, 4]], 4)
    assert completer.complete(draft, [Broken(allowed_by({}), TEXT)], torch.tensor([4])) is draft
    assert raised == [(SOURCE, "raised")]
    outcome = Outcome(*[torch.ones(1, dtype=torch.int32)] * 3)
    assert completer.annotated(outcome) is outcome


def test_a_step_is_reported_once():
    completer = Completer(FaultGuard(SOURCE))
    state = Masked(allowed_by({(1, 2): frozenset({5})}), TEXT)
    completer.complete(draft_of([[3, 4]], 4), [state], torch.tensor([4]))
    outcome = Outcome(*[torch.ones(1, dtype=torch.int32)] * 3)
    stated = completer.annotated(outcome)
    assert stated.cut_by_grammar is not None
    assert stated.cut_by_grammar.tolist() == [2]
    assert completer.annotated(outcome) is outcome


# -- masks and text -------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 100).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), max_size=4)))
)
def test_bits(given_set):
    size, legal = given_set
    words = np.zeros(-(-size // 32), dtype=np.uint32)
    for token in legal:
        words[token // 32] |= np.uint32(1 << token % 32)
    words = words.view(np.int32)
    assert {token for token in range(-1, size + 40) if bit(words, token)} == legal
    assert only_bit(words) == (next(iter(legal)) if len(legal) == 1 else NO_TOKEN)
    assert bits_of(words, 4) == sorted(legal)
    assert bits_of(words, 2) == (sorted(legal) if len(legal) <= 2 else None)


class Letters:
    """A tokenizer of letters in which some pairs are one token: ids are places in `PIECES`."""

    PIECES = ("a", "b", "c", "ab", "bc", "d", "cd", "<end>")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        ids = []
        while text:
            piece = max((p for p in self.PIECES if text.startswith(p)), key=len)
            ids.append(self.PIECES.index(piece))
            text = text[len(piece) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.PIECES[i] for i in ids)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.PIECES[i] for i in ids]


class Texts(Masked):
    """A grammar that knows its texts: all that are a beginning of one of them are legal."""

    def __init__(self, *texts: str, tail: Sequence[int] = ()) -> None:
        pieces = Letters.PIECES

        def allowed(text: Sequence[int]) -> set[int]:
            stated = "".join(pieces[i] for i in text)
            going_on = {i for i, p in enumerate(pieces[:-1]) if any(t.startswith(stated + p) for t in texts)}
            return going_on | ({END} if stated in texts else set())

        super().__init__(allowed, ())
        self.texts, self._canonical, self._tail = texts, JumpForwardTokenizer(Letters()), list(tail)

    def _jump_forward(self) -> str:
        stated = "".join(Letters.PIECES[i] for i in self.text)
        rests = [text[len(stated) :] for text in self.texts if text.startswith(stated)]
        common = "".join(a[0] for a in itertools.takewhile(lambda c: len(set(c)) == 1, zip(*rests, strict=False)))
        return common


def test_the_canonical_tokens_of_a_jump_forward_string():
    """A token is certain if no other can follow."""
    found = follow(Texts("abcd"), [], 8)
    assert [Letters.PIECES[i] for i in found.added] == ["ab", "cd"]
    assert found.confidence == [LIKELY, LIKELY]
    assert follow(Texts("acbd"), [], 8) == ([0, 2, 1, 5], [CERTAIN] * 4)


def test_the_last_token_may_go_on_behind_forced_text():
    """Both texts certainly contain "ab", but one of them may be tokenized with "bc"."""
    assert follow(Texts("abcd", "abda"), [0], 8).added == []
    assert follow(Texts("acbd", "acba"), [], 8).added == [0, 2, 1]
