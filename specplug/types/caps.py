"""What an engine can do and what a proposer needs: declared, never guessed from names."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from specplug.errors import SettingsError


class Ragged(enum.Enum):
    """How an engine verifies rows whose drafts differ in length."""

    NATIVE = "native"
    PADDED = "padded"
    COSTS_FULL_GRAPH = "costs the full CUDA graph"
    NO = "no"


class DraftLengthChange(enum.Enum):
    """What it takes to verify another width than the step before."""

    FREE = "free"
    CAPTURED = "needs a captured graph"
    FIXED = "fixed"


class Distribution(enum.Enum):
    """The distribution that draft tokens were drawn from; a wrong one is silently lossy."""

    ONE_HOT = "one-hot"
    LOGITS = "draft_logits"
    PROBS = "draft_probs"


class PlanSite(enum.Enum):
    """Where a policy's plan half runs, seen from the proposer."""

    INLINE = "in the same call"
    SCHEDULER = "in the scheduler's process"
    WORKER = "in the worker"


class Feedback(enum.Enum):
    """How what was accepted travels from the worker to the planner."""

    DIRECT = "same memory, every step"
    SCHEDULER = "the scheduler's own counts per request"
    NONE = "none: plans cannot learn"


@dataclass(frozen=True, slots=True)
class EngineCaps:
    """What an adapter's engine can do.  Policies and pipelines ask these, never an engine's name.

    Attributes:
        max_draft_length: most draft tokens per request and step (gamma), bonus excluded.
        captured_draft_lengths: ascending ladder of widths that run at full speed; empty when every width does.
        ragged: how drafts of different lengths in one batch are verified.
        draft_length_change: what verifying another width than before costs.
        trees: whether drafts with `parents` are verified as trees; chains otherwise.
        draft_input: the proposal distribution that the verifier takes beside one-hot drafts; `ONE_HOT` for none.
        decision_lag: engine steps between a plan and the verification that it shapes.
        plan_site: where plans are made.
        feedback: how verdicts reach the planner.
        tensor_parallel_size, data_parallel_size: ranks that must draft alike, and ranks that step together.
        verifies_budget: as many draft tokens are verified as the plan's budget says, and all without one: how many the
            trim half keeps is known on the device only.
    """

    max_draft_length: int
    captured_draft_lengths: tuple[int, ...] = ()
    ragged: Ragged = Ragged.NATIVE
    draft_length_change: DraftLengthChange = DraftLengthChange.FREE
    trees: bool = False
    draft_input: Distribution = Distribution.ONE_HOT
    decision_lag: int = 0
    plan_site: PlanSite = PlanSite.INLINE
    feedback: Feedback = Feedback.DIRECT
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    verifies_budget: bool = False

    def __post_init__(self) -> None:
        ladder = self.captured_draft_lengths
        if self.max_draft_length < 0:
            raise SettingsError.build(
                "max_draft_length is negative", who="EngineCaps", found=self.max_draft_length, expected=">= 0"
            )
        if list(ladder) != sorted(set(ladder)) or (ladder and ladder[-1] > self.max_draft_length):
            raise SettingsError.build(
                "captured_draft_lengths is not a ladder",
                who="EngineCaps",
                found=ladder,
                expected=f"ascending distinct widths up to {self.max_draft_length}",
            )

    def fit_draft_length(self, draft_length: int) -> int:
        """Return the widest width the engine runs at full speed that is at most `draft_length`.

        An engine with a fixed draft length always verifies `max_draft_length`.  Shorter drafts are padded there, so
        proposers may still use `draft_length`.
        """
        draft_length = max(0, min(draft_length, self.max_draft_length))
        if not self.captured_draft_lengths or self.draft_length_change is DraftLengthChange.FIXED:
            return draft_length
        return max((w for w in self.captured_draft_lengths if w <= draft_length), default=0)


@dataclass(frozen=True, slots=True)
class ProposerCaps:
    """What a proposer needs and offers; declared when it is registered.

    Attributes:
        needs_host: reads tokens on the host: it gets a host copy of the batch, on a worker thread with a deadline.
            When false it must not read any tensor back, and runs inline on the engine's device.
        inline: of proposers that need the host: steps are short and never block, and keep no view of a batch.  Where
            the batch lies in host memory already, it runs in the engine's own thread on the engine's tensors, without
            copies and without a deadline.  Elsewhere it runs on a thread as other host proposers do.
        incremental: of proposers that need the host: reads only the `num_new` newest tokens of each row, in `observe`
            those just emitted.  Snapshots then hold no others (see `BatchView.first`).  A row whose `num_new` is its
            length starts over, whatever was handed over before: so it is after a step in which the proposer raised.
        distribution: the proposal distribution that it fills in.
        trees: may set `Draft.parents`.
        learns: wants `observe` calls.
    """

    needs_host: bool = False
    inline: bool = False
    incremental: bool = False
    distribution: Distribution = Distribution.ONE_HOT
    trees: bool = False
    learns: bool = False

    def labels(self) -> tuple[str, ...]:
        """Return the short words that listings show."""
        labels = ["host" if self.needs_host else "device", self.distribution.value]
        return tuple(labels + ["inline"] * self.inline + ["trees"] * self.trees + ["learns"] * self.learns)


@dataclass(frozen=True, slots=True)
class VerifierCaps:
    """What a verifier takes and promises; declared when it is registered.

    Attributes:
        lossless: the output follows the target's distribution whatever is drafted.  A verifier that is not lossless is
            used only when a server or a request asks for it by name.
        distributions: the proposal distributions that it takes beside one-hot drafts, which every verifier takes.
            Drafts that state another one reach it as one-hot drafts.
    """

    lossless: bool
    distributions: tuple[Distribution, ...] = ()

    def labels(self) -> tuple[str, ...]:
        """Return the short words that listings show."""
        taken = dict.fromkeys(["one-hot", *(distribution.value for distribution in self.distributions)])
        return ("lossless" if self.lossless else "LOSSY", *taken)
