"""The contract catches what it is there to catch: for every clause, a proposer that breaks it and one that does not."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Hashable
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
from specplug.types.request import Event, Lifecycle, RequestEvent
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


class PromptLookup(Lookup):
    """Drafts from the request's prompt alone."""

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        assert batch.requests is not None
        for row, (request, limit) in enumerate(zip(batch.requests, limits.tolist(), strict=True)):
            text = self.text(batch, row)
            prompt = text[self.begin(batch, row) : request.prompt_length]
            self.write(draft, row, self.look_up([*prompt, text[-1]], limit))


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


class TestPromptLookup(contract_of(PromptLookup)):  # type: ignore[misc]
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


class TestOwnsUpToOthers(contract_of(OwnsUpToOthers, PROBS)):  # type: ignore[misc]
    pass


# -- one clause broken by each of what follows -------------------------------------------------------------------------


def after(name: str, change: Callable[..., Any], base: type[Lookup] = Lookup) -> type[Lookup]:
    """Return a proposer that makes a change after what a method of the base does."""

    def replaced(self: Lookup, *arguments: Any) -> None:
        getattr(base, name)(self, *arguments)
        change(self, *arguments)

    return type("Planted", (base,), {name: replaced})


def instead(base: type[Lookup] = Lookup, **members: Any) -> type[Lookup]:
    """Return a proposer with other members than the base's."""
    return type("Planted", (base,), members)


class KeepsTheTable(Incremental):
    lengths: Tensor | None = None

    def ingest(self, batch: EngineBatch) -> None:
        if self.lengths is not None and int(self.lengths.max()) > self.context.max_length:
            self.history.clear()
        super().ingest(batch)
        self.lengths = batch.lengths


class ReadsWholeTables(Incremental):
    def ingest(self, batch: EngineBatch) -> None:
        super().ingest(batch)
        for row in range(batch.batch_size if batch.first is None else 0):
            self.history[self.key(batch, row)] = self.text(batch, row)


class ReadsBeyondTheLength(Lookup):
    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        for row, limit in enumerate(limits.tolist()):
            text, length = batch.tokens[int(batch.rows[row])].tolist(), int(batch.lengths[row])
            self.write(draft, row, text[length : length + limit])


class ExpectsOneTokenAStep(Lookup):
    def ingest(self, batch: EngineBatch) -> None:
        for row in range(batch.batch_size):
            text, key = self.text(batch, row), self.key(batch, row)
            self.history[key] = [*self.history[key], text[-1]] if key in self.history else text


class IngestsWhenItDrafts(Lookup):
    def ingest(self, batch: EngineBatch) -> None:
        pass

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        super().ingest(batch)
        super().propose(batch, limits, draft)


class ReadsOthers(Lookup):
    """Drafts from the texts of all clients where a request's own has nothing."""

    def look_up(self, text: list[int], limit: int) -> list[int]:
        return super().look_up(text, limit) or super().look_up([*self.others(), text[-1]], limit)

    def others(self) -> list[int]:
        return [*itertools.chain(*reversed(self.history.values()))]


class Remembers(ReadsOthers):
    """Drafts from the texts of all requests that have ended, whoever sent them and whatever was seen."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self.ended: list[int] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestEvent) and event.kind in (Lifecycle.FINISHED, Lifecycle.ABORTED):
            self.ended += self.history.get((event.slot, event.generation), [])

    def others(self) -> list[int]:
        return self.ended


class RemembersKnown(Remembers):
    """Leaves out requests of which it is not known what was seen."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestEvent) and event.visible is not None:
            super().on_event(event)


class BoundToItsThread(Lookup):
    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self.thread = threading.get_ident()

    def ingest(self, batch: EngineBatch) -> None:
        if threading.get_ident() != self.thread:
            raise RuntimeError("used in another thread than created in")
        super().ingest(batch)


count = itertools.count(1)
first_token = functools.partial(torch.nn.functional.one_hot, torch.tensor(0))

FORM = "test_drafts_are_well_formed"
READS = "test_changes_nothing_that_it_reads"
MEMORY = "test_does_not_read_undefined_memory"
SLOT = "test_forgets_a_slot_with_its_generation"
APART = "test_keeps_clients_apart"
REMEMBERS = "test_remembers_only_what_it_may"
RANKS = "test_drafts_alike_on_all_ranks"
PIPELINE = "test_works_through_the_pipeline"

outside = instead(look_up=lambda self, text, limit: [self.context.vocab_size][:limit])
by_request = instead(key=lambda self, batch, row: batch.request_ids[row])

PLANTED: dict[str, tuple[type[Proposer], ProposerCaps, str, Any, str]] = {
    "nothing": (instead(look_up=lambda *_: []), LEARNS, "test_drafts_for_the_texts", None, "drafted nothing"),
    "another size": (
        after("propose", lambda _, batch, limits, draft: draft.confidence.resize_(draft.batch_size, 9)),
        *(LEARNS, FORM, torch.int64, "Draft.confidence is malformed"),
    ),
    "long indices alone": (
        after("ingest", lambda _, batch: batch.tokens.take(batch.rows)),
        *(LEARNS, FORM, torch.int32, "Expected a long tensor"),
    ),
    "ids outside the vocabulary": (outside, LEARNS, FORM, torch.int64, r"drafted ids \[64"),
    "ids in the padding": (
        after("write", lambda _, draft, row, ids: draft.token_ids[row, len(ids) :].fill_(0)),
        *(LEARNS, FORM, torch.int64, "ids beyond the lengths"),
    ),
    "no probability": (
        instead(write=lambda _, draft, row, ids: draft.set_row(row, ids, float("nan"))),
        *(LEARNS, FORM, torch.int64, "confidences .*nan"),
    ),
    "an unknown source": (
        instead(sources=("one", "two"), write=lambda _, draft, row, ids: draft.set_row(row, ids, 0.5, source=2)),
        *(LEARNS, FORM, torch.int64, r"sources \[2,.*one of \[0, 1\]"),
    ),
    "a source of nothing": (
        after("write", lambda _, draft, row, ids: draft.source[row, len(ids) :].fill_(0)),
        *(LEARNS, FORM, torch.int64, r"sources beyond the lengths \[0"),
    ),
    "parents of themselves": (
        instead(write=lambda _, draft, row, ids: draft.set_row(row, ids, 0.5, parents=list(range(len(ids))))),
        *(TREES, FORM, torch.int64, r"parents \[0, 1"),
    ),
    "no distribution": (Lookup, PROBS, FORM, torch.int64, "do not sum to 1"),
    "tokens of another vocabulary": (DrawnFromOthers, PROBS, FORM, torch.int64, "not in its draft vocabulary"),
    "another token's distribution": (
        after(
            "write",
            lambda self, draft, row, ids: draft.draft_probs[row].copy_(first_token(self.context.vocab_size)),
            Drawn,
        ),
        *(PROBS, FORM, torch.int64, "probability 0"),
    ),
    "no limits": (
        instead(look_up=lambda self, text, limit: Lookup.look_up(self, text, self.context.caps.max_draft_length)),
        *(LEARNS, "test_respects_limits", None, "expected at most"),
    ),
    "ingests when it drafts": (
        IngestsWhenItDrafts,
        *(LEARNS, "test_ingests_without_drafting", None, "after steps that only ingested"),
    ),
    "needs a row": (
        after("ingest", lambda _, batch: int(batch.lengths.max())),
        *(LEARNS, "test_takes_an_empty_batch", None, "max"),
    ),
    "cleans the table": (
        after("ingest", lambda self, batch: batch.tokens.clamp_(max=self.context.vocab_size - 1)),
        *(LEARNS, READS, None, "step has changed batch.tokens"),
    ),
    "lowers limits": (
        instead(propose=lambda self, batch, limits, draft: Lookup.propose(self, batch, limits.clamp_(max=2), draft)),
        *(LEARNS, READS, None, "step has changed limits"),
    ),
    "moves the base": (
        after("write", lambda _, draft, row, ids: draft.base_len[row].add_(len(ids))),
        *(LEARNS, READS, None, "step has changed draft.base_len"),
    ),
    "keyed by row": (
        instead(key=lambda self, batch, row: row),
        *(LEARNS, "test_does_not_depend_on_the_order_of_rows", None, "in another order"),
    ),
    "reads beyond the length": (ReadsBeyondTheLength, LEARNS, MEMORY, None, "undefined memory"),
    "takes slots for rows of the table": (
        instead(text=lambda _, batch, row: batch.tokens[int(batch.slots[row]), : int(batch.lengths[row])].tolist()),
        *(LEARNS, MEMORY, None, "undefined memory"),
    ),
    "blind to barriers": (
        instead(begin=lambda *_: 0),
        *(LEARNS, "test_does_not_read_inside_barriers", None, "inside a barrier"),
    ),
    "expects one token a step": (
        ExpectsOneTokenAStep,
        *(LEARNS, "test_takes_prompts_in_chunks", None, "in chunks"),
    ),
    "keyed by slot": (
        instead(key=lambda self, batch, row: int(batch.slots[row])),
        *(LEARNS, SLOT, Lifecycle.STARTED, "used before"),
    ),
    "keyed by request, resumed": (by_request, LEARNS, SLOT, Lifecycle.RESUMED, "when resumed"),
    "keyed by request, updated": (by_request, LEARNS, SLOT, Lifecycle.UPDATED, "when updated"),
    "reads others": (ReadsOthers, LEARNS, APART, Lifecycle.STARTED, "another client's request that has started"),
    "remembers all who finished": (Remembers, LEARNS, APART, Lifecycle.FINISHED, "request that has finished"),
    "remembers all who left": (Remembers, LEARNS, APART, Lifecycle.ABORTED, "request that has aborted"),
    "remembers what nobody saw": (Remembers, LEARNS, REMEMBERS, (None, True), "`visible` None"),
    "remembers more than was seen": (RemembersKnown, LEARNS, REMEMBERS, (3, True), "`visible` 3"),
    "remembers what is not to be stored": (RemembersKnown, LEARNS, REMEMBERS, (99, False), "`store` False"),
    "depends on the rank": (
        instead(look_up=lambda self, text, limit: Lookup.look_up(self, text, limit)[self.context.rank :]),
        *(LEARNS, RANKS, 1, "of rank 1"),
    ),
    "draws lots": (
        instead(write=lambda _, draft, row, ids: draft.set_row(row, ids, 1 / next(count))),
        *(LEARNS, RANKS, 0, "another instance"),
    ),
    "fails to learn": (
        instead(observe=lambda _, batch, draft, verdict: verdict.accepted.tolist()[draft.batch_size]),
        *(LEARNS, "test_observes", None, "index out of range"),
    ),
    "edits the verdict": (
        instead(observe=lambda _, batch, draft, verdict: verdict.accepted.add_(1)),
        *(LEARNS, "test_observes", None, "observe has changed verdict.accepted"),
    ),
    "closes once": (
        instead(close=lambda self: delattr(self, "history")),
        *(LEARNS, "test_closes_twice", None, "history"),
    ),
    "bound to its thread": (BoundToItsThread, LEARNS, PIPELINE, False, "faults in the pipeline: .*raised"),
    "foreign ids, inline": (outside, QUICK, PIPELINE, True, "faults in the pipeline: .*malformed"),
    "keeps the table": (KeepsTheTable, QUICK, "test_keeps_no_view_of_a_batch", None, "with tensors overwritten"),
    "reads the text again": (
        Lookup,
        *(QUICK, "test_needs_only_the_newest_tokens", None, "with the newest tokens only"),
    ),
    "reads whole tables": (
        ReadsWholeTables,
        *(QUICK, "test_needs_only_the_newest_tokens", None, "with other ids in text that it has seen"),
    ),
    "appends what is new": (
        instead(Incremental, take_in=lambda _, known, before, text: known.extend(text)),
        *(QUICK, "test_starts_over_with_a_whole_text", None, "with whole texts handed over again"),
    ),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    proposer, caps, clause, argument, message = PLANTED[mistake]
    arguments = argument if isinstance(argument, tuple) else [] if argument is None else [argument]
    with pytest.raises(Exception, match=message):
        getattr(contract_of(proposer, caps)(), clause)(*arguments)


def test_every_clause_has_a_planted_proposer_and_a_docstring() -> None:
    assert {clause for _, _, clause, _, _ in PLANTED.values()} == clauses(ProposerContract)


def test_dummy_steps_that_reach_the_proposer_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaks(StagedProposer):
        def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
            self.proposer.ingest(replace(batch, tokens=batch.tokens.flip(1), is_dummy=True))
            super().step(batch, limits, draft)

    monkeypatch.setattr("specplug.testing.contract.StagedProposer", Leaks)
    with pytest.raises(AssertionError, match="the pipeline"):
        contract_of(Lookup)().test_works_through_the_pipeline(inline=False)


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
    TestSpliced().test_drafts_are_well_formed(torch.int64)
