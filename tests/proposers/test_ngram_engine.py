"""The n-gram proposer after an engine's own drafter: it continues the engine's draft, or its own one stands."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specplug.interfaces import PluginContext
from specplug.lookup.proposer import LookupProposer
from specplug.testing.batches import make_batch
from specplug.types.caps import EngineCaps
from specplug.types.request import Lifecycle, Request, RequestEvent
from specplug.types.step import Draft

SONG = [1, 2, 3, 4, 5, 6, 7, 8, 9]
OWN, ENGINE = 0, 3


class Served:
    """A request of a server whose own drafter drafts two tokens."""

    def __init__(self, text: list[int]) -> None:
        self.proposer = LookupProposer(PluginContext(EngineCaps(6, engine_tokens=2), vocab_size=64, max_length=64))
        request = Request("a", prompt_length=len(text), max_tokens=32)
        self.proposer.on_event(RequestEvent(Lifecycle.STARTED, request, 0, 1))
        self.text, self.known = list(text), 0

    def draft(self, engine_ids: list[int]) -> tuple[list[int], list[int]]:
        """Return the tokens of a draft and their sources."""
        batch = make_batch(
            [self.text],
            num_new=[len(self.text) - self.known],
            slots=[0],
            generations=[1],
            rows=[0],
            table_shape=(1, 64),
            vocab_size=64,
        )
        draft = Draft.allocate(1, 6, sources=self.proposer.sources)
        limits = torch.tensor([6], dtype=torch.int32)
        ids = torch.tensor([engine_ids], dtype=torch.int32)
        self.proposer.step(replace(batch, engine_ids=ids), limits, draft)
        self.known = len(self.text)
        number = int(draft.lengths[0])
        return draft.token_ids[0, :number].tolist(), draft.source[0, :number].tolist()


def test_the_engine_s_tokens_are_continued_where_lookup_has_none() -> None:
    served = Served([*SONG, 50])
    assert served.proposer.sources[ENGINE] == "engine"
    assert served.draft([1, 2]) == ([1, 2, 3, 4, 5, 6], [ENGINE] * 2 + [OWN] * 4)
    assert served.draft([-1, -1]) == ([], [])
    assert served.draft([1, -1]) == ([1, 2, 3, 4, 5, 6], [ENGINE] + [OWN] * 5)


def test_lookup_s_own_draft_stands_where_the_engine_is_mostly_wrong_and_the_engine_s_where_it_is_right() -> None:
    wrong, right = Served([*SONG, *SONG, 1]), Served([*SONG, *SONG, 1])
    for step in range(12):
        following = SONG[(step + 1) % len(SONG)]
        for served, ids in ((wrong, [60, 61]), (right, [following, SONG[(step + 2) % len(SONG)]])):
            served.draft(ids)
            served.text.append(following)
    assert wrong.draft([60, 61])[1] == [OWN] * 6
    assert right.draft([5, 6])[0][:2] == [5, 6]


@pytest.mark.parametrize(("text", "engine_first"), [([*SONG, 50, 51], True), ([*SONG * 3, 1, 2, 3], False)])
def test_which_draft_stands_does_not_depend_on_the_engine_s_tokens(text: list[int], engine_first: bool) -> None:
    """Tokens that are drawn keep their distribution only so."""
    for ids in ([4, 5], [60, 61], [4, 61]):
        assert (Served(text).draft(ids)[1][:1] == [ENGINE]) is engine_first
