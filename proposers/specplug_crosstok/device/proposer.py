"""DeviceCrossTok: the proposer `crosstok` for batches on a GPU."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.draft_model.device.loop import NUM_MISSING, size_for, sizes
from specplug.draft_model.device.schedule import IdsPerToken, Schedule
from specplug.draft_model.device.texts import NO_REQUEST
from specplug.interfaces import PluginContext, Proposer
from specplug.types.batch import EngineBatch
from specplug.types.caps import Distribution
from specplug.types.draft import Draft
from specplug.types.request import BEGINS, Event, RequestEvent
from specplug.types.tensors import to_device
from specplug.types.verdict import Verdict
from specplug_crosstok.device.step import DeviceStep
from specplug_crosstok.drawing import GENERATION_BITS
from specplug_crosstok.kinds import status_of
from specplug_crosstok.loading import check_device, load_model
from specplug_crosstok.options import CrossTokSettings
from specplug_crosstok.writing import SOURCES


class DeviceCrossTok(Proposer):
    """Drafts like `CrossTok`, on the engine's device, and reads nothing back.

    Texts are translated token by token, by tables, and drafted text becomes the target's tokens by their longest
    match.  The draft model runs as CUDA graphs.

    Raises:
        SettingsError: no model is named, another device is, or one of the tokenizers cannot be translated.
        PluginError: the model cannot be loaded, or not be captured as a CUDA graph.
    """

    sources = SOURCES

    def __init__(self, context: PluginContext) -> None:
        options: CrossTokSettings = context.options or CrossTokSettings()
        check_device(options.device, context.device)
        self.model, self.pair = load_model(context, options, context.device)
        self._options, self._device = options, context.device
        self._step = DeviceStep(context, options, self.model, self.pair)
        self._ids_per_token = IdsPerToken(min(2.0, self._step.mean_length), context.device)
        self._schedule = Schedule(context.max_slots, self.model.max_texts, self.model.max_length, context.device)
        self.draft_vocab = self._step.draft_vocab

    def warmup(self) -> None:
        """Allocate the model's caches, and capture the graphs."""
        self.model.warm_up()
        with torch.inference_mode():
            self._step.loop.capture(self._step)

    def on_event(self, event: Event) -> None:
        """Give a request a row of the model's cache, or take it back."""
        if not isinstance(event, RequestEvent):
            return
        if event.kind in BEGINS:
            self._schedule.begin(event.slot, event.request.prompt_length)
        else:
            self._schedule.release(event.slot)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Draft for the rows that may have drafts and that the model has caught up with."""
        if not self._schedule.num_rows or not batch.batch_size:
            return
        at = _At.of(batch, self._schedule.row_of_slot(), self._num_rows())
        step, entries = self._step, batch.rows[at.place].long()
        self._give(at, batch, limits, states=draft.distribution is not Distribution.ONE_HOT)
        step.loop.begin(step, at.num_rows)
        self._catch_up(batch, entries)
        rows = slice(at.num_rows)
        step.inputs.tokens[rows] = step.texts.newest(batch.tokens, entries, rows, step.num_tokens)
        self._schedule.grow(step.texts.growth(step.num_tokens))
        num_ids = self._num_ids(draft.draft_length)
        step.loop.run(step, at.num_rows, num_ids, self._schedule.longest + num_ids)
        step.written.write(draft, at.rows, step.drawing.logits)
        self._schedule.end(step.figures)

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        """Learn how often the routes' tokens are accepted, and how many ids a token has."""
        rows = self._schedule.row_of_slot()[batch.slots.long()]
        row, sent = rows.clamp(min=0), self._step.written
        is_mine = (rows >= 0) & (sent.owners[row] == _owners(batch)) & (sent.base_len[row] == draft.base_len)
        tested = torch.where(is_mine, verdict.tested(), 0)
        self._step.learn(sent.kinds[row], sent.probabilities[row], tested, verdict.accepted)
        if self._step.is_text:
            newest = torch.arange(draft.draft_length + 1, device=self._device)
            is_new = newest < verdict.emitted[:, None]
            at = (batch.lengths[:, None] - 1 - newest).clamp(min=0)
            num_ids = self._step.texts.num_ids(batch.tokens[batch.rows[:, None], at].long())
            self._ids_per_token.learn(torch.where(is_new, num_ids, 0).sum(), is_new.sum())

    def status(self) -> dict[str, Any]:
        """Return the pair, and what its drafts were worth; waits for the device."""
        return status_of(self.model, self.pair, self._step.acceptance.counts())

    def _num_rows(self) -> int:
        return size_for(self._schedule.num_rows, sizes(self.model.max_texts, 1))

    def _num_ids(self, num_tokens: int) -> int:
        """Return how many ids to draft for so many tokens; a text for one more, because its last token may go on."""
        return math.ceil((num_tokens + 1) * self._ids_per_token.value) if self._step.is_text else num_tokens

    def _give(self, at: _At, batch: EngineBatch, limits: Tensor, *, states: bool) -> None:
        """Set the step's inputs."""
        inputs, rows = self._step.inputs, slice(at.num_rows)
        heat = at.of_rows(batch.temperature)
        inputs.running.owners[rows] = torch.where(at.is_running, _owners(batch)[at.place], NO_REQUEST)
        inputs.running.lengths[rows] = at.of_rows(batch.lengths)
        inputs.running.starts[rows] = at.of_rows(_text_starts(batch))
        inputs.limits[rows] = at.of_rows(limits)
        inputs.temperature[rows] = heat
        self._step.drawing.temperature[rows] = heat * states

    def _catch_up(self, batch: EngineBatch, entries: Tensor) -> None:
        """Compute texts that are many tokens behind, such as prompts, up to the chunk of a step."""
        chunk, texts = self._options.prefill_chunk, self._step.texts
        for row, count in self._schedule.to_catch_up(chunk, NUM_MISSING):
            rows, num_tokens = slice(row, row + 1), size_for(count, sizes(chunk, 16))
            self._schedule.grow(texts.growth(num_tokens))
            texts.extend(self._step.inputs.running, rows, texts.newest(batch.tokens, entries[rows], rows, num_tokens))
            texts.rejoin(rows)
            missing = texts.missing(rows, texts.growth(num_tokens), keep=1)
            self.model.forward(*missing, first=row, longest=self._schedule.longest)
            self._schedule.caught_up(row, count)


class _At(NamedTuple):
    """The batch's B requests, and R rows of the model's cache.

    Attributes:
        rows: [B] int64, the row of each request; negative if it has none.
        place: [R] int64, the request in each row, 0 if there is none.
        is_running: [R] bool, whether there is one.
    """

    rows: Tensor
    place: Tensor
    is_running: Tensor

    @classmethod
    def of(cls, batch: EngineBatch, row_of_slot: Tensor, num_rows: int) -> _At:
        """Find the rows of a batch."""
        rows = row_of_slot[batch.slots.long()]
        place = torch.full((num_rows + 1,), -1, dtype=torch.int64, device=rows.device)
        requests = torch.arange(len(rows), device=rows.device)
        place = place.scatter_(0, torch.where(rows >= 0, rows, num_rows), requests)[:num_rows]
        return cls(rows, place.clamp(min=0), place >= 0)

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.place)

    def of_rows(self, column: Tensor) -> Tensor:
        """Return a column [B] of the batch by row, [R], 0 where no request is."""
        return torch.where(self.is_running, column[self.place], 0)


def _owners(batch: EngineBatch) -> Tensor:
    """Return [B] int64, a number for each slot and generation."""
    return (batch.slots.long() << GENERATION_BITS) | batch.generations


def _text_starts(batch: EngineBatch) -> Tensor:
    """Return [B], the position after each row's last barrier."""
    if not batch.barriers:
        return torch.zeros_like(batch.slots)
    starts = [0] * batch.batch_size
    for barrier in batch.barriers:
        starts[barrier.row] = max(barrier.stop, starts[barrier.row])
    (found,) = to_device([torch.tensor(starts)], batch.device)
    return found
