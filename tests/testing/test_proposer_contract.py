"""The contract catches what it is there to catch: for every clause, a proposer that breaks it and one that does not."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Proposer
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec
from specplug.testing.batches import POISON, make_batch
from specplug.testing.contract import ProposerContract
from specplug.testing.driver import Driver
from specplug.testing.wrappers import StagedProposer
from specplug.types.caps import Distribution, ProposerCaps
from specplug.types.request import Lifecycle
from specplug.types.step import Draft, EngineBatch, Verdict
from tests.testing.clauses import clauses, code_block

LEARNS = ProposerCaps(needs_host=True, learns=True)
TREES = ProposerCaps(needs_host=True, trees=True)
PROBS = ProposerCaps(needs_host=True, distribution=Distribution.PROBS)
LOGITS = ProposerCaps(needs_host=True, distribution=Distribution.LOGITS)
QUICK = ProposerCaps(needs_host=True, inline=True, incremental=True, learns=True)


class Lookup(Proposer):
    """A sound proposer: keeps texts by slot and generation, drafts what followed the last token before."""

    def __init__(self, context: PluginContext) -> None:
        self.context = context
        self.history: dict[Hashable, list[int]] = {}
        self.accepted = 0

    def ingest(self, batch: EngineBatch) -> None:
        for row, (length, new) in enumerate(zip(batch.lengths.tolist(), batch.num_new.tolist(), strict=True)):
            known = self.history.setdefault(self.key(batch, row), [])
            known += self.text(batch, row)[length - new : length]

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        for row, limit in enumerate(limits.tolist()):
            text = self.history[self.key(batch, row)][self.begin(batch, row) :]
            self.write(draft, row, self.look_up(text, limit))

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        self.accepted += int(verdict.accepted.sum())

    def key(self, batch: EngineBatch, row: int) -> Hashable:
        return int(batch.slots[row]), int(batch.generations[row])

    def text(self, batch: EngineBatch, row: int) -> list[int]:
        return batch.tokens[int(batch.rows[row]), : int(batch.lengths[row])].tolist()

    def begin(self, batch: EngineBatch, row: int) -> int:
        return max((barrier.stop for barrier in batch.barriers if barrier.row == row), default=0)

    def look_up(self, text: list[int], limit: int) -> list[int]:
        for end in range(len(text) - 1, 0, -1):
            if text[end - 1] == text[-1]:
                return text[end : end + limit]
        return []

    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        draft.set_row(row, ids, 0.5)


class Branches(Lookup):
    """Drafts every token as a child of the context."""

    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        draft.set_row(row, ids, 0.5, parents=[-1] * len(ids))


class Drawn(Lookup):
    """Fills in the distribution that its tokens come from, with probability 1/2 on each token."""

    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        draft.set_row(row, ids, 0.5)
        distribution = torch.full((len(ids), self.context.vocab_size), 0.5 / (self.context.vocab_size - 1))
        distribution[range(len(ids)), ids] = 0.5
        for full, values in ((draft.draft_probs, distribution), (draft.draft_logits, distribution.log())):
            if full is not None:
                full[row, : len(ids)] = values


class Incremental(Lookup):
    """Reads the new tokens at any position, and starts over when all are new."""

    def ingest(self, batch: EngineBatch) -> None:
        for row, (length, new) in enumerate(zip(batch.lengths.tolist(), batch.num_new.tolist(), strict=True)):
            first = 0 if batch.first is None else int(batch.first[row])
            text = batch.tokens[int(batch.rows[row]), length - new - first : length - first].tolist()
            self.take_in(self.history.setdefault(self.key(batch, row), []), length - new, text)

    def take_in(self, known: list[int], before: int, text: list[int]) -> None:
        known[before:] = text


def contract_of(proposer: Any, caps: ProposerCaps = LEARNS) -> type[ProposerContract]:
    spec = ProposerSpec(name="planted", factory=proposer, summary="", caps=caps)
    return type("Contract", (ProposerContract,), {"spec": spec})


class TestLookup(contract_of(Lookup)):  # type: ignore[misc]
    pass


class TestBranches(contract_of(Branches, TREES)):  # type: ignore[misc]
    pass


class TestDrawn(contract_of(Drawn, PROBS)):  # type: ignore[misc]
    pass


class TestDrawnByLogits(contract_of(Drawn, LOGITS)):  # type: ignore[misc]
    pass


class TestIncremental(contract_of(Incremental, QUICK)):  # type: ignore[misc]
    pass


class TestInlineOnADevice(contract_of(Lookup, ProposerCaps())):  # type: ignore[misc]
    pass


# One clause broken by each of what follows.


class Silent(Lookup):
    def look_up(self, text: list[int], limit: int) -> list[int]:
        return []


class Resizes(Lookup):
    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        super().propose(batch, limits, draft)
        draft.confidence.resize_(draft.batch_size, draft.draft_length + 1)


class NeedsLongIndices(Lookup):
    def ingest(self, batch: EngineBatch) -> None:
        batch.tokens.take(batch.rows)
        super().ingest(batch)


class OutsideTheVocabulary(Lookup):
    def look_up(self, text: list[int], limit: int) -> list[int]:
        return [self.context.vocab_size][:limit]


class LeavesPadding(Lookup):
    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        super().write(draft, row, ids)
        draft.token_ids[row, len(ids) :] = 0


class IgnoresLimits(Lookup):
    def look_up(self, text: list[int], limit: int) -> list[int]:
        return super().look_up(text, self.context.caps.max_draft_length)


class NotAProbability(Lookup):
    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        draft.set_row(row, ids, float("nan"))


class UnknownSource(Lookup):
    sources = ("one", "two")

    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        draft.set_row(row, ids, 0.5, source=2)


class SourceOfNothing(Lookup):
    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        super().write(draft, row, ids)
        draft.source[row, len(ids) :] = 0


class ParentOfItself(Lookup):
    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        draft.set_row(row, ids, 0.5, parents=list(range(len(ids))))


class ForgetsItsDistribution(Lookup):
    pass


class AnotherTokensDistribution(Drawn):
    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        super().write(draft, row, ids)
        assert draft.draft_probs is not None
        draft.draft_probs[row] = torch.nn.functional.one_hot(torch.tensor(0), self.context.vocab_size).float()


class DrawnFromOthers(Drawn):
    """States a draft vocabulary that lacks some of the tokens that it drafts."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self.draft_vocab = torch.arange(1, context.vocab_size, 2)

    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        draft.set_row(row, ids, 0.5)
        assert draft.draft_probs is not None
        draft.draft_probs[row] = 1 / draft.draft_probs.shape[2]


class OwnsUpToOthers(DrawnFromOthers):
    """Marks the tokens that were not drawn."""

    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        super().write(draft, row, ids)
        assert draft.drawn is not None
        draft.drawn[row, : len(ids)] = torch.tensor([token % 2 == 1 for token in ids], dtype=torch.bool)


class IngestsWhenItDrafts(Lookup):
    def ingest(self, batch: EngineBatch) -> None:
        pass

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        super().ingest(batch)
        super().propose(batch, limits, draft)


class NeedsARow(Lookup):
    def ingest(self, batch: EngineBatch) -> None:
        int(batch.lengths.max())
        super().ingest(batch)


class CleansTheTable(Lookup):
    def ingest(self, batch: EngineBatch) -> None:
        batch.tokens.clamp_(max=self.context.vocab_size - 1)
        super().ingest(batch)


class LowersLimits(Lookup):
    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        super().propose(batch, limits.clamp_(max=2), draft)


class MovesTheBase(Lookup):
    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        super().write(draft, row, ids)
        draft.base_len[row] += len(ids)


class KeyedByRow(Lookup):
    def key(self, batch: EngineBatch, row: int) -> Hashable:
        return row


class ReadsBeyondTheLength(Lookup):
    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        for row, limit in enumerate(limits.tolist()):
            text, length = batch.tokens[int(batch.rows[row])].tolist(), int(batch.lengths[row])
            self.write(draft, row, text[length : length + limit])


class TakesSlotsForTableRows(Lookup):
    def text(self, batch: EngineBatch, row: int) -> list[int]:
        return batch.tokens[int(batch.slots[row]), : int(batch.lengths[row])].tolist()


class BlindToBarriers(Lookup):
    def begin(self, batch: EngineBatch, row: int) -> int:
        return 0


class ExpectsOneTokenAStep(Lookup):
    def ingest(self, batch: EngineBatch) -> None:
        for row in range(batch.batch_size):
            text, key = self.text(batch, row), self.key(batch, row)
            self.history[key] = [*self.history[key], text[-1]] if key in self.history else text


class KeyedBySlot(Lookup):
    def key(self, batch: EngineBatch, row: int) -> Hashable:
        return int(batch.slots[row])


class KeyedByRequest(Lookup):
    def key(self, batch: EngineBatch, row: int) -> Hashable:
        assert batch.request_ids is not None
        return batch.request_ids[row]


class DependsOnRank(Lookup):
    def look_up(self, text: list[int], limit: int) -> list[int]:
        return super().look_up(text, limit)[self.context.rank :]


class DependsOnTheInstance(Lookup):
    instances = 0

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        DependsOnTheInstance.instances += 1
        self.confidence = 1 / self.instances

    def write(self, draft: Draft, row: int, ids: list[int]) -> None:
        draft.set_row(row, ids, self.confidence)


class FailsToLearn(Lookup):
    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        verdict.accepted.tolist()[draft.batch_size]


class EditsTheVerdict(Lookup):
    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        verdict.accepted.add_(1)


class ClosesOnce(Lookup):
    def close(self) -> None:
        del self.history


class BoundToItsThread(Lookup):
    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self.thread = threading.get_ident()

    def ingest(self, batch: EngineBatch) -> None:
        if threading.get_ident() != self.thread:
            raise RuntimeError("used in another thread than created in")
        super().ingest(batch)


class ReadsTheTextAgain(Lookup):
    pass


class AppendsWhatIsNew(Incremental):
    def take_in(self, known: list[int], before: int, text: list[int]) -> None:
        known += text


class KeepsTheTable(Incremental):
    lengths: Tensor | None = None

    def ingest(self, batch: EngineBatch) -> None:
        if self.lengths is not None and int(self.lengths.max()) > self.context.max_length:
            self.history.clear()
        super().ingest(batch)
        self.lengths = batch.lengths


class TestOwnsUpToOthers(contract_of(OwnsUpToOthers, PROBS)):  # type: ignore[misc]
    pass


PLANTED = [
    (Silent, LEARNS, "test_drafts_for_the_texts", (), "drafted nothing"),
    (Resizes, LEARNS, "test_keeps_the_shape_of_the_draft", (torch.int64,), "Draft.confidence is malformed"),
    (NeedsLongIndices, LEARNS, "test_keeps_the_shape_of_the_draft", (torch.int32,), "Expected a long tensor"),
    (OutsideTheVocabulary, LEARNS, "test_drafts_ids_of_the_vocabulary", (), r"drafted ids \[64"),
    (LeavesPadding, LEARNS, "test_drafts_ids_of_the_vocabulary", (), "beyond the lengths"),
    (IgnoresLimits, LEARNS, "test_respects_limits", (), "expected at most"),
    (NotAProbability, LEARNS, "test_confidence_is_a_probability", (), "confidences .*nan"),
    (UnknownSource, LEARNS, "test_names_its_sources", (), r"source \(2,.*one of \[0, 1\]"),
    (SourceOfNothing, LEARNS, "test_names_its_sources", (), r"sources \[0.* stand beyond the lengths"),
    (ParentOfItself, TREES, "test_parents_come_before_children", (), r"parents \(0, 1"),
    (ForgetsItsDistribution, PROBS, "test_fills_in_its_distribution", (), "do not sum to 1"),
    (DrawnFromOthers, PROBS, "test_fills_in_its_distribution", (), "not in its draft vocabulary"),
    (AnotherTokensDistribution, PROBS, "test_fills_in_its_distribution", (), "probability 0"),
    (IngestsWhenItDrafts, LEARNS, "test_ingests_without_drafting", (), "after steps that only ingested"),
    (NeedsARow, LEARNS, "test_takes_an_empty_batch", (), "max"),
    (CleansTheTable, LEARNS, "test_changes_nothing_that_it_reads", (), "ingest has changed batch.tokens"),
    (LowersLimits, LEARNS, "test_changes_nothing_that_it_reads", (), "propose has changed limits"),
    (MovesTheBase, LEARNS, "test_changes_nothing_that_it_reads", (), "propose has changed draft.base_len"),
    (KeyedByRow, LEARNS, "test_does_not_depend_on_the_order_of_rows", (), "in another order"),
    (ReadsBeyondTheLength, LEARNS, "test_does_not_read_undefined_memory", (), "undefined memory"),
    (TakesSlotsForTableRows, LEARNS, "test_does_not_read_undefined_memory", (), "undefined memory"),
    (BlindToBarriers, LEARNS, "test_does_not_read_inside_barriers", (), "inside a barrier"),
    (ExpectsOneTokenAStep, LEARNS, "test_takes_prompts_in_chunks", (), "in chunks"),
    (KeyedBySlot, LEARNS, "test_forgets_a_slot_with_its_generation", (), "used before"),
    (KeyedByRequest, LEARNS, "test_believes_the_table_after_preemption", (Lifecycle.RESUMED,), "after preemption"),
    (KeyedByRequest, LEARNS, "test_believes_the_table_after_preemption", (Lifecycle.UPDATED,), "after preemption"),
    (DependsOnRank, LEARNS, "test_drafts_alike_on_all_ranks", (1,), "of rank 1"),
    (DependsOnTheInstance, LEARNS, "test_drafts_alike_on_all_ranks", (0,), "another instance"),
    (FailsToLearn, LEARNS, "test_observes", (), "index out of range"),
    (EditsTheVerdict, LEARNS, "test_observes", (), "observe has changed verdict.accepted"),
    (ClosesOnce, LEARNS, "test_closes_twice", (), "history"),
    (BoundToItsThread, LEARNS, "test_works_through_the_pipeline", (), "faults in the pipeline: .*raised"),
    (OutsideTheVocabulary, QUICK, "test_works_inline", (), "faults in the pipeline: .*malformed"),
    (KeepsTheTable, QUICK, "test_keeps_no_view_of_a_batch", (), "with tensors overwritten"),
    (ReadsTheTextAgain, QUICK, "test_needs_only_the_newest_tokens", (), "with the newest tokens only"),
    (AppendsWhatIsNew, QUICK, "test_starts_over_with_a_whole_text", (), "with whole texts handed over again"),
]


@pytest.mark.parametrize(
    ("proposer", "caps", "clause", "arguments", "message"),
    PLANTED,
    ids=[f"{proposer.__name__}-{clause}" for proposer, _, clause, _, _ in PLANTED],
)
def test_planted_proposer_is_caught(
    proposer: type[Proposer], caps: ProposerCaps, clause: str, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        getattr(contract_of(proposer, caps)(), clause)(*arguments)


def test_every_clause_has_a_planted_proposer_and_a_docstring() -> None:
    assert {clause for _, _, clause, _, _ in PLANTED} == clauses(ProposerContract)


def test_dummy_steps_that_reach_the_proposer_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaks(StagedProposer):
        def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
            self.proposer.ingest(replace(batch, tokens=batch.tokens.flip(1), is_dummy=True))
            super().step(batch, limits, draft)

    monkeypatch.setattr("specplug.testing.contract.StagedProposer", Leaks)
    with pytest.raises(AssertionError, match="the pipeline"):
        contract_of(Lookup)().test_works_through_the_pipeline()


def test_settle_emits_what_was_accepted_and_one_more() -> None:
    with Driver(TestLookup.spec, vocab_size=64) as driver:
        driver.start("copies", [1, 2, 3, 1])
        driver.start("errs", [4, 5, 4])
        driver.start("ends", [6, 7, 6])
        step = driver.step(draft_length=2)
        verdict = driver.settle(step, {"copies": [2, 3, 9, 9], "errs": [6, 9], "ends": [7]})
        assert [row.token_ids for row in step.by_request().values()] == [(2, 3), (5, 4), (7, 6)]
        assert verdict.accepted.tolist() == [2, 0, 1]
        assert verdict.emitted.tolist() == [3, 1, 1]
        assert driver.text("copies") == [1, 2, 3, 1, 2, 3, 9]
        assert (driver.text("errs"), driver.text("ends")) == ([4, 5, 4, 6], [6, 7, 6, 7])
        assert isinstance(driver.proposer, Lookup)
        assert driver.proposer.accepted == 3


def test_undefined_memory_is_poisoned() -> None:
    batch = make_batch([[1], [2, 3]], rows=[2, 0], table_shape=(3, 3))
    assert batch.tokens.tolist() == [[2, 3, POISON], [POISON] * 3, [1, POISON, POISON]]
    assert int(batch.tokens.max()) > batch.vocab_size


def test_the_documented_composed_proposer_satisfies_the_contract() -> None:
    namespace: dict[str, Any] = {}
    exec(code_block("ComposedProposer"), namespace)
    registry = Registry.discover()
    registry.add(SimpleNamespace(**namespace), Owner("spliced", "acme", "1"))

    class TestSpliced(ProposerContract):
        spec = registry.get(ProposerSpec, "spliced")

    TestSpliced.registry = registry
    TestSpliced().test_drafts_for_the_texts()
    TestSpliced().test_names_its_sources()
