"""The interfaces that plug-ins implement: Proposer, Planner and Trimmer (the two halves of a policy), Verifier.

One engine step is plan -> propose -> trim -> verify -> observe.  The calls are separate because engines make them in
different places: on vLLM the plan is made in the scheduler's process, everything else in each worker, and a draft of
one step is verified in the next.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.types.batch import BatchView
from specplug.types.caps import EngineCaps
from specplug.types.draft import Draft
from specplug.types.plan import HostStats, StepPlan, StepReport
from specplug.types.request import Event
from specplug.types.trim import TrimLimits
from specplug.types.verdict import Verdict
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification


@dataclass(frozen=True, slots=True, eq=False)
class TargetModel:
    """The model that drafts are verified by, as far as the adapter knows it; what it does not know is None.

    Attributes:
        path: the directory or the repository id that the engine loaded it from.
        config: its Hugging Face configuration; of a model with several parts the whole one, so that a language model's
            own figures come from `config.get_text_config()`.
        tokenizer: its tokenizer, with the interface of Hugging Face's.
        input_embeddings: [V, D], the weights themselves, where the process that drafts holds all of them on the
            device of the batches when proposers are built.  Never write to them.
    """

    path: str | None = None
    config: Any = None
    tokenizer: Any = None
    input_embeddings: Tensor | None = None


def _no_part(name: str) -> Any:
    raise ContractError.build(
        f"proposer {name!r} cannot be built as a part here",
        who="PluginContext",
        expected="a proposer's context from a server or from specplug.testing",
    )


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What a plug-in is built with; the same for every kind.

    Attributes:
        caps: what the engine can do.
        options: the plug-in's own settings, an instance of the model that it registered; None without one.
        vocab_size: ids lie in [0, vocab_size).
        max_slots: S, the most requests at a time.
        max_length: L, the longest context.
        device: where the batch's tensors lie (for `needs_host` proposers: the CPU).
        rank: tensor-parallel rank.  Drafts must not depend on it.
        seed: for the plug-in's own random stream.  A draft must be independent of the verifier's random numbers, so
            never derive one from a request's seed or from positions.
        target: the target model.
        sections: sections of the server's settings by name, those that the plug-in registered for
            (`PluginSpec.sections`); none where it is built without settings, as by a test.
        part: builds another registered proposer, by name and with its own settings, as a part of this one; returns a
            `specplug.pipeline.runner.ProposerRunner`.  See `specplug.composing`.
    """

    caps: EngineCaps
    options: Any = None
    vocab_size: int = 0
    max_slots: int = 1
    max_length: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    seed: int = 0
    target: TargetModel = field(default_factory=TargetModel)
    sections: Mapping[str, Any] = field(default_factory=dict)
    part: Callable[[str], Any] = _no_part


class Proposer(abc.ABC):
    """Produces drafts, with or without a model.

    The contract, held by `specplug.testing.ProposerContract`:

    - `ingest` runs at every real step, also when nothing may be drafted; `propose` only when the width is above 0.
      Neither runs at dummy steps.
    - Per-request state is kept by slot and is void when the slot's generation changes.
    - After a preemption the truth is what `BatchView.tokens` says.
    - The batch is read-only, and entries of `tokens` at or beyond a row's length are undefined.
    - Drafts depend on a row's own data (and on shared state) but never on its place in the batch, on the rank, or on
      the verifier's random numbers.
    - Unless the proposer declares `needs_host`, nothing is read back from the device.

    Attributes:
        sources: names of what drafts, if there are several (own text, references); `Draft.source` points into it.
        draft_vocab: [Vd] int64 on the context's device, distinct, the ids that tokens are drawn from, in the order of
            the columns of `Draft.draft_logits` or `draft_probs`; None: the whole vocabulary.  Set by the
            constructor, and never changed.  Tokens of other ids must be marked as not drawn in `Draft.drawn`.
    """

    sources: tuple[str, ...] = ()
    draft_vocab: Tensor | None = None

    def warmup(self) -> None:  # noqa: B027 - optional
        """Compile, allocate, load: called once, before serving."""

    def ingest(self, batch: BatchView) -> None:  # noqa: B027 - optional
        """Take in the `num_new` newest tokens of each row."""

    @abc.abstractmethod
    def propose(self, batch: BatchView, limits: Tensor, draft: Draft) -> None:
        """Write drafts of at most `limits` [B] int32 tokens into `draft`, which arrives empty.

        Write `token_ids`, `lengths`, `confidence` and `source`; `parents` and full distributions where declared.
        `draft.base_len` is set already.
        """

    def step(self, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
        """Take a real step: `ingest`, and `propose` where there are `limits` and a `draft`.

        This is what engines call.  Override it only where the two are cheaper together.
        """
        self.ingest(batch)
        if limits is not None and draft is not None:
            self.propose(batch, limits, draft)

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:  # noqa: B027 - optional
        """Learn what became of earlier drafts.  All arguments are in the row order of `batch`, the batch after the
        verification, whose lengths include the tokens emitted.  Tokens that another proposer drafted have source -1.
        Called only when `learns` is declared, and not while the proposer is switched off or late."""

    def on_event(self, event: Event) -> None:  # noqa: B027 - optional
        """Take note of a request's or the engine's change of state (host)."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release threads, files and memory."""


@runtime_checkable
class HoldsCorpora(Protocol):
    """What a proposer implements besides if operators may hand it texts to draft from, while it serves.

    One call at a time changes what is held.  `add_corpus` runs on a thread of the engine's beside the steps, which must
    find the old corpora or the new one whole, so build aside and put in place last.  The others run between two steps,
    so they are to be quick; `list_corpora` may come while a corpus is being added, which does not count yet.  What they
    raise is told to the operator and costs nothing else.

    With an attribute `shares_corpora` that is true, corpora lie where other processes look, too: then one of a server's
    proposers, in one of its engines, is asked to change them, and the others are to find that by themselves.
    """

    def add_corpus(self, name: str, documents: Sequence[npt.NDArray[np.int32]]) -> int:
        """Take in a corpus, and return how many tokens were taken in.

        Args:
            name: not held yet.
            documents: one text each, [n] int32 with n >= 1, read-only; nothing follows the last token of one.

        Raises:
            Exception: it cannot be taken in; then nothing of it is held.
        """
        ...

    def remove_corpus(self, name: str) -> None:
        """Forget a corpus that is held."""
        ...

    def list_corpora(self) -> dict[str, int]:
        """Return how many tokens each corpus has, by name."""
        ...


@runtime_checkable
class ReportsStatus(Protocol):
    """What a proposer implements besides if it has something to tell operators, on `/specplug/status`."""

    def status(self) -> dict[str, Any]:
        """Return plain data, as JSON has it; called between two steps, so to be quick.  What it raises is told."""
        ...


class Planner(abc.ABC):
    """The plan half of a policy: host figures in, the next step's width out.  Shares no memory with the trim half.

    The contract of both halves is held by `specplug.testing.PolicyContract`.
    """

    @abc.abstractmethod
    def plan(self, stats: HostStats) -> StepPlan:
        """Decide how wide the step may speculate.  Must not block, and sees figures at least one step old."""

    def observe(self, report: StepReport) -> None:  # noqa: B027 - optional
        """Learn what became of a finished step, once per step that was planned and in their order (host)."""

    @property
    def learns(self) -> bool:
        """Whether `observe` is to be called: by default, whether the class overrides it."""
        return type(self).observe is not Planner.observe


class Trimmer(abc.ABC):
    """The trim half of a policy: cuts a batch's drafts on the device, without reading back."""

    @abc.abstractmethod
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        """Return `draft` cut to at most `limits.token_budget` draft tokens over the whole batch.

        What is kept is a prefix of each chain and holds, of a tree, every kept node's ancestors; `Draft.keep` makes
        such a draft.  A higher `limits.price` never keeps more.
        """

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:  # noqa: B027 - optional
        """Learn what became of earlier drafts, without reading back.

        As `Proposer.observe`, for the rows of all proposers: `draft` is what `trim` let through, and `draft.source`
        points into `draft.sources`.
        """

    @property
    def learns(self) -> bool:
        """Whether `observe` is to be called: by default, whether the class overrides it."""
        return type(self).observe is not Trimmer.observe

    def cuts_without_budget(self, batch_size: int, draft_length: int) -> bool:
        """Return whether to trim such a step though its budget, if it has one, holds all drafts (host).

        What is trimmed is verified as one-hot, so answer true only where something may be cut.
        """
        return False


class Verifier(abc.ABC):
    """The acceptance algorithm: decides which draft tokens are kept and what follows them.

    What it takes and whether it is lossless is declared at registration, see `VerifierCaps`; `assembly.build_verifier`
    makes drafts fit.  The contract is held by `specplug.testing.VerifierContract`.
    """

    @abc.abstractmethod
    def verify(self, draft: Draft, target: TargetLogits, sampling: SamplingBatch, uniforms: Uniforms) -> Verification:
        """Accept a prefix of each row's draft and add one token.

        Args:
            draft: chains, one-hot or with a distribution that the verifier declares.
            target: logits as the engine has processed them, at each draft position and behind the last one.
            sampling: temperature, top-k, top-p, min-p per row, applied to the target first.
            uniforms: the random numbers to use; each at most once.
        """


__all__ = [
    "HoldsCorpora",
    "Planner",
    "PluginContext",
    "Proposer",
    "ReportsStatus",
    "TargetModel",
    "Trimmer",
    "Verifier",
]
