"""The contract of the proposer `crosstok` for sampled requests, in both of its forms."""

from __future__ import annotations

import pytest
import torch

from specplug.testing.contract import ProposerContract
from specplug.testing.harness import ProposerHarness
from specplug_crosstok.writing import SOURCES
from tests.proposers.crosstok_tools import OTHER, SAME, VOCAB, Warm, options


class SampledRows(ProposerHarness):
    """The clauses that concern distributions; drafts of other slots and generations are other draws."""

    vocab_size = VOCAB
    driver_type = Warm

    @pytest.fixture(autouse=True, params=[(SAME, "auto"), (OTHER, "auto"), (OTHER, "tli")], ids=" ".join)
    def _route(self, request: pytest.FixtureRequest) -> None:
        self.options = options(request.param[0], route=request.param[1])

    test_fills_in_its_distribution = ProposerContract.test_fills_in_its_distribution
    test_does_not_depend_on_the_order_of_rows = ProposerContract.test_does_not_depend_on_the_order_of_rows
    test_works_through_the_pipeline = ProposerContract.test_works_through_the_pipeline
    _compare_with_pipeline = ProposerContract._compare_with_pipeline

    def test_draws_are_stated_and_others_are_not(self) -> None:
        """Only sampled rows have drawn tokens, and all of those are common ids."""
        with self.driver() as driver:
            steps = [step for step in self.steps(driver) if bool(step.draft.lengths.any())]
        drawn = 0
        for step in steps:
            inside, draft = step.draft.mask(), step.draft
            assert draft.drawn is not None
            assert draft.draft_logits is not None
            assert draft.draft_vocab is not None
            is_drawn = inside & draft.drawn
            assert not is_drawn[step.batch.temperature == 0].any()
            assert bool((draft.source[is_drawn] == SOURCES.index("common ids")).all())
            for row, place in is_drawn.nonzero().tolist():
                column = draft.draft_vocab.tolist().index(int(draft.token_ids[row, place]))
                assert draft.draft_logits[row, place, column] > -torch.inf
            drawn += int(is_drawn.sum())
        assert drawn > 20
