"""Contract tests for proposers: inherit `ProposerContract`, set `spec` to your proposer's, and run pytest.

    class TestEcho(ProposerContract):
        spec = ProposerSpec(name="echo", factory="my_package:Echo", summary="...", caps=ProposerCaps(needs_host=True))

Each test is one clause of the contract that `specplug.interfaces.Proposer` states.  `ProposerHarness` in
`specplug.testing.harness` documents the attributes to override and how the texts are fed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch

from specplug.testing.batches import POISON, RowDraft
from specplug.testing.driver import NO_OPTIONS
from specplug.testing.harness import ProposerHarness
from specplug.testing.wrappers import StagedProposer, without_old_text
from specplug.types.caps import Distribution
from specplug.types.draft import NO_TOKEN
from specplug.types.paths import ROOT
from specplug.types.request import Lifecycle, RequestOptions, digest_of
from specplug.types.step import Draft
from specplug.types.tensors import tensors_of

_newest_only = partial(without_old_text, newest_only=True)


class ProposerContract(ProposerHarness):
    """The clauses that every proposer must satisfy."""

    def test_drafts_for_the_texts(self) -> None:
        """The proposer drafts for at least one text; without drafts all other clauses would hold trivially."""
        drafted = sum(int(step.draft.lengths.sum()) for step in self.each_step())
        assert drafted > 0, f"{self.who}: drafted nothing for any text; override `texts` with some that it drafts for"

    @pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
    def test_drafts_are_well_formed(self, index_dtype: torch.dtype) -> None:
        """Shapes, ids, confidences, sources, parents and distributions are as `Draft` says, by any type of indices."""
        with self.driver(index_dtype=index_dtype) as driver:
            for step in self.steps(driver):
                mistake = find_mistake(step.draft, (len(step.names), self.draft_length), self.vocab_size)
                assert not mistake, f"{self.who}: {mistake}"

    def test_respects_limits(self) -> None:
        """No row drafts more than its limit, whether the limits are equal, different, or 0."""
        for cap in (lambda row, step: (row + step) % (self.draft_length + 1), lambda *_: 0, lambda *_: 1):
            caps = lambda step: {"caps": {name: cap(row, step) for row, name in enumerate(self.names)}}  # noqa: E731, B023
            for step in self.each_step(how=caps):
                lengths = step.draft.lengths
                within = bool(((lengths >= 0) & (lengths <= step.limits)).all())
                found = f"drafted {lengths.tolist()} tokens; expected at most {step.limits.tolist()}, row by row"
                assert within, f"{self.who}: {found}"

    def test_ingests_without_drafting(self) -> None:
        """Drafts do not depend on whether earlier steps drafted too."""
        seldom = self.drafts(lambda step: {"draft_length": 0} if step % 3 else NO_OPTIONS)
        self.assert_same(self.drafts()[::3], seldom[::3], "after steps that only ingested")

    def test_takes_an_empty_batch(self) -> None:
        """A step may have no requests."""
        with self.driver() as driver:
            assert driver.step(self.draft_length).draft.batch_size == 0
            driver.start("first", self.texts[0])
            driver.step(self.draft_length)
            driver.leave("first")
            assert driver.step(self.draft_length).draft.batch_size == 0

    def test_changes_nothing_that_it_reads(self) -> None:
        """Batch, limits and the draft's base belong to the engine and stay unchanged."""
        self.drafts(watched=True)

    def test_does_not_depend_on_the_order_of_rows(self) -> None:
        """Requests may change their row at every step."""
        names = self.names * 2
        count = len(self.texts)
        turned = self.drafts(lambda step: {"order": names[step % count : step % count + count]})
        self.assert_same(self.drafts(), turned, "with the rows in another order")

    def test_does_not_read_undefined_memory(self) -> None:
        """Drafts do not depend on table entries beyond a row's length or in rows of other slots."""
        self.assert_same(self.drafts(), self.drafts(poison=self.texts[0][-1]), "with other ids in undefined memory")

    def test_does_not_read_inside_barriers(self) -> None:
        """Drafts do not depend on the ids inside a span that is not text."""
        results = []
        for strange in (False, True):
            with self.driver() as driver:
                for index, text in enumerate(self.texts):
                    start = len(text) // 2
                    stop = len(text) - len(text) // 4
                    span = [self.vocab_size + 7] * (stop - start) if strange else list(text[start:stop])
                    barriers = [(start, stop)] if start < stop < len(text) else []
                    shown = [*text[:start], *span, *text[stop:]] if barriers else text
                    driver.start(f"text {index}", shown, barriers=barriers)
                results.append([driver.step(self.draft_length).by_request()])
        self.assert_same(results[0], results[1], "with other ids inside a barrier")

    def test_takes_prompts_in_chunks(self) -> None:
        """A prompt that arrives in chunks, with no drafts between them, gives the same drafts as a whole prompt."""
        with self.driver() as whole, self.driver() as pieces:
            for name, text in zip(self.names, self.texts, strict=True):
                whole.start(name, text)
                pieces.start(name, text[:1], prompt_length=len(text), prompt_digest=digest_of(text))
            for begin in range(1, max(map(len, self.texts)), 5):
                pieces.step(self.draft_length, caps=dict.fromkeys(self.names, 0))
                for name, text in zip(self.names, self.texts, strict=True):
                    pieces.extend(name, text[begin : begin + 5])
            expected = whole.step(self.draft_length).by_request()
            found = pieces.step(self.draft_length).by_request()
        self.assert_same([expected], [found], "with prompts in chunks")

    @pytest.mark.parametrize("kind", [Lifecycle.STARTED, Lifecycle.RESUMED, Lifecycle.UPDATED])
    def test_forgets_a_slot_with_its_generation(self, kind: Lifecycle) -> None:
        """A slot's next request gets the drafts of a fresh proposer, even if no event reported the last one's end.

        After preemption, a request's text in its new slot is that of the token table, not the remembered one.
        """
        name, end = ("old", None) if kind is Lifecycle.STARTED else ("new", Lifecycle.PREEMPTED)
        for text in self.texts:
            with self.driver() as used:
                used.start(name, text)
                used.step(self.draft_length)
                used.leave(name, end)
                if end is not None:
                    used.start("in its place", self.texts[0])
                self.compare_with_fresh(used, text, f"when {kind.value} in a slot used before", kind)

    @pytest.mark.parametrize("other", [Lifecycle.STARTED, Lifecycle.FINISHED, Lifecycle.ABORTED])
    def test_keeps_clients_apart(self, other: Lifecycle) -> None:
        """A request gets the drafts of a fresh proposer, whatever those with other isolation keys hold or held."""
        for text in self.texts:
            with self.driver() as used:
                used.start("old", text)
                used.step(self.draft_length)
                if other is not Lifecycle.STARTED:
                    used.leave("old", other)
                self.compare_with_fresh(used, text, f"beside another client's request that has {other.value}")

    @pytest.mark.parametrize(("visible", "store"), [(None, True), (3, True), (99, False)])
    def test_remembers_only_what_it_may(self, visible: int | None, store: bool) -> None:
        """Nothing is remembered beyond what a client saw, if that is known, and of requests that do not store it."""
        options = RequestOptions(store=store)
        for text in self.texts:
            seen = text[: visible or 0] if store else ()
            rest = text[len(seen) :]
            drafts = list[list[dict[str, RowDraft]]]()
            for unseen in (rest, [self.vocab_size - 1 - token for token in rest]):
                with self.driver() as driver:
                    driver.start("old", [*seen, *unseen], isolation_key="client", options=options)
                    driver.step(self.draft_length)
                    driver.leave("old", visible=visible)
                    drafts.append(self.drafts_of_part(driver, text, isolation_key="client"))
            when = f"after a request with `store` {store} of which `visible` {visible} tokens were seen"
            self.assert_same(drafts[0], drafts[1], when)

    @pytest.mark.parametrize("rank", [0, 1])
    def test_drafts_alike_on_all_ranks(self, rank: int) -> None:
        """Two instances draft the same for the same stream; differing drafts on ranks corrupt the text silently."""
        self.assert_same(self.drafts(), self.drafts(rank=rank), f"from another instance, of rank {rank}")

    def test_observes(self) -> None:
        """`observe` neither fails nor changes its arguments."""
        if not self.caps.learns:
            pytest.skip("does not learn")
        with self.driver(watched=True) as driver:
            answers = self.start_halves(driver)
            while any(answers.values()):
                step = driver.step(self.draft_length)
                emitted = driver.settle(step, answers).emitted.tolist()
                for name, count in zip(step.names, emitted, strict=True):
                    del answers[name][:count]

    def test_closes_twice(self) -> None:
        """Closing a closed proposer does nothing."""
        driver = self.driver()
        driver.close()
        driver.close()

    @pytest.mark.parametrize("inline", [False, True])
    def test_works_through_the_pipeline(self, inline: bool) -> None:
        """Threads or the engine's own, fault containment and dummy steps change no drafts and cause no faults."""
        if inline and not self.caps.inline:
            pytest.skip("does not run inline")
        with self.driver() as driver:
            driver.proposer = staged = StagedProposer(driver.proposer, self.spec, driver.context, inline=inline)
            found = [step.by_request() for step in self.steps(driver)]
            assert not staged.guard.counts, f"{self.who}: faults in the pipeline: {dict(staged.guard.counts)}"
        self.assert_same(self.drafts(), found, "through the pipeline")

    def test_keeps_no_view_of_a_batch(self) -> None:
        """Drafts do not depend on a batch's tensors being overwritten after the step."""
        if not self.caps.inline:
            pytest.skip("does not run inline, and so gets copies")
        found = []
        for step in self.each_step():
            found.append(step.by_request())
            for tensor in tensors_of(step.batch).values():
                tensor.fill_(POISON)  # a float represents it exactly, and a bool becomes True
        self.assert_same(self.drafts(), found, "with tensors overwritten after each step")

    def test_needs_only_the_newest_tokens(self) -> None:
        """Drafts do not depend on ids before a row's newest `num_new`, which may be wrong or missing."""
        if not self.caps.incremental:
            pytest.skip("reads whole texts")

        def with_gaps(step: int) -> Mapping[str, Any]:
            skipped = step % (len(self.names) + 1)  # each request skips one step in turn
            return {"order": [name for row, name in enumerate(self.names) if row != skipped] or self.names}

        expected = self.drafts(with_gaps)
        windows = self.drafts(with_gaps, change=_newest_only)
        self.assert_same(expected, windows, "with the newest tokens only")
        poisoned = self.drafts(with_gaps, change=without_old_text)
        self.assert_same(expected, poisoned, "with other ids in text that it has seen")

    def test_starts_over_with_a_whole_text(self) -> None:
        """A row whose whole text is new gets the drafts of a slot that held nothing before."""
        if not self.caps.incremental:
            pytest.skip("reads whole texts")
        with self.driver(change=_newest_only) as again:

            def resend(step: int) -> Mapping[str, Any]:
                again.resend(self.names[step % len(self.names)])
                return NO_OPTIONS

            found = [step.by_request() for step in self.steps(again, resend)]
        self.assert_same(self.drafts(), found, "with whole texts handed over again")


def find_mistake(draft: Draft, shape: tuple[int, int], vocab_size: int) -> str:
    """Return what is wrong with the form of a draft of B rows and N tokens, of `shape` (B, N); "" if nothing is."""
    draft.validate()
    if (draft.batch_size, draft.draft_length) != shape:
        return f"draft buffer resized; found {(draft.batch_size, draft.draft_length)}, expected {shape}"
    inside = draft.mask()
    ids = draft.token_ids
    places = torch.arange(draft.draft_length, device=draft.device)
    wrong = {  # entries, those of them that are wrong, and what was expected
        "drafted ids": (ids, inside & ((ids < 0) | (ids >= vocab_size)), f"ids in [0, {vocab_size})"),
        "confidences": (  # written this way, NaN is wrong
            draft.confidence,
            inside & ~((draft.confidence >= 0) & (draft.confidence <= 1)),
            "probabilities in [0, 1]",
        ),
        "sources": (
            draft.source,
            inside & ((draft.source < 0) | (draft.source >= len(draft.sources))),
            f"one of {list(range(len(draft.sources)))}",
        ),
        "ids beyond the lengths": (ids, ~inside & (ids != NO_TOKEN), f"{NO_TOKEN}, as they arrive"),
        "sources beyond the lengths": (draft.source, ~inside & (draft.source != -1), "-1, as they arrive"),
    }
    if draft.parents is not None:
        is_wrong = inside & ((draft.parents < ROOT) | (draft.parents >= places))
        wrong["parents"] = (draft.parents, is_wrong, f"each in [{ROOT}, its node)")
    for what, (entries, where, expected) in wrong.items():
        if bool(where.any()):
            return f"{what} {entries[where].tolist()}; expected {expected}"
    return "" if draft.distribution is Distribution.ONE_HOT else _mistake_of_distribution(draft)


def _mistake_of_distribution(draft: Draft) -> str:
    name = draft.distribution.value
    full = draft.draft_logits if draft.distribution is Distribution.LOGITS else draft.draft_probs
    assert full is not None
    inside = draft.mask() if draft.drawn is None else draft.mask() & draft.drawn
    probs = full[inside].softmax(-1) if draft.distribution is Distribution.LOGITS else full[inside]
    column = tokens = draft.token_ids[inside].long()
    if not bool((probs >= 0).all()):
        return f"{name} hold NaN or negative probabilities"
    if not bool(((probs.sum(-1) - 1).abs() < 1e-3).all()):
        return f"{name} do not sum to 1"
    if draft.draft_vocab is not None:
        known, column = (tokens[:, None] == draft.draft_vocab).max(1)
        if not bool(known.all()):
            return (
                f"drafted ids {tokens[~known].tolist()} are not in its draft vocabulary. Draw from that, or clear "
                "draft.drawn for tokens that were not drawn from the distribution"
            )
    is_possible = bool((probs.gather(1, column[:, None]) > 0).all())
    return "" if is_possible else f"drafted tokens that {name} give probability 0"
