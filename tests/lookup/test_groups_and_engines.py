"""What steps ingest, what an engine's draft and siblings add, and trees, by examples in both forms for CPUs."""

from __future__ import annotations

from types import ModuleType

import torch

from specplug.lookup import counts, storage
from specplug.lookup import layout as at
from tests.lookup.talk import ROOM, Talk

SONG = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_withdrawn_tokens_are_cut_and_replaced_ones_judge_nothing(form: ModuleType) -> None:
    talk = Talk(form)
    talk.begin(0, [*SONG, 50, 1, 2, 3])
    assert talk.draft(0, 3) == [4, 5, 6]
    talk.extend(0, [4, 5])
    talk.cut(0, 12)  # back before the token 3
    talk.extend(0, [60, 1])
    before = talk.state.counts.clone()
    assert talk.draft(0, 3) == [2, 60, 1]
    assert torch.equal(talk.state.counts, before)
    assert talk.texts[0, :14].tolist() == [*SONG, 50, 1, 2, 60, 1]
    assert talk.state.slots[0, at.END] == 14


def test_tokens_that_were_not_passed_match_nothing(form: ModuleType) -> None:
    talk = Talk(form)
    talk.begin(0, SONG)
    talk.draft(0)
    talk.extend(0, [30, 31, 1, 2])
    talk.known[0] += 2
    assert talk.draft(0, 2) == [3, 4]
    assert talk.texts[0, :13].tolist() == [*SONG, -1, -1, 1, 2]


def test_a_text_without_room_has_its_references_alone(form: ModuleType) -> None:
    talk = Talk(form)
    talk.begin(0, [*SONG * 33, 1, 2], references=[5, 5, -1])
    assert talk.lengths[0] + 3 > ROOM
    assert talk.draft(0) == []
    assert talk.state.slots[0, at.END] == 3
    assert talk.texts[0, :3].tolist() == [5, 5, -1]


def test_the_engine_s_tokens_are_continued(form: ModuleType) -> None:
    talk = Talk(form, engine_tokens=3)
    talk.begin(0, [*SONG, 50, 1])
    assert talk.draft(0, 6, engine_ids=[2, 3]) == [2, 3, 4, 5, 6, 7]
    assert talk.sources == [at.OF_ENGINE] * 2 + [0] * 4
    assert talk.draft(0, 1, engine_ids=[6, 7]) == [6]
    assert talk.draft(0, 6, engine_ids=[6, 7]) == [6, 7, 8, 9, 50, 1]
    talk.extend(0, [2])
    assert talk.draft(0, 4) == [3, 4, 5, 6]
    assert talk.texts[0, :12].tolist() == [*SONG, 50, 1, 2]


def test_an_engine_s_tokens_are_as_likely_as_they_were_at_their_position(form: ModuleType) -> None:
    """The first is always right and the second wrong, in one of two requests; none learns from a guess."""
    talk = Talk(form, engine_tokens=2)
    for slot in (0, 1):
        talk.begin(slot, [*SONG, 50])
    for number in range(12):
        assert talk.draft(0, 2, engine_ids=[100 + number, 99]) == [100 + number, 99]
        talk.extend(0, [100 + number, 200 + number])
    talk.draft(0, 2, engine_ids=[1, 2])
    assert talk.confidence[0] > 0.9
    assert talk.confidence[1] < 0.25
    of_first = talk.confidence
    talk.draft(1, 2, engine_ids=[1, 2])
    assert of_first[0] > talk.confidence[0] > 0.75
    assert of_first[1] < talk.confidence[1] < 0.4
    fresh = torch.from_numpy(counts.start_counts(at.UNIT))
    votes = (talk.state.counts[: counts.TOKENS_END] - fresh)[:, 1] // at.UNIT
    assert votes.sum() == 0  # votes were for texts that ended in the engine's second token
    talk.begin(0, SONG)
    assert storage.own_rows(talk.state)[0].sum() == 0


def test_siblings_draft_from_what_the_others_emitted(form: ModuleType) -> None:
    talk = Talk(form, slots=3)
    prompt = [10, 11, 12, 13]
    for slot in range(3):
        talk.begin(slot, prompt)
        if slot < 2:
            talk.join(slot, 7, slot, len(prompt))
    talk.extend(0, SONG)
    assert talk.draft(0, 0) == []
    assert talk.draft(1) == SONG[:8]
    assert talk.sources == [2] * 8
    assert talk.draft(2) == []
    assert talk.draft(0) == []  # not from itself
    talk.extend(1, [1, 2, 3, 40])
    talk.draft(1)
    talk.extend(0, [1, 2, 3])
    assert talk.draft(0, 1) in ([4], [40])
    storage.clear(talk.state)
    talk.begin(1, [*prompt, 1, 2, 3, 4])
    assert talk.draft(1) == []


def test_a_span_bounds_what_is_shared_and_dies_with_the_ring(form: ModuleType) -> None:
    talk = Talk(form, ring=1024)  # a span has 64 places at most
    prompt = [10, 11, 12, 13]
    text = list(range(100, 200))
    for slot in (0, 1):
        talk.begin(slot, prompt)
        talk.join(slot, 7, slot, len(prompt), room=999)
    assert talk.state.end[0] == 128
    talk.extend(0, text)
    talk.draft(0, 0)
    for begin, expected in ((40, [*text[44:52]]), (54, [*text[58:59]]), (70, [])):
        talk.begin(1, [*prompt, *text[begin : begin + 4]])
        talk.join(1, 7, 1, len(prompt), room=8)
        assert talk.draft(1) == expected, begin
    for number in range(70):  # the ring moves on beyond the span
        talk.remember(1, [50, 51, 52], number)
    ring = talk.state.ring.clone()
    talk.extend(0, [1, 2, 3])
    talk.draft(0, 0)
    assert torch.equal(talk.state.ring, ring)


def test_a_tree_unites_paths_and_its_nodes_are_ordered_by_survival(form: ModuleType) -> None:
    talk = Talk(form, trees=True)
    talk.begin(0, [1, 2, 3, 4, 50, 1, 2, 3, 6, 51, 1, 2, 3])
    drafted = talk.draft(0)
    assert {token for token, parent in zip(drafted, talk.parents, strict=True) if parent < 0} == {4, 6}
    assert all(parent < node for node, parent in enumerate(talk.parents))
    survival: list[float] = []
    for parent, level in zip(talk.parents, talk.confidence, strict=True):
        survival.append(level * (survival[parent] if parent >= 0 else 1))
    assert survival == sorted(survival, reverse=True)
    assert len(drafted) == 8
    assert talk.draft(0, 3) == drafted[:3]
    assert talk.draft(0, 0) == []


def test_of_a_tree_all_tokens_after_right_ones_are_judged(form: ModuleType) -> None:
    talk = Talk(form, trees=True)
    talk.begin(0, [1, 2, 3, 4, 50, 1, 2, 3, 6, 51, 1, 2, 3])
    drafted, parents = talk.draft(0), talk.parents
    emitted = [4, 50, 99]
    judged, node = 0, -1
    for token in emitted:
        children = [k for k, parent in enumerate(parents) if parent == node]
        judged += len(children)
        right = [k for k in children if drafted[k] == token]
        if not right:
            break
        node = right[0]
    assert judged > len(emitted)
    talk.extend(0, emitted)
    before = talk.state.counts[counts.EVIDENCE : counts.CONTEXTS].clone()
    talk.draft(0, 0)
    tried = talk.state.counts[counts.EVIDENCE : counts.CONTEXTS] - before
    assert tried[:, 1].sum() == judged * at.UNIT
    assert tried[:, 0].sum() == 2 * at.UNIT
