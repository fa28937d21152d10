from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from specplug.errors import ContractError
from specplug.host import DEFAULT_CONFIDENCE, HostDraft, HostProposer, Tokens
from specplug.interfaces import PluginContext
from specplug.testing.batches import make_batch
from specplug.types.batch import Barrier
from specplug.types.caps import EngineCaps
from specplug.types.request import Request
from specplug.types.step import Draft


class Says(HostProposer):
    """Returns the answers that it was given, and records its arguments."""

    sources = ("first", "second")

    def __init__(self, *answers: object) -> None:
        super().__init__(PluginContext(EngineCaps(8)))
        self.answers = list(answers)
        self.requested: list[tuple[list[int], int, Request | None]] = []

    def draft(self, tokens: Tokens, limit: int, request: Request | None) -> Sequence[int]:
        self.requested.append((tokens.tolist(), limit, request))
        return self.answers.pop(0)  # type: ignore[return-value]


def propose(proposer: HostProposer, texts: list[list[int]], limits: list[int], **batch: object) -> Draft:
    draft = Draft.allocate(len(texts), 4, sources=proposer.sources)
    proposer.propose(make_batch(texts, **batch), torch.tensor(limits, dtype=torch.int32), draft)
    draft.validate()
    return draft


@pytest.mark.parametrize(
    ("answer", "ids", "levels", "sources"),
    [
        ([7, 8], [7, 8], [DEFAULT_CONFIDENCE] * 2, [0, 0]),
        ((7, 8), [7, 8], [DEFAULT_CONFIDENCE] * 2, [0, 0]),  # two ids, not ids and a confidence
        (np.array([7, 8]), [7, 8], [DEFAULT_CONFIDENCE] * 2, [0, 0]),
        ((np.int32(7), np.int32(8)), [7, 8], [DEFAULT_CONFIDENCE] * 2, [0, 0]),
        (([7, 8], 0.25), [7, 8], [0.25, 0.25], [0, 0]),
        (([7, 8], [0.75, 0.25]), [7, 8], [0.75, 0.25], [0, 0]),
        ((np.array([7]), np.array([0.75])), [7], [0.75], [0]),
        (HostDraft([7], 0.25, source=1), [7], [0.25], [1]),
        (HostDraft([7, 8, 9, 10], 0.25, source=[1, 0, 1, 0]), [7, 8, 9], [0.25] * 3, [1, 0, 1]),
        ([7, 8, 9, 10], [7, 8, 9], [DEFAULT_CONFIDENCE] * 3, [0] * 3),  # cut to the limit
        (([7, 8, 9, 10], [1.0, 0.75, 0.5, 0.25]), [7, 8, 9], [1.0, 0.75, 0.5], [0] * 3),
        ([], [], [], []),
        ((), [], [], []),
        (([], 0.5), [], [], []),
    ],
)
def test_answers(answer: object, ids: list[int], levels: list[float], sources: list[int]) -> None:
    draft = propose(Says(answer), [[1, 2]], [3])
    pad = 4 - len(ids)
    assert draft.token_ids.tolist() == [ids + [-1] * pad]
    assert draft.confidence.tolist() == [levels + [0.0] * pad]
    assert draft.source.tolist() == [sources + [-1] * pad]
    assert draft.lengths.tolist() == [len(ids)]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        [1.5, 2.5],
        ["a"],
        [[7, 8]],
        {"token_ids": [7]},
        ([7], "high"),
        ([7], 0.5, 0, 1),
        (None, 0.5),
        [[7], 0.5],
    ],
    ids=repr,
)
def test_an_answer_that_is_no_draft_is_refused_by_name(answer: object) -> None:
    with pytest.raises(ContractError, match=r"Says: draft\(\) returned no draft; found .*; expected token ids as"):
        propose(Says(answer), [[1, 2]], [3])


def test_asks_only_rows_that_may_draft_and_have_text() -> None:
    requests = [Request(name, 1, 10) for name in "abcd"]
    proposer = Says([9], [9])
    draft = propose(proposer, [[1], [2, 3], [], [4, 5, 6]], [2, 0, 2, 4], requests=requests)
    assert proposer.requested == [([1], 2, requests[0]), ([4, 5, 6], 4, requests[3])]
    assert draft.lengths.tolist() == [1, 0, 0, 1]


def test_shows_the_text_of_the_right_table_row() -> None:
    proposer = Says([9], [9])
    propose(proposer, [[1, 2], [3]], [2, 2], slots=[0, 1], rows=[3, 0])
    assert [requested[0] for requested in proposer.requested] == [[1, 2], [3]]
    assert proposer.requested[0][2] is None


def test_shows_only_what_follows_the_last_barrier() -> None:
    barriers = [Barrier(0, 4, 5), Barrier(0, 1, 3), Barrier(2, 0, 2)]
    proposer = Says([9], [9])
    propose(proposer, [[1, 2, 3, 4, 5, 6, 7], [1, 2], [3, 4]], [2, 2, 2], barriers=barriers)
    assert [requested[0] for requested in proposer.requested] == [[6, 7], [1, 2]]


def test_text_is_a_read_only_view() -> None:
    class Checks(Says):
        def draft(self, tokens: Tokens, limit: int, request: Request | None) -> Sequence[int]:
            assert tokens.dtype == np.int32
            assert np.shares_memory(tokens, batch.tokens.numpy())
            with pytest.raises(ValueError, match="read-only"):
                tokens[0] = 5
            return [9]

    batch = make_batch([[1, 2]])
    draft = Draft.allocate(1, 4)
    Checks().propose(batch, torch.tensor([2], dtype=torch.int32), draft)
    assert draft.lengths.tolist() == [1]
    batch.tokens[0, 0] = 3  # the engine still may


def test_draft_may_be_a_narrow_view() -> None:
    buffer = Draft.allocate(3, 6)
    narrow = buffer.view(1, 2)
    Says([7, 8, 9]).propose(make_batch([[1]]), torch.tensor([5], dtype=torch.int32), narrow)
    assert buffer.token_ids.tolist() == [[7, 8, -1, -1, -1, -1], [-1] * 6, [-1] * 6]


def test_confidences_must_match_the_ids() -> None:
    with pytest.raises(ContractError, match="found 1; expected 2"):
        propose(Says(([7, 8], [0.5])), [[1]], [4])


@pytest.mark.parametrize("answer", [[1 << 40], np.array([1 << 40])], ids=["list", "array"])
def test_ids_that_no_int32_holds_are_an_error(answer: object) -> None:
    with pytest.raises(OverflowError):
        propose(Says(answer), [[1]], [4])


def test_device_batches_are_refused() -> None:
    batch = make_batch([[1]])
    elsewhere = replace(batch, lengths=batch.lengths.to("meta"))
    with pytest.raises(ContractError, match=r"Says: .*found meta; expected cpu\. Register .*needs_host=True"):
        Says().propose(elsewhere, torch.tensor([1]), Draft.allocate(1, 4))
