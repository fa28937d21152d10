"""Capabilities of engines, proposers and verifiers: declared, never inferred from names."""

from __future__ import annotations

import enum
from dataclasses import InitVar, dataclass

from specplug.errors import PluginError, SettingsError


class Ragged(enum.Enum):
    """How an engine verifies rows whose drafts differ in length."""

    NATIVE = "native"
    LONGEST = "padded to the longest kept draft"
    PADDED = "padded to the plan's draft length"
    COSTS_FULL_GRAPH = "costs the full CUDA graph"


class DraftLengthChange(enum.Enum):
    """Requirement for verifying a different draft length than in the step before."""

    FREE = "free"
    CAPTURED = "needs a captured graph"
    FIXED = "fixed"


class Distribution(enum.Enum):
    """The distribution that draft tokens were drawn from; a wrong one is silently lossy."""

    ONE_HOT = "one-hot"
    LOGITS = "draft_logits"
    PROBS = "draft_probs"


@dataclass(frozen=True, slots=True)
class EngineCaps:
    """Capabilities of an adapter's engine.  Policies and pipelines branch on these, never on an engine's name.

    Attributes:
        max_draft_length: most draft tokens per request and step (gamma), bonus excluded.
        captured_draft_lengths: the draft lengths that run at full speed, ascending; empty when all of them do.  With a
            fixed draft length, that and 0 if a step may also do without drafts.
        ragged: how drafts of different lengths in one batch are verified.
        draft_length_change: the requirement for verifying a different draft length than before.
        trees: true if drafts with `parents` are verified as trees, false if only chains are verified.
        draft_input: the draft distribution that the verifier takes in addition to one-hot drafts; `ONE_HOT` for none.
        tensor_parallel_size: ranks that must draft identically.
        verifies_budget: true if the engine always verifies as many draft tokens as the plan's budget (all of them
            without a budget), because the number that the trim half keeps is known only on the device.
        engine_tokens: the tokens per row that the engine's own drafter drafts before the proposer, which continues
            them (see `StepArguments.engine_ids`); 0 if it has none.
    """

    max_draft_length: int
    captured_draft_lengths: tuple[int, ...] = ()
    ragged: Ragged = Ragged.NATIVE
    draft_length_change: DraftLengthChange = DraftLengthChange.FREE
    trees: bool = False
    draft_input: Distribution = Distribution.ONE_HOT
    tensor_parallel_size: int = 1
    verifies_budget: bool = False
    engine_tokens: int = 0

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
                expected=f"ascending distinct draft lengths up to {self.max_draft_length}",
            )

    def fit_draft_length(self, draft_length: int) -> int:
        """Return the greatest draft length, at most `draft_length`, that the engine runs at full speed.

        An engine with a fixed draft length always verifies `max_draft_length` and pads shorter drafts, so proposers
        may still use `draft_length`.
        """
        draft_length = max(0, min(draft_length, self.max_draft_length))
        if not self.captured_draft_lengths or self.draft_length_change is DraftLengthChange.FIXED:
            return draft_length
        return max((w for w in self.captured_draft_lengths if w <= draft_length), default=0)


@dataclass(frozen=True, slots=True)
class ProposerCaps:
    """Requirements and capabilities of a proposer, declared at registration.

    Attributes:
        needs_host: the proposer reads tokens on the host.  It receives a host copy of the batch, on a worker thread
            with a deadline.  If false, it runs inline on the engine's device and must not read any tensor back.
        inline: for proposers with `needs_host`: steps are short, never block, and keep no view of a batch.  If the
            batch is already in host memory, the proposer runs in the engine's own thread on the engine's tensors,
            without copies or a deadline.  Otherwise it runs on a thread like other host proposers.
        incremental: the proposer reads only the `num_new` newest tokens of each row (in `observe`, the tokens just
            emitted), so snapshots for the host hold no others (see `EngineBatch.first`).  A row whose
            `num_new` equals its length starts over and replaces earlier state.  If the proposer raises, its next step
            resends every row in full.
        distribution: the draft distribution that the proposer fills in.
        trees: the proposer may set `Draft.parents`.  Where the engine verifies chains, a tree is cut to its best path.
            With `extends`, drafts have no parents there: the proposer itself drafts chains, by
            `EngineCaps.trees`.
        learns: the proposer wants `observe` calls.
        deterministic: drafts are the same, bit by bit, on all tensor-parallel ranks that get the same batches and
            events, so that each rank may draft for itself.  Such a proposer draws no random numbers, reads neither
            clocks nor files, and defines `Proposer.checksums`.
        extends: the proposer continues the draft of the engine's own drafter, which its step receives
            (`EngineBatch.engine_ids`), and counts its tokens under the last of its sources.
    """

    needs_host: bool = False
    inline: bool = False
    incremental: bool = False
    distribution: Distribution = Distribution.ONE_HOT
    trees: bool = False
    learns: bool = False
    extends: bool = False
    deterministic: bool = False
    host_step: InitVar[bool] = False

    def __post_init__(self, host_step: bool) -> None:
        if host_step:
            raise PluginError.build(
                "compiled steps on the host are gone",
                found="ProposerCaps(host_step=True)",
                expected="a step on the engine's device, or needs_host=True",
                remedy="See docs/upgrading.md",
            )

    def labels(self) -> tuple[str, ...]:
        """Return the short words that listings show."""
        labels = ["host" if self.needs_host else "device", self.distribution.value]
        return tuple(labels + ["inline"] * self.inline + ["trees"] * self.trees + ["learns"] * self.learns)


@dataclass(frozen=True, slots=True)
class VerifierCaps:
    """Inputs and guarantees of a verifier, declared at registration.

    Attributes:
        lossless: the output follows the target's distribution for any draft.  A verifier that is not lossless is used
            only if a server or a request enables it by name.
        distributions: the draft distributions that it takes in addition to one-hot drafts, which every verifier takes.
            Drafts with any other distribution are passed to it as one-hot drafts.
        thresholds: true for a lossy verifier that reads `SamplingBatch.acceptance_threshold`.
    """

    lossless: bool
    distributions: tuple[Distribution, ...] = ()
    thresholds: bool = False

    def labels(self) -> tuple[str, ...]:
        """Return the short words that listings show."""
        taken = dict.fromkeys(["one-hot", *(distribution.value for distribution in self.distributions)])
        return ("lossless" if self.lossless else "LOSSY", *taken)
