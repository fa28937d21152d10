"""One compiled call around a proposer's C function gives the drafts, counts and faults of the stage's own step."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.interfaces import PluginContext
from specplug.match.cpu.compiled import c_function
from specplug.match.options import LookupSettings
from specplug.match.proposer import LookupProposer
from specplug.types.caps import EngineCaps, ProposerCaps
from specplug.types.host_step import FAILED, HostStep
from specplug.types.plan import StepPlan
from tests.match.flags import held
from tests.pipeline.test_cpu_step import DRAFT_LENGTH, LENGTH, SLOTS, TRIMMERS, VOCAB, Engine, SurvivalTrimmer, play

CAPS = ProposerCaps(needs_host=True, inline=True, incremental=True, host_step=True)
_FAILED = int(FAILED)
PLAN = StepPlan(DRAFT_LENGTH)
REPEATED = [1, 2, 3, 1, 2, 3, 1]


class Counted(LookupProposer):
    """Counts the steps that are taken in Python."""

    in_python = 0

    def __init__(self) -> None:
        caps = EngineCaps(DRAFT_LENGTH)
        super().__init__(PluginContext(caps, LookupSettings(), VOCAB, max_slots=SLOTS, max_length=LENGTH))

    def step(self, batch, limits, draft):
        self.in_python += 1
        super().step(batch, limits, draft)


class Fails(Counted):
    """Has a C function that fails at every step."""

    def host_step(self) -> HostStep:
        return HostStep(int(FAILING.address), 0)


class CannotTell(Counted):
    """Fails whenever it is questioned about what its slots share."""

    def is_outdated(self) -> bool:
        raise ZeroDivisionError("planted")


def _fail(_arguments: int) -> int:
    return _FAILED


FAILING = c_function("int32(int64)")(_fail)


def engine(kind: type[Counted] = Counted) -> Engine:
    made = Engine(kind(), SurvivalTrimmer(), CAPS)
    made.start("a", LENGTH, None)
    return made


def steps(made: Engine, first: int, last: int) -> list[list[int]]:
    """Let request "a" emit a token per step; return each step's draft."""
    found = []
    for length in range(first, last):
        ids, lengths, *_ = made.step([("a", [REPEATED[length % 3]], length + 1, 0)], PLAN, compiled=True)
        found.append(ids[0][: lengths[0]])
    return found


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans(), TRIMMERS)
def test_steps_equal_those_of_the_stage(data, mixed, trimmer):
    play(data, *[Engine(Counted(), trimmer(), CAPS) for _ in range(2)], mixed=mixed)


def test_python_only_begins_texts():
    made = engine()
    assert steps(made, 0, 9)[-1] == [1, 2, 3]
    assert made.proposer.in_python == 1


def test_a_busy_step_loses_no_token_and_is_no_fault():
    made, beside = engine(), engine()
    steps(made, 0, 5)
    with held(made.proposer.lookup):
        assert steps(made, 5, 7) == [[], []]
    steps(beside, 0, 7)
    assert steps(made, 7, 12) == steps(beside, 7, 12) != [[]] * 5
    assert not made.stage.runners[0].guard.counts


def test_a_failing_function_costs_its_drafts_and_is_switched_off():
    made = engine(Fails)
    assert steps(made, 0, 9)[1:] == [[]] * 8
    assert made.stage.runners[0].guard.counts.keys() == {"raised", "switched off"}


def test_a_proposer_that_cannot_tell_whether_it_is_outdated_drafts_in_python():
    made = engine(CannotTell)
    assert steps(made, 0, 9)[-1] == [1, 2, 3]
    assert made.proposer.in_python == 9
    assert made.stage.runners[0].guard.counts.keys() == {"raised"}
