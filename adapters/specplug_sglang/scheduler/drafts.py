"""Drafts: how rank 0 drafts for batches that decode; `stage_drafts` and `stream_drafts` implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.grammar.drafts import Completed
from specplug.pipeline.draft import DraftStage
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from specplug_sglang.scheduler.counts import Counts
from specplug_sglang.scheduler.grammar import Grammars
from specplug_sglang.scheduler.rows import Rows


class Decoding(NamedTuple):
    """A batch of B requests that decodes.

    Attributes:
        reqs: the requests.
        rows: their rows, kept from step to step.
        slots: [B] int64, their rows in SGLang's request pool.
        before: [B] int64, cached tokens of each, which lack the newest.
    """

    reqs: Sequence[Any]
    rows: Rows
    slots: Tensor
    before: Tensor


class Drafts(ABC):
    """Drafts of one draft stage.

    Attributes:
        stage: the draft stage.
        grammars: completes the drafts.
        counts: its counters, for the status.
        completed: what grammars have made of the newest verified drafts; None if they are counted already.
        late: the requests that could not draft in the newest step, to be read once that has ended.
    """

    stage: DraftStage
    grammars: Grammars
    counts: Counts
    completed: Completed | None = None
    late: Iterable[str] = ()

    @abstractmethod
    def propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        """Draft, cut the drafts to the plan's budget and complete them by their grammars.

        Args:
            batch: the batch.
            draft_length: the most draft tokens of a row, above 0.
            plan: the step's plan.

        Returns:
            Drafts of as many tokens, or on a CPU of the least number that the engine captured and that holds them all.
            None if nothing is drafted.
        """

    @abstractmethod
    def observe(self, batch: Decoding, draft: Draft, accept_lens: Tensor) -> None:
        """Report a step that verified drafts; the token table has its tokens already.

        Args:
            batch: as it was before the step.
            draft: the verified drafts.
            accept_lens: [B], emitted tokens.
        """

    def idle(self, batch: Decoding) -> None:  # noqa: B027 - optional
        """Prepare for a step that does not draft."""

    def emits_one(self) -> None:  # noqa: B027 - optional
        """Note that a step was launched, of a prefill or without drafts, whose rows emit one token each."""

    def flush(self) -> None:  # noqa: B027 - optional
        """Report the newest verified step now, because a request leaves its slot."""

    def count_grammars(self, completed: Completed, lengths: Tensor, accepted: Sequence[int]) -> None:  # noqa: B027 - optional
        """Count the tokens that grammars added to a step's drafts, once its results are on the host.

        Args:
            completed: what grammars had made of the drafts.
            lengths: [B] int32, tokens of the verified drafts.
            accepted: by row, how many of them were accepted.
        """

    def close(self) -> None:
        """Release proposers, threads and files."""
        self.stage.close()


def caps_of(plan: StepPlan, reqs: Sequence[Any]) -> list[int] | None:
    """Return the most draft tokens of each row; None if no row is capped."""
    return [plan.draft_length_for(req.rid) for req in reqs] if plan.caps else None


def module_of(device: torch.device) -> Any:
    """Return PyTorch's module of a device with queued execution; None if the device has no queue."""
    return None if device.type in ("cpu", "meta") else torch.get_device_module(device)
