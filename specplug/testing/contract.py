"""Contract tests for proposers: inherit `ProposerContract`, set `spec` to your proposer's, and run pytest.

    class TestEcho(ProposerContract):
        spec = ProposerSpec(name="echo", factory="my_package:Echo", summary="...", caps=ProposerCaps(needs_host=True))

Each test is one clause of the contract that `specplug.interfaces.Proposer` states.  `ProposerHarness` in
`specplug.testing.harness` documents the attributes to override and how the texts are fed.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from specplug.testing.batches import POISON
from specplug.testing.harness import ProposerHarness
from specplug.testing.wrappers import (
    ChangedBatches,
    StagedProposer,
    WatchedProposer,
    newest_only,
    without_old_text,
)
from specplug.types.caps import Distribution
from specplug.types.draft import NO_TOKEN
from specplug.types.paths import ROOT
from specplug.types.request import Lifecycle
from specplug.types.tensors import tensors_of

_newest_only = partial(ChangedBatches, change=newest_only)
_without_old_text = partial(ChangedBatches, change=without_old_text)


class ProposerContract(ProposerHarness):
    """The clauses that every proposer must satisfy."""

    def test_drafts_for_the_texts(self) -> None:
        """The proposer drafts for at least one text; without drafts all other clauses would hold trivially."""
        with self.driver() as driver:
            drafted = sum(int(step.draft.lengths.sum()) for step in self.steps(driver))
        assert drafted > 0, f"{self.who}: drafted nothing for any text; override `texts` with some that it drafts for"

    @pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
    def test_keeps_the_shape_of_the_draft(self, index_dtype: torch.dtype) -> None:
        """The draft buffer keeps its shapes and dtypes, whichever integer type the engine's indices have."""
        with self.driver(index_dtype=index_dtype) as driver:
            for step in self.steps(driver):
                step.draft.validate()
                found = (step.draft.batch_size, step.draft.draft_length)
                expected = (len(step.names), self.draft_length)
                assert found == expected, f"{self.who}: draft buffer resized; found {found}, expected {expected}"

    def test_drafts_ids_of_the_vocabulary(self) -> None:
        """Ids lie in [0, vocab_size) within a row's length and are NO_TOKEN beyond it."""
        with self.driver() as driver:
            for step in self.steps(driver):
                inside = step.draft.mask()
                ids = step.draft.token_ids
                wrong = ids[inside & ((ids < 0) | (ids >= self.vocab_size))].tolist()
                assert not wrong, f"{self.who}: drafted ids {wrong}; expected ids in [0, {self.vocab_size})"
                left = ids[~inside & (ids != NO_TOKEN)].tolist()
                assert not left, (
                    f"{self.who}: ids {left} stand beyond the lengths; expected {NO_TOKEN}. Leave these places as "
                    "they arrive, or call draft.shorten(limits) at the end"
                )

    def test_respects_limits(self) -> None:
        """No row drafts more than its limit, whether the limits are equal, different, or 0."""
        for shape in (
            lambda row, step: (row + step) % (self.draft_length + 1),
            lambda row, step: 0,
            lambda row, step: 1,
        ):
            with self.driver() as driver:
                for step in self.steps(driver, caps=shape):
                    lengths = step.draft.lengths.tolist()
                    limits = step.limits.tolist()
                    held = all(0 <= length <= limit for length, limit in zip(lengths, limits, strict=True))
                    assert held, f"{self.who}: drafted {lengths} tokens; expected at most {limits}, row by row"

    def test_confidence_is_a_probability(self) -> None:
        """Confidences of drafted tokens lie in [0, 1]."""
        with self.driver() as driver:
            for step in self.steps(driver):
                levels = step.draft.confidence[step.draft.mask()]
                wrong = levels[~((levels >= 0) & (levels <= 1))].tolist()  # written this way, NaN is wrong
                assert not wrong, f"{self.who}: confidences {wrong}; expected probabilities in [0, 1]"

    def test_names_its_sources(self) -> None:
        """Drafted tokens index `sources` (0 for a single unnamed source); all other entries are -1."""
        with self.driver() as driver:
            known = set(range(max(1, len(driver.proposer.sources))))
            for step in self.steps(driver):
                for name, row in step.by_request().items():
                    assert known.issuperset(row.source), (
                        f"{self.who}: source {row.source} with draft {row.token_ids} of {name!r}; "
                        f"expected each one of {sorted(known)}"
                    )
                left = step.draft.source[~step.draft.mask()]
                assert bool((left == -1).all()), (
                    f"{self.who}: sources {left[left != -1].tolist()} stand beyond the lengths; expected -1. Leave "
                    "these places as they arrive, or call draft.shorten(limits) at the end"
                )

    def test_parents_come_before_children(self) -> None:
        """In a tree, every node's parent is an earlier node or the context."""
        if not self.caps.trees:
            pytest.skip("drafts no trees")
        with self.driver() as driver:
            for step in self.steps(driver):
                for name, row in step.by_request().items():
                    parents = row.parents or ()
                    sound = all(ROOT <= parent < node for node, parent in enumerate(parents))
                    assert sound, f"{self.who}: parents {parents} of {name!r}; expected each in [{ROOT}, its node)"

    def test_fills_in_its_distribution(self) -> None:
        """The declared draft distribution sums to 1 and gives each drafted token a positive probability."""
        distribution = self.caps.distribution
        if distribution is Distribution.ONE_HOT:
            pytest.skip("drafts are one-hot")
        with self.driver() as driver:
            for step in self.steps(driver):
                inside = step.draft.mask()
                draft = step.draft
                full = draft.draft_logits if distribution is Distribution.LOGITS else draft.draft_probs
                assert full is not None
                inside = inside if draft.drawn is None else inside & draft.drawn
                probs = full[inside].softmax(-1) if distribution is Distribution.LOGITS else full[inside]
                assert bool((probs >= 0).all()), f"{self.who}: {distribution.value} hold NaN or negative probabilities"
                whole = (probs.sum(-1) - 1).abs() < 1e-3
                assert bool(whole.all()), f"{self.who}: {distribution.value} do not sum to 1"
                column = draft.token_ids[inside].long()
                tokens = draft.token_ids[inside].long()
                if draft.draft_vocab is not None:
                    found, column = (tokens[:, None] == draft.draft_vocab).max(1)
                    unknown = tokens[~found].tolist()
                    assert not unknown, (
                        f"{self.who}: drafted ids {unknown} are not in its draft vocabulary. Draw from that, or clear "
                        "draft.drawn for tokens that were not drawn from the distribution"
                    )
                own = probs.gather(1, column[:, None])
                assert bool((own > 0).all()), f"{self.who}: drafted tokens that {distribution.value} give probability 0"

    def test_ingests_without_drafting(self) -> None:
        """Drafts do not depend on whether earlier steps drafted too."""
        every = 3
        with self.driver() as always, self.driver() as seldom:
            draft_lengths = (
                (lambda step: self.draft_length),
                (lambda step: self.draft_length if step % every == 0 else 0),
            )
            drafts = [
                self.drafts(driver, draft_lengths=draft_length)
                for driver, draft_length in zip((always, seldom), draft_lengths, strict=True)
            ]
        self.same(drafts[0][::every], drafts[1][::every], "after steps that only ingested")

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
        with self.driver(WatchedProposer) as driver:
            for _step in self.steps(driver):
                pass

    def test_does_not_depend_on_the_order_of_rows(self) -> None:
        """Requests may change their row at every step."""
        with self.driver() as still, self.driver() as moving:
            turned = self.drafts(moving, orders=_rotated)
            self.same(self.drafts(still), turned, "with the rows in another order")

    def test_does_not_read_undefined_memory(self) -> None:
        """Drafts do not depend on table entries beyond a row's length or in rows of other slots."""
        inside = self.texts[0][-1]
        with self.driver() as poisoned, self.driver(poison=inside) as plausible:
            self.same(self.drafts(poisoned), self.drafts(plausible), "with other ids in undefined memory")

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
        self.same(results[0], results[1], "with other ids inside a barrier")

    def test_takes_prompts_in_chunks(self) -> None:
        """A prompt that arrives in chunks, with no drafts between them, gives the same drafts as a whole prompt."""
        with self.driver() as whole, self.driver() as pieces:
            for index, text in enumerate(self.texts):
                whole.start(f"text {index}", text)
                pieces.start(f"text {index}", text[:1])
            for begin in range(1, max(len(text) for text in self.texts), 5):
                pieces.step(self.draft_length, caps={f"text {index}": 0 for index in range(len(self.texts))})
                for index, text in enumerate(self.texts):
                    pieces.extend(f"text {index}", text[begin : begin + 5])
            expected = whole.step(self.draft_length).by_request()
            found = pieces.step(self.draft_length).by_request()
        self.same([expected], [found], "with prompts in chunks")

    def test_forgets_a_slot_with_its_generation(self) -> None:
        """A slot's next request gets the drafts of a fresh proposer, even if no event reported the last one's end."""
        for text in self.texts:
            with self.driver() as used:
                used.start("old", text)
                used.step(self.draft_length)
                used.leave("old", kind=None)
                self.compare_with_fresh(used, text, Lifecycle.STARTED, "in a slot used before")

    @pytest.mark.parametrize("kind", [Lifecycle.RESUMED, Lifecycle.UPDATED])
    def test_believes_the_table_after_preemption(self, kind: Lifecycle) -> None:
        """After preemption, a request's text in its new slot is that of the token table, not the remembered one."""
        for text in self.texts:
            with self.driver() as used:
                used.start("new", text)
                used.step(self.draft_length)
                used.leave("new", Lifecycle.PREEMPTED)
                used.start("in its place", self.texts[0])
                self.compare_with_fresh(used, text, kind, f"{kind.value} after preemption")

    @pytest.mark.parametrize("rank", [0, 1])
    def test_drafts_alike_on_all_ranks(self, rank: int) -> None:
        """Two instances draft the same for the same stream; differing drafts on ranks corrupt the text silently."""
        with self.driver() as one, self.driver(rank=rank) as other:
            self.same(self.drafts(one), self.drafts(other), f"from another instance, of rank {rank}")

    def test_observes(self) -> None:
        """`observe` neither fails nor changes its arguments."""
        if not self.caps.learns:
            pytest.skip("does not learn")
        with self.driver(WatchedProposer) as driver:
            answers = {}
            for index, text in enumerate(self.texts):
                driver.start(f"text {index}", text[: (len(text) + 1) // 2])
                answers[f"text {index}"] = list(text[(len(text) + 1) // 2 :])
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

    def test_works_through_the_pipeline(self) -> None:
        """Threads, fault containment and dummy steps leave the drafts unchanged and cause no faults."""
        self._compare_with_pipeline(inline=False, when="through the pipeline")

    def test_works_inline(self) -> None:
        """The same holds in the engine's own thread."""
        if not self.caps.inline:
            pytest.skip("does not run inline")
        self._compare_with_pipeline(inline=True, when="inline")

    def test_keeps_no_view_of_a_batch(self) -> None:
        """Drafts do not depend on a batch's tensors being overwritten after the step."""
        if not self.caps.inline:
            pytest.skip("does not run inline, and so gets copies")
        found = []
        with self.driver() as still, self.driver() as overwritten:
            for step in self.steps(overwritten):
                found.append(step.by_request())
                for tensor in tensors_of(step.batch).values():
                    tensor.fill_(POISON)  # a float represents it exactly, and a bool becomes True
            self.same(self.drafts(still), found, "with tensors overwritten after each step")

    def test_needs_only_the_newest_tokens(self) -> None:
        """Drafts do not depend on ids before a row's newest `num_new`, which may be wrong or missing."""
        if not self.caps.incremental:
            pytest.skip("reads whole texts")
        with self.driver() as whole, self.driver(_newest_only) as windows, self.driver(_without_old_text) as wrong:
            expected = self.drafts(whole, orders=_with_gaps)
            self.same(expected, self.drafts(windows, orders=_with_gaps), "with the newest tokens only")
            self.same(expected, self.drafts(wrong, orders=_with_gaps), "with other ids in text that it has seen")

    def test_starts_over_with_a_whole_text(self) -> None:
        """A row whose whole text is new gets the drafts of a slot that held nothing before."""
        if not self.caps.incremental:
            pytest.skip("reads whole texts")
        with self.driver() as once, self.driver(_newest_only) as again:

            def orders(names: list[str], step: int) -> list[str]:
                again.resend(names[step % len(names)])
                return names

            self.same(self.drafts(once), self.drafts(again, orders=orders), "with whole texts handed over again")

    def _compare_with_pipeline(self, *, inline: bool, when: str) -> None:
        with self.driver() as plain, self.driver() as driver:
            driver.proposer = staged = StagedProposer(driver.proposer, self.spec, driver.context, inline=inline)
            expected = self.drafts(plain)
            found = self.drafts(driver)
            assert not staged.guard.counts, f"{self.who}: faults in the pipeline: {dict(staged.guard.counts)}"
        self.same(expected, found, when)


def _with_gaps(names: list[str], step: int) -> list[str]:
    """Let each request skip one step in turn, so that its tokens arrive with the next."""
    return [name for row, name in enumerate(names) if row != step % (len(names) + 1)] or names


def _rotated(names: list[str], step: int) -> list[str]:
    first = step % len(names)
    return names[first:] + names[:first]
