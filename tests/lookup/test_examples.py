"""What the lookup drafts and learns, by examples, in the reference and in the form for CPUs."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from specplug.lookup import candidates, counts, storage
from specplug.lookup import layout as at
from tests.lookup.talk import Talk

SONG = [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("responses", "text", "expected", "source"),
    [
        # of own text, the newest of the longest matches is continued into the draft
        ([], [1, 2, 3, 9, 2, 3, 8, 2, 3], [8, 2, 3, 8, 2, 3, 8, 2], 0),
        ([], [1, 2, 3, 9, 2, 3, 8, 1, 2, 3], [9, 2, 3, 8, 1, 2, 3, 9], 0),
        ([], [5, 5, 5], [5] * 8, 0),
        ([], [5], [], 0),
        ([], [5, -1, -1], [], 0),
        ([], [4, 6, -1, 4, -1, 5, 4], [], 0),
        # a response is found by one token, and by its prompt, which is not drafted
        ([([], [1, 2, 3, 4])], [9, 1, 2], [3, 4], 2),
        ([([], [1, 2, 3, 4])], [7, 8, 9, 7, 8], [9, 7, 8, 9, 7, 8, 9, 7], 0),
        ([([], SONG)], [50, 8], [9], 2),
        ([([1, 2, 3, 4], [5, 6, 7])], [9, 3, 4], [5, 6, 7], 2),
        ([([1, 2, 3, 4], [5, 6, 7])], [9, 1, 2], [], 2),
    ],
)
def test_what_is_continued(
    form: ModuleType, responses: list[tuple[list[int], list[int]]], text: list[int], expected: list[int], source: int
) -> None:
    talk = Talk(form)
    for number, (prompt, response) in enumerate(responses):
        talk.remember(1, response, number, prompt)
    talk.begin(0, text, 1)
    assert (talk.draft(0), talk.sources) == (expected, [source] * len(expected))


def test_a_match_ends_at_its_text_s_first_token_and_at_64_tokens(form: ModuleType) -> None:
    talk = Talk(form)
    talk.begin(0, [3, 4], references=[1, 2, 3, 4, 6, -1])
    assert talk.draft(0, 3) == [6]
    assert talk.sources == [1]
    views = storage.views(talk.state)
    assert views.matches[0, 0] == (2 << 32) + 4
    talk.begin(0, [*range(100, 170), 1, *range(100, 170)])
    talk.draft(0)
    assert views.matches[0, 0] >> 32 == at.LONGEST
    talk.begin(0, [*range(100, 170), 1, *range(100, 170), 2, *range(103, 170)])
    talk.draft(0)
    assert views.matches[0, 0] & 0xFFFF == 141  # the older place matches as many


def test_a_response_is_found_by_one_token_unless_four_match_in_another(form: ModuleType) -> None:
    talk = Talk(form)
    talk.remember(1, SONG, 0)
    talk.remember(1, [20, 6, 30, 31], 0)
    talk.begin(0, [3, 4, 5, 6], 1)
    assert talk.draft(0) == [7, 8, 9]
    assert (talk.state.voted[0, 0] == 30).sum() == 0
    talk.begin(0, [50, 6], 1)
    talk.draft(0)
    assert (talk.state.voted[0, 0] == 30).sum() == 1


def test_old_responses_are_dead(form: ModuleType) -> None:
    talk = Talk(form)  # a ring of 256 tokens
    talk.remember(1, [1, 2, 3, 4], 0)
    for number in range(1, 30):
        talk.begin(0, [9, 1, 2], 1)
        assert talk.draft(0) == ([3, 4] if number <= 16 else []), number
        talk.remember(1, [50 + number, 51 + number], number)
    storage.clear(talk.state)
    talk.begin(0, [9, 78], 1)
    assert talk.draft(0) == []


def test_a_text_that_diverges_is_followed_on(form: ModuleType) -> None:
    """After a replaced, an inserted and a deleted token, in own text and in a response."""
    talk = Talk(form)
    for start, owner in (([*SONG, 50, 51], 0), ([60], 1)):
        if owner:
            talk.remember(1, SONG, 0)
        for edit, expected in (([30], 5), ([30, 4], 5), ([5], 6)):
            talk.begin(0, [*start, 1, 2, 3], owner)
            assert talk.draft(0)[:2] == [4, 5]
            talk.extend(0, edit)
            assert talk.draft(0)[:1] == [expected], (edit, owner)


def test_a_text_that_diverged_long_ago_is_no_longer_followed(form: ModuleType) -> None:
    for tokens, expected in ((at.FORGET - 1, True), (at.FORGET, False)):
        talk = Talk(form)
        talk.begin(0, [*range(100, 200), 50, 100, 101])
        assert talk.draft(0)[:2] == [102, 103]
        talk.extend(0, range(200, 200 + tokens))
        assert (talk.draft(0)[:1] == [102 + tokens]) == expected


def test_the_ring_is_read_where_it_is_live_and_the_owner_s(form: ModuleType) -> None:
    talk = Talk(form)  # a ring of 256 tokens
    for number in range(30):
        talk.remember(1 + number % 2, [number, number, number], number)
    state = storage.views(talk.state)
    end, capacity = int(state.end[0]), state.ring.size
    assert end == 30 * at.GRANULE > capacity
    state.ring[:] = 5
    for owner in (1, 2):
        live = [place for place in range(-capacity, 2 * end) if candidates.ring_token(state, owner, place) == 5]
        own = [place for place in range(end - capacity, end) if 1 + place // at.GRANULE % 2 == owner]
        assert live == own


def test_other_generations_and_rows_without_a_limit_or_own_text_neither_draft_nor_learn(form: ModuleType) -> None:
    talk = Talk(form)
    talk.begin(0, SONG * 2)
    before = talk.state.slots.clone()
    assert talk.draft(0, generation=17) == []
    assert torch.equal(talk.state.slots, before)
    assert talk.draft(0, 0) == []
    before[0, at.END] = len(SONG) * 2
    assert torch.equal(talk.state.slots, before)
    talk.begin(0, [], references=[1, 2, 1, -1])
    assert talk.draft(0) == []
    assert talk.draft(1, generation=0) == []
    assert talk.draft(0, generation=17) == []


def test_tokens_that_the_model_does_not_know_end_a_draft(form: ModuleType) -> None:
    talk = Talk(form)
    talk.begin(0, [1, 2, 3, 20, 4, 1])
    assert talk.draft(0, vocab_size=20) == [2, 3]


def tries(talk: Talk) -> list[int]:
    """Return the tries of votes, evidence, contexts and tokens since the start."""
    fresh = torch.from_numpy(counts.start_counts(at.UNIT))
    grown = (talk.state.counts - fresh)[:, 1] // at.UNIT
    bounds = counts.EVIDENCE, counts.CONTEXTS, counts.TOKENS
    return [int(part.sum()) for part in torch.tensor_split(grown, bounds)]


@pytest.mark.parametrize(
    ("parts", "drafts"),
    [
        ([[1], [2], [3], [4], [5], [6], [7], [8]], [True] * 7),
        ([[1], [2], [3], [4], [5], [6], [7], [8]], []),
        ([[1, 2], [3], [4, 5, 6], [7, 8]], [True, False, True]),
        ([[1, 2, 3, 4, 5, 6, 7, 8]], []),
    ],
    ids=["nothing verified", "nothing drafted after it", "some verified", "all verified"],
)
def test_a_chain_counts_as_if_all_of_it_had_been_verified(
    form: ModuleType, parts: list[list[int]], drafts: list[bool]
) -> None:
    talk = learnt(form, parts, drafts)
    assert tries(talk)[1:] == [8] * 3
    reference = learnt(form, [SONG[:8]], [])
    assert torch.equal(talk.state.counts[counts.EVIDENCE :], reference.state.counts[counts.EVIDENCE :])


def learnt(form: ModuleType, parts: list[list[int]], drafts: list[bool]) -> Talk:
    """Return a talk in which a repeated song goes on by some parts, with a draft after each whose `drafts` is true."""
    talk = Talk(form)
    talk.begin(0, SONG * 3)
    assert talk.draft(0) == SONG[:8]
    for k, part in enumerate(parts):
        talk.extend(0, part)
        talk.draft(0, 99 if k < len(drafts) and drafts[k] else 0)
    return talk


def test_a_chain_is_judged_up_to_its_first_wrong_token_and_the_next_draft_after_it(form: ModuleType) -> None:
    assert tries(learnt(form, [[1], [2], [99]], [True, True]))[1:] == [3] * 3
    assert tries(learnt(form, [[1], [2], [99], [4]], [True, True, False]))[1:] == [3] * 3
    assert tries(learnt(form, [[1], [2], [99, 1], [2]], [True, True, True]))[1:] == [4] * 3


def test_confidence_and_votes_follow_what_was_right(form: ModuleType) -> None:
    talk = Talk(form)
    talk.begin(0, [3, 7, 7, 3])
    levels = []
    for _ in range(40):  # 7 after 3 is always wrong
        assert talk.draft(0)[:1] != []
        levels.append(talk.confidence[0])
        talk.extend(0, [4, 3])
        talk.begin(0, [3, 7, 7, 3]) if talk.lengths[0] > 190 else None
    assert talk.draft(0)[:2] == [4, 3]
    assert talk.confidence[0] > levels[0]
    assert all((level * at.LEVELS).is_integer() and 0 < level < 1 for level in levels)


def test_large_counts_are_halved(form: ModuleType) -> None:
    state = storage.allocate(1, 10, 4, 256)
    rows = {0: at.MAX_TRIES, counts.EVIDENCE: at.MAX_TRIES + 1, counts.CONTEXTS: at.MAX_TOKEN_TRIES + 1}
    for row, number in rows.items():
        state.counts[row] = torch.tensor([7 * at.UNIT, number * at.UNIT])
    before = state.counts.clone()
    storage.halve(state)
    changed = (state.counts != before).any(1).nonzero().flatten().tolist()
    assert changed == [counts.EVIDENCE, counts.CONTEXTS]
    assert state.counts[counts.CONTEXTS].tolist() == [7 * at.UNIT // 2, (at.MAX_TOKEN_TRIES + 1) * at.UNIT // 2]


def test_memory_is_as_much_as_promised() -> None:
    """25 MB beside the texts for 256 slots and a ring of a million tokens, at most 24 bytes a response token."""
    large, small = (sum(it.nbytes for it in storage.allocate(256, 8192, 15, 1 << bits, "meta")) for bits in (20, 19))
    assert large <= 25e6
    assert (large - small) / (1 << 19) <= 24
