"""What takes V2's steps: kernels, or the draft stage itself; and the logits of its drafts in the engine's buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.steps.device_step import DraftOutputs, EngineTensors
from specplug.steps.device_steps import DeviceSteps, launches_for
from specplug.steps.draft_report import NO_DRAFTS
from specplug.steps.rows import Rows
from specplug.types.step import Draft, StepPlan
from specplug_vllm.worker.drafting import Drafting


def device_steps(drafting: Drafting, like: tuple[EngineTensors, DraftOutputs, Tensor]) -> DeviceSteps | None:
    """Return what takes all steps by kernels, if that applies; `like` has the types that `take` receives."""
    launches = launches_for(drafting.device)
    if launches is None or not DeviceSteps.applies(drafting.stage):
        return None
    return DeviceSteps(drafting.stage, drafting.slots, drafting.stops, drafting.vocab_size, launches, like=like)


class StageSteps:
    """Takes the steps of V2 that `DeviceSteps` does not apply to, and is the plain reference of the others.

    Args:
        drafting: on a rank that drafts.
    """

    report = NO_DRAFTS
    may_report = False

    def __init__(self, drafting: Drafting) -> None:
        self._drafting = drafting

    def engine_tokens(self) -> int:
        """Return how many tokens vLLM's own drafter should draft in the next step: all."""
        return self._drafting.stage.engine_tokens

    def take(
        self,
        rows: Rows,
        engine: EngineTensors,
        outputs: DraftOutputs,
        last_sampled: Tensor,
        temperature: Tensor,
        plan: StepPlan,
        *,
        reports_expected: bool,
    ) -> Draft:
        """Report the verified step of a batch, and draft for its next one; see `DeviceSteps.take`.

        The plan is `Drafting.plan`, and nothing is reported of the drafts.
        """
        outputs.ids.copy_(last_sampled.view(-1)[engine.idx_mapping][:, None].expand_as(outputs.ids))
        for tensor in (outputs.confidence, outputs.from_engine):
            if tensor is not None:
                tensor.zero_()
        if not rows.names:
            return NO_ROWS
        kept = None if rows.kept is None else rows.order
        engine = engine.keep(kept)
        draft = self._drafting.take(rows, engine, temperature[engine.idx_mapping])
        _write(draft, outputs, kept)
        return draft


NO_ROWS = Draft.of_rows([], [], 0)


def _write(draft: Draft, outputs: DraftOutputs, kept: Tensor | None) -> None:
    """Write ids, confidences, and the numbers of the engine's own tokens, of the rows `kept`; of all if it is None."""
    length = draft.draft_length
    rows = slice(None) if kept is None else kept
    assert outputs.confidence is not None
    outputs.ids[rows, :length] = torch.where(draft.mask(), draft.token_ids.long(), outputs.ids[rows, :length])
    outputs.confidence[rows, :length] = draft.confidence
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
