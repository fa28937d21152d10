"""SGLang's drafts by the draft stage; needs no SGLang.  Those between kernels are held to be the same elsewhere."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.steps.trim import SurvivalTrimmer
from specplug.types.caps import EngineCaps, Ragged
from specplug.types.step import StepPlan
from tests.adapters.sglang_engine import DRAFT_LENGTH, SLOTS, VOCAB, Engine, run
from tests.steps.oracle import Scripted, random_script, scripted_stage
from tests.steps.tools import Recorder, stage_of


@settings(max_examples=50, deadline=None)
@given(random=st.randoms(use_true_random=False), steps=st.integers(1, 20))
def test_reports_change_neither_drafts_nor_counts(random, steps):
    """Although all draft tokens are drafted for them, whatever is planned."""
    script = random_script(random)
    stages = [scripted_stage(Scripted(script), SurvivalTrimmer(), DRAFT_LENGTH, learns=True) for _ in range(2)]
    engines = [Engine(stage=stages[0]), Engine(stage=stages[1], reports=True)]
    run(random, engines, steps)
    expected, found = [engine.close() for engine in engines]
    assert found == expected


def test_drafts_that_cost_passes_are_not_made_for_reports():
    script = [([0, 1, 2, 3], 0.5, 0, "")]
    reported = []
    for learns in (True, False):  # one that learns here reads new tokens only
        stage = scripted_stage(Scripted(script), SurvivalTrimmer(), DRAFT_LENGTH, learns=learns)
        engine = Engine(stage=stage)
        engine.start("r", 1, [1, 2, 3], 40)
        engine.drafts.reports_expected = True
        draft = engine.propose(["r"], {"r": 3}, StepPlan(2))
        assert draft is not None
        assert draft.token_ids.tolist() == [[0, 1]]
        reported.append(engine.drafts.report.expected)
    assert reported == [[0.5, 0.25, 0.125, 0.0625], None]


def test_the_end_of_a_text_reaches_proposers():
    """The tokens of its last step, too, although no step drafted after them."""
    proposer, answer = Recorder(incremental=True), [0, 1, 2, 3, 1]
    caps = EngineCaps(DRAFT_LENGTH, ragged=Ragged.PADDED)
    stage = stage_of({"one": proposer}, caps, SurvivalTrimmer(), vocab_size=VOCAB, max_slots=SLOTS)
    engine = Engine(stage=stage)
    engine.start("one", 1, [2, 2, 1, 0], 40)
    engine.verify(engine.propose(["one"], {"one": 4}, StepPlan(DRAFT_LENGTH)), [answer])
    engine.finish("one", 4 + len(answer))
    assert proposer.texts == {(1, 1): [2, 2, 1, 0, *answer]}
