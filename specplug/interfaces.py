"""The interfaces that plug-ins implement: Proposer, Planner and Trimmer (the two halves of a policy), Verifier.

One engine step is plan -> propose -> trim -> verify -> observe.  The calls are separate because engines make them in
different places: on vLLM the plan is made in the scheduler's process, everything else in each worker, and a draft of
one step is verified in the next.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.types.caps import EngineCaps
from specplug.types.plan import HostStats, StepReport, TrimLimits
from specplug.types.request import Event
from specplug.types.step import Draft, EngineBatch, StepCost, StepPlan, Verdict
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification


def _no_part(name: str, *, states: bool = False) -> Any:
    raise ContractError.build(
        f"proposer {name!r} cannot be built as a part here",
        who="PluginContext",
        expected="a proposer's context from a server or from specplug.testing",
    )


@dataclass(frozen=True, slots=True)
class PluginContext:
    """The argument that every plug-in is constructed with, whatever its kind.

    Attributes:
        caps: what the engine can do.
        options: the plug-in's own settings, an instance of the model that it registered; None if it registered none.
        vocab_size: V; token ids lie in [0, V).
        max_slots: S, the most requests at a time.
        max_length: L, the longest context.
        device: the device of the batch's tensors (the CPU for `needs_host` proposers).
        rank: tensor-parallel rank.  Drafts must not depend on it.
        seed: seed of the plug-in's own random stream.  Drafts must be independent of the verifier's random numbers, so
            never derive random numbers from a request's seed or from positions.
        target_path: the directory or the repository id that the engine loaded the target model from.  None, like the
            next two, if the adapter does not know it.
        target_config: the target's Hugging Face configuration.  For a multimodal model this is the configuration of
            the whole model; `get_text_config()` returns that of the language model.
        target_tokenizer: the target's tokenizer, with the interface of a Hugging Face tokenizer.
        sections: the sections of the server's settings that the plug-in registered for (`PluginSpec.sections`), by
            name; empty when the plug-in is built without settings, for example by a test.
        part: builds another registered proposer as a part of this one, by name and with its own settings; returns a
            `specplug.steps.proposer_runner.ProposerRunner`, whose drafts are one-hot unless `states=True` and it states
            logits.  See `specplug.composing`.
    """

    caps: EngineCaps
    options: Any = None
    vocab_size: int = 0
    max_slots: int = 1
    max_length: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    seed: int = 0
    target_path: str | None = None
    target_config: Any = None
    target_tokenizer: Any = None
    sections: Mapping[str, Any] = field(default_factory=dict)
    part: Callable[..., Any] = _no_part


class Proposer(abc.ABC):
    """Produces drafts, with or without a model.

    The contract, which `specplug.testing.ProposerContract` tests:

    - `ingest` runs at every step with a draft length above 0, even for rows for which nothing may be drafted, and then
      `propose` runs.  The tokens of other steps arrive with the next call; `ingest` may also be called alone.  Neither
      runs at dummy steps.
    - Per-request state is indexed by slot and becomes invalid when the slot's generation changes.
    - After a preemption, `EngineBatch.tokens` is authoritative.
    - The batch is read-only, and entries of `tokens` at or beyond a row's length are undefined.
    - Drafts depend on a row's own data (and on shared state) but never on its index in the batch, on the rank, or on
      the verifier's random numbers.
    - Unless the proposer declares `needs_host`, it reads nothing back from the device.

    Attributes:
        sources: names of the proposer's sources if it has several (own text, references); `Draft.source` indexes it.
        draft_vocab: [Vd] int64 on the context's device: the distinct ids that tokens are drawn from, in the column
            order of `Draft.draft_logits` or `draft_probs`; None means the whole vocabulary.  The constructor sets it,
            and it never changes.  Tokens with other ids must be marked as not drawn in `Draft.drawn`.
    """

    sources: tuple[str, ...] = ()
    draft_vocab: Tensor | None = None

    def warmup(self) -> None:  # noqa: B027 - optional
        """Compile kernels, allocate memory and load files.  Called once, before serving."""

    def ingest(self, batch: EngineBatch) -> None:  # noqa: B027 - optional
        """Ingest the `num_new` newest tokens of each row."""

    @abc.abstractmethod
    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Write drafts of at most `limits` [B] int32 tokens into `draft`, which arrives empty.

        Write `token_ids`, `lengths`, `confidence` and `source`, and also `parents` and full distributions if the
        proposer declares them.  `draft.base_len` is already set.
        """

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        """Run a real step: call `ingest`, then `propose` if `limits` and `draft` are given.

        Engines call this method.  Override it only if one call is cheaper than two.
        """
        self.ingest(batch)
        if limits is not None and draft is not None:
            self.propose(batch, limits, draft)

    def may_repeat(self) -> bool:
        """Return whether `step` would again launch what it launched last, and nothing else (host).

        The batch would be the same, but without resets.  Engines then make these launches again instead of calling
        `step`, so this counts as a step.  Only launches by `specplug.launching.Launcher` can be made again.
        """
        return False

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:  # noqa: B027 - optional
        """Learn from the verdicts on earlier drafts.

        All arguments are in the row order of `batch`, the batch after verification, whose lengths include the emitted
        tokens.  Tokens that another proposer drafted have source -1.  Called only if the proposer declares `learns`,
        and not while it is switched off or late.
        """

    def on_event(self, event: Event) -> None:  # noqa: B027 - optional
        """Handle a change of state of a request or of the engine (host)."""

    def checksums(self, slots: Tensor) -> dict[str, Tensor]:
        """Return sums, each [] int32, of the memory that drafts depend on, by name; see `types.tensors.checksum`.

        Ranks that each draft compare them.  `slots` [B] int64 are those of a step's rows.  Read nothing back.
        """
        return {}

    def status(self) -> dict[str, Any]:
        """Return what operators see on `/specplug/status`, as JSON-serialisable data; nothing by default.

        Runs between two steps, so it must be quick; exceptions are reported.
        """
        return {}

    def close(self) -> None:  # noqa: B027 - optional
        """Release threads, files and memory."""


class Planner(abc.ABC):
    """The plan half of a policy: maps host figures to the next step's plan.  Shares no memory with the trim half.

    `specplug.testing.PolicyContract` tests the contract of both halves.

    Attributes:
        is_constant: true if `plan` returns the same plan whatever the figures.  Then it need not be called at every
            step, and where it plans no drafts the figures are not even computed.
        reads_requests: false while neither the counts of drafts in `RequestStats` nor `StepReport.runs` are read.  They
            are then not kept, which spares work for each request and step, and are 0 and empty.
    """

    is_constant: bool = False
    reads_requests: bool = True

    @abc.abstractmethod
    def plan(self, stats: HostStats) -> StepPlan:
        """Decide how many tokens the step may draft.  Must not block; `stats` is at least one step old.

        Not called for steps in which the operator allows no drafts.
        """

    def calibrate(self, costs: Sequence[StepCost]) -> None:  # noqa: B027 - optional
        """Learn from costs that the engine profiled before it served, if it profiles any; called at most once (host).

        The profiled steps were dummy runs: trust the ratios of `seconds`, not their scale, as they leave out the host,
        the sampler and the drafter.  Called before the first `observe`; plans may have been made already.
        """

    def observe(self, report: StepReport) -> None:  # noqa: B027 - optional
        """Learn from a finished step; called once per planned step, in order (host)."""

    def status(self) -> dict[str, Any]:
        """Return what operators see of the plans, like `Proposer.status`."""
        return {}

    def longest_draft(self, batch_size: int) -> int | None:
        """Return the most draft tokens per row that a plan for B requests ever has; None, the default, if any number.

        Engines capture CUDA graphs, and allocate memory, for such drafts only.  Called at start-up.
        """
        return None

    @property
    def learns(self) -> bool:
        """True if `observe` should be called: by default, if the class overrides it."""
        return type(self).observe is not Planner.observe


class Trimmer(abc.ABC):
    """The trim half of a policy: cuts a batch's drafts on the device and reads nothing back."""

    @abc.abstractmethod
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        """Return `draft` cut to at most `limits.token_budget` draft tokens over the whole batch.

        The result is a prefix of each chain; in a tree it contains every ancestor of each kept node.  `Draft.keep`
        builds such a draft.  `specplug.steps.trim.admitted` chooses the tokens whose survival exceeds `limits.costs` by
        most.
        """

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:  # noqa: B027 - optional
        """Learn from the verdicts on earlier drafts, without reading anything back.

        Works like `Proposer.observe`, but for the rows of all proposers: `draft` is the trimmed draft, and
        `draft.source` indexes `draft.sources`.
        """

    @property
    def learns(self) -> bool:
        """True if `observe` should be called: by default, if the class overrides it."""
        return type(self).observe is not Trimmer.observe

    def cuts_without_budget(self, batch_size: int, draft_length: int) -> bool:
        """Return whether to trim such a step even if it has no budget or its budget covers all drafts (host).

        Trimmed drafts are verified as one-hot, so return True only where `trim` may cut something.
        """
        return False


class Verifier(abc.ABC):
    """The acceptance algorithm: decides which draft tokens are kept and which token follows them.

    Registration declares the verifier's input and whether it is lossless, see `VerifierCaps`; `assembly.build_verifier`
    converts drafts to that input.  `specplug.testing.VerifierContract` tests the contract.
    """

    @abc.abstractmethod
    def verify(self, draft: Draft, target: TargetLogits, sampling: SamplingBatch, uniforms: Uniforms) -> Verification:
        """Accept a prefix of each row's draft and add one token.

        Args:
            draft: chains, one-hot or with a distribution that the verifier declares.
            target: logits as the engine has processed them, at each draft position and after the last one.
            sampling: temperature, top-k, top-p and min-p per row, which apply to the target first.
            uniforms: the random numbers to use, each at most once.
        """
