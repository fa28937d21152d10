"""V2's steps on the engine's device: by `DeviceSteps` where that applies, elsewhere by the draft stage itself."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.steps.device_steps import DeviceSteps
from specplug.steps.draft_report import NO_DRAFTS, DraftReport
from specplug.steps.engine_rows import DraftOutputs, EngineRows
from specplug.steps.kernels.columns import launches_for
from specplug.steps.rows import Rows
from specplug.types.step import Draft
from specplug_vllm.worker.drafting import Drafting, kept_of


class DeviceDrafting:
    """Steps of a draft stage on the engine's device.

    Args:
        drafting: on a rank that drafts.
        logits: the engine's buffer for the logits that sampled drafts were drawn from; None if no proposer states them.
        like: rows, outputs and newest tokens of the types that `take` receives.

    Attributes:
        steps: takes all steps if it is not None.
        may_report: whether steps can report what their drafts are expected to yield.
    """

    def __init__(
        self, drafting: Drafting, logits: Tensor | None, like: tuple[EngineRows, DraftOutputs, Tensor]
    ) -> None:
        self._drafting = drafting
        self._logits = logits
        self._kept: tuple[Rows, Tensor | None] | None = None
        self.steps: DeviceSteps | None = None
        launches = launches_for(drafting.device)
        if launches is not None and DeviceSteps.applies(drafting.stage):
            state = drafting.stage, drafting.slots, drafting.stops
            self.steps = DeviceSteps(*state, drafting.vocab_size, launches, like=like)
        self.may_report = self.steps is not None and self.steps.may_report

    def engine_tokens(self) -> int:
        """Return how many tokens vLLM's own drafter should draft in the next step; see `DeviceSteps`."""
        return self._drafting.stage.engine_tokens if self.steps is None else self.steps.engine_tokens()

    def take(
        self,
        facts: Rows,
        engine: EngineRows,
        outputs: DraftOutputs,
        last_sampled: Tensor,
        temperature: Tensor,
        *,
        reports: bool,
    ) -> DraftReport:
        """Report the verified step of a batch, and draft for its next one; return a report of these drafts.

        Args:
            facts: the rows that may draft; pass the same object while the same requests hold the same slots.
            engine: the engine's rows.
            outputs: where ids, confidences, and the numbers of the engine's own tokens go, [B, K].
            last_sampled: [S, 1] int64, each slot's newest token, which pads its draft.
            temperature: [S] float32, by slot.
            reports: whether to report what the drafts are expected to yield, if the step `may_report`.
        """
        kept = self._kept_of(facts)
        report = NO_DRAFTS
        if self.steps is not None:
            plan = self._drafting.plan
            draft = self.steps.take(facts, engine, outputs, last_sampled, temperature, plan, reports_expected=reports)
            report = self.steps.report
        else:
            outputs.ids.copy_(last_sampled.view(-1)[engine.idx_mapping][:, None].expand_as(outputs.ids))
            for tensor in (outputs.confidence, outputs.from_engine):
                if tensor is not None:
                    tensor.zero_()
        if not facts.names or (self.steps is not None and self._logits is None):
            return report
        engine = kept_of(engine, kept)
        slots = engine.idx_mapping
        padded = outputs.ids if kept is None else outputs.ids[kept]
        if self.steps is None:
            draft = self._drafting.step(*self._drafting.verified(facts, engine, slots, temperature[slots]))
            _write(draft, outputs, padded, kept)
        if self._logits is not None:
            write_logits(self._logits, slots.long(), draft, temperature[slots], padded)
        return report

    def _kept_of(self, facts: Rows) -> Tensor | None:
        """Return the indices of the rows that may draft; None if all may."""
        if self._kept is None or self._kept[0] is not facts:
            self._kept = facts, None if facts.kept is None else self._drafting.on_device(facts.kept)
        return self._kept[1]


def _write(draft: Draft, outputs: DraftOutputs, padded: Tensor, kept: Tensor | None) -> None:
    """Write ids, also to `padded`, the ids of the rows `kept`, confidences, and numbers of the engine's own tokens."""
    length = draft.draft_length
    confidence = outputs.confidence
    rows = slice(None) if kept is None else kept
    assert confidence is not None
    padded[:, :length] = torch.where(draft.mask(), draft.token_ids.long(), padded[:, :length])
    if kept is not None:
        outputs.ids[kept] = padded
    confidence[rows, :length] = draft.confidence
    if outputs.from_engine is not None:
        is_first = (draft.source == len(draft.sources) - 1).cumprod(1)
        outputs.from_engine[rows] = is_first.sum(1, dtype=torch.int32)


UNLIKELY = -1e4
"""Logit of every other token where a draft token is certain.  Finite, because vLLM subtracts logits."""


def write_logits(buffer: Tensor, slots: Tensor, draft: Draft, temperature: Tensor, token_ids: Tensor) -> None:
    """Write the logits of B rows: the proposer's own, or one-hot at any temperature for padding and one-hot drafts.

    Overwrites `draft.draft_logits`, which nothing reads afterwards.

    Args:
        buffer: [S, K, V] float32, by slot.
        slots: [B] int64, distinct.
        draft: at most K tokens per row; its logits may cover a draft vocabulary.
        temperature: [B] float32.
        token_ids: [B, K] int64, the padded drafts.
    """
    floor = (UNLIKELY * temperature.clamp(min=1.0))[:, None, None]
    stated = draft.draft_logits
    draft_length = 0
    is_stated = torch.zeros(token_ids.shape, dtype=torch.bool, device=buffer.device)
    if stated is not None:
        draft_length = draft.draft_length
        is_stated[:, :draft_length] = draft.mask() if draft.drawn is None else draft.mask() & draft.drawn
        torch.maximum(stated, floor, out=stated)
        torch.where(is_stated[:, :draft_length, None], stated, floor, out=stated)
    whole = draft_length if draft.draft_vocab is None else 0  # positions with logits for the full vocabulary
    rest = (len(slots), buffer.shape[1] - whole, buffer.shape[2])
    buffer[:, whole:].index_copy_(0, slots, floor.expand(rest))
    positions = torch.arange(buffer.shape[1], device=buffer.device)
    if stated is not None and draft.draft_vocab is None:
        buffer[:, :draft_length].index_copy_(0, slots, stated)
    elif stated is not None:
        buffer[slots[:, None, None], positions[:draft_length, None], draft.draft_vocab] = stated
    at_tokens = (slots[:, None], positions, token_ids)
    buffer[at_tokens] = torch.where(is_stated, buffer[at_tokens], 0.0)
