"""Between plan and observe nothing is read back from the device, and no Python data is copied to it.

Shown on the CPU, under a watch on every operation.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specplug.interfaces import Proposer
from specplug.steps.draft_stage import DraftStage
from specplug.steps.trim import SurvivalTrimmer
from specplug.types.caps import Distribution, EngineCaps, ProposerCaps
from specplug.types.plan import TrimLimits
from specplug.types.request import Lifecycle, Request, RequestEvent, RequestOptions
from specplug.types.step import EngineBatch, Outcome, StepPlan
from tests.steps.tools import int32, stage_of, work_on_tensors
from tests.steps.trim_tools import each_costs

VOCAB, SLOTS, LENGTH, DRAFT_LENGTH = 32, 4, 48, 4

READS_BACK = {
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_consecutive",
    "unique_dim",
    "repeat_interleave",
    "bincount",
}
COPIES_IN = {"lift_fresh"}  # torch.tensor([...])
INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}


class Watch(TorchDispatchMode):
    """Notes the name of every operation that would make a GPU wait for the host, or the host for the GPU.

    Attributes:
        found: these names.
        count: the number of all operations.
        launches: the number of operations other than views, each of which a GPU would run as a kernel or a copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.count = self.launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with self:  # in inference mode composite operations arrive whole: look at what they are made of
            result = func.decompose(*args, **kwargs or {})
        if result is not NotImplemented:
            return result
        name = func.__name__.split(".")[0]
        by_mask = name in INDEXES and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in READS_BACK | COPIES_IN or by_mask:
            self.found.append(f"{name} by mask" if by_mask else name)
        self.count += 1
        self.launches += not func.is_view
        return func(*args, **kwargs or {})


class Bigram(Proposer):
    """Drafts what followed the newest earlier occurrence of the last token, in plain torch."""

    def __init__(self, caps: ProposerCaps) -> None:
        self.caps = caps
        self._handed = torch.zeros(SLOTS, dtype=torch.int32)
        self.accepted = torch.zeros(SLOTS, dtype=torch.int32)

    def ingest(self, batch):
        self._handed.index_add_(0, batch.slots, batch.num_new)

    def propose(self, batch, limits, draft):
        texts = batch.tokens[batch.rows]
        place = torch.arange(texts.shape[1])
        ends = batch.lengths[:, None].long() - 1
        last = texts.gather(1, ends)
        follows = torch.where((texts == last) & (place < ends), place + 1, 0).amax(1, keepdim=True)
        path = follows + torch.arange(draft.draft_length)
        found = (follows > 0) & (path <= ends)
        lengths = torch.minimum(found.sum(1), limits)
        draft.token_ids.copy_(texts.gather(1, path.clamp(max=texts.shape[1] - 1)))
        draft.confidence.copy_(torch.where(found, 0.5, 0.0))
        draft.lengths.copy_(lengths)
        draft.source.copy_(torch.where(draft.mask(), 0, -1))
        if draft.draft_probs is not None:
            draft.draft_probs.fill_(1 / batch.vocab_size)

    def observe(self, batch, draft, verdict):
        self.accepted.index_add_(0, batch.slots, verdict.accepted)


def batch_of(grown: int = 0) -> EngineBatch:
    """Return three rows of repeating text, each `grown` tokens longer than at first."""
    return EngineBatch(
        slots=torch.tensor([2, 0, 3]),
        generations=torch.tensor([0, 1, 0]),
        rows=torch.tensor([1, 0, 2]),
        tokens=torch.arange(SLOTS * LENGTH, dtype=torch.int32).reshape(SLOTS, LENGTH) % 5,
        lengths=torch.tensor([9, 12, 3], dtype=torch.int32) + grown,
        sampled=torch.tensor([True, True, False]),
        room=torch.tensor([20, 20, 20], dtype=torch.int32),
        temperature=torch.zeros(3),
        grammar=torch.zeros(3, dtype=torch.bool),
        vocab_size=VOCAB,
        reset_slots=(2, 0, 3),
    )


COSTS = each_costs(0.1)

SETUPS = {
    "one": ([ProposerCaps(learns=True)], EngineCaps(DRAFT_LENGTH)),
    "trees": ([ProposerCaps(learns=True, trees=True)], EngineCaps(DRAFT_LENGTH, trees=True)),
    "trees as chains": ([ProposerCaps(trees=True)], EngineCaps(DRAFT_LENGTH)),
    "several": (
        [ProposerCaps(learns=True), ProposerCaps(distribution=Distribution.PROBS), ProposerCaps(trees=True)],
        EngineCaps(DRAFT_LENGTH, trees=True, draft_input=Distribution.PROBS),
    ),
}


def drive(stage: DraftStage, batch: EngineBatch, after: EngineBatch, outcome: Outcome, caps: torch.Tensor):
    """Run events and two steps, one trimmed to a budget, one not, and a step without drafts."""
    chosen = Request("b", 1, 9, options=RequestOptions(proposer="p1"))
    stage.on_event(RequestEvent(Lifecycle.STARTED, chosen, slot=0, generation=1))
    stage.trim(batch, stage.propose(batch, 0), StepPlan(0))
    draft = stage.trim(batch, stage.propose(batch, DRAFT_LENGTH, caps), StepPlan(DRAFT_LENGTH, 5, costs=COSTS))
    verdict = stage.observe(after, outcome)
    stage.trim(after, stage.propose(after, 2, caps), StepPlan(2))
    return draft, verdict


@pytest.mark.parametrize("setup", SETUPS)
def test_no_operation_reads_back_or_copies_in(setup, monkeypatch):
    work_on_tensors(monkeypatch)
    proposers, caps = SETUPS[setup]
    bigrams = {f"p{i}": Bigram(each) for i, each in enumerate(proposers)}
    stage = stage_of(bigrams, caps, SurvivalTrimmer(), vocab_size=VOCAB, max_slots=SLOTS)
    before, after, most = batch_of(), batch_of(3), int32([4, 2, 4])
    outcome = Outcome(int32([4, 4, 0]), int32([2, 0, 0]), int32([3, 3, 3]))
    TrimLimits.build(0, COSTS)  # costs that were moved before are not moved again
    with Watch() as watch:
        draft, verdict = drive(stage, before, after, outcome, most)
    assert watch.found == []
    assert watch.count > 50
    assert stage.metrics._faults == {}
    assert draft.lengths.sum() == 5  # it did draft, and the budget bound
    assert verdict.accepted.sum() > 0
    assert not bigrams["p0"].caps.learns or bigrams["p0"].accepted.sum() > 0


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x[0] > 0),
        lambda x: x[x > 0],
        lambda x: x.clone().index_put_((x > 0,), x[:1]),
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: x + torch.tensor([1, 2, 3]),
    ],
)
def test_the_watch_works(operation):
    x = torch.tensor([1, 0, 2])
    with Watch() as watch:
        operation(x)
    assert watch.found
    with torch.inference_mode(), Watch() as watch:
        operation(x)
    assert watch.found
