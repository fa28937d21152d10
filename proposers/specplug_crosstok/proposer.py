"""CrossTok: the proposer `crosstok`, a draft model whose tokenizer may be another one than the target's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.draft_model.loop import size_for, sizes
from specplug.draft_model.schedule import IdsPerToken, Schedule
from specplug.draft_model.texts import NO_REQUEST
from specplug.interfaces import PluginContext, Proposer
from specplug.types.caps import Distribution
from specplug.types.request import BEGINS, Event, RequestEvent
from specplug.types.step import Draft, EngineBatch, Verdict
from specplug.types.tensors import to_device
from specplug_crosstok.acceptance import SOURCES, status_of
from specplug_crosstok.drawing import GENERATION_BITS
from specplug_crosstok.host_batches import HostBatches
from specplug_crosstok.loading import check_device, device_of, load_model
from specplug_crosstok.options import CrossTokSettings
from specplug_crosstok.step import DraftingStep


class CrossTok(Proposer):
    """Drafts with a smaller model, which has the texts of all requests in tables of its own device.

    With one tokenizer for both models, ids are the same.  With two, the target's tokens are translated one by one, and
    a route leads back from what the model drafts (Timor et al., ICML 2025, arXiv 2502.05202).  Both are lossless:

    - *common ids* (TLI): the model draws from the ids whose text both vocabularies have, and says from which
      distribution, so that sampled tokens are accepted as often as speculative sampling accepts any.
    - *text* (SLEM): the model drafts freely, and its text is written in the target's tokens.  These were not drawn
      from a distribution over the target's vocabulary, so they are verified as one-hot.

    For batches on a GPU the model runs on that one, as CUDA graphs, and nothing is read back.  For batches in host
    memory it runs on any device: new tokens are copied there, drafts are copied back, and a step may end early.
    Batches are in host memory if `on_host`, by default where the context's device is no GPU.

    Raises:
        SettingsError: no model is named, the engine has another device, or a tokenizer cannot be translated.
        PluginError: the model cannot be loaded, or not be captured as a CUDA graph.
    """

    sources = SOURCES

    def __init__(self, context: PluginContext, *, on_host: bool | None = None) -> None:
        options: CrossTokSettings = context.options or CrossTokSettings()
        on_host = context.device.type != "cuda" if on_host is None else on_host
        if not on_host:
            check_device(options.device, context.device)
        device = device_of(options.device) if on_host else context.device
        self.model, self.pair = load_model(context, options, device)
        self._options = options
        self._device = device
        is_exact = on_host and device.type == "cpu"
        self._step = DraftingStep(context, options, self.model, self.pair, is_exact=is_exact)
        self._ids_per_token = IdsPerToken(min(2.0, self._step.mean_length), device)
        self._schedule = Schedule(context.max_slots, self.model.max_texts, self.model.max_length, device)
        self._batches = HostBatches(self.model.max_texts, device) if on_host else None
        self.draft_vocab = self._step.draft_vocab.to(context.device)

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
            self._schedule.begin(event.slot, event.request.prompt_length if self._batches is None else 0)
        else:
            self._schedule.release(event.slot)

    def ingest(self, batch: EngineBatch) -> None:
        """Keep the new tokens of batches in host memory."""
        if self._batches is not None:
            self._batches.keep(batch, self._schedule.rows)
            for slot, num_new in zip(batch.slots.tolist(), batch.num_new.tolist(), strict=True):
                self._schedule.add(slot, num_new)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Draft for the rows that may have drafts and that the model has caught up with."""
        if not self._schedule.num_rows or not batch.batch_size:
            return
        if self._batches is None:
            self._draft(batch, limits, draft, draft.draft_length)
            return
        longest = int(limits.max())
        if longest > 0:
            self._step.drawing.is_greedy = not bool((batch.temperature > 0).any())
            own = self._batches.draft_like(draft)
            self._draft(
                *self._batches.moved(batch, limits, self._schedule.rows), own, longest, self._is_enough(longest)
            )
            if own is not draft:
                draft.copy_(own)

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        """Learn how often the routes' tokens are accepted."""
        num_own = (draft.source >= 0).cumprod(1).sum(1)  # before those of another proposer, as lookup's after them
        tested = torch.minimum(verdict.tested(), num_own)
        columns = [batch.slots.long(), _owners(batch), draft.base_len, tested, verdict.accepted]
        if batch.device != self._device:
            columns = to_device(columns, self._device)
        slots, owners, base_len, tested, accepted = columns
        rows = self._schedule.row_of_slot()[slots]
        sent = self._step.written
        row = rows.clamp(min=0)
        is_mine = (rows >= 0) & (sent.owners[row] == owners) & (sent.base_len[row] == base_len)
        self._step.learn(sent.kinds[row], sent.probabilities[row], torch.where(is_mine, tested, 0), accepted)
        if self._step.is_text and self._batches is None:
            newest = torch.arange(draft.draft_length + 1, device=self._device)
            is_new = newest < verdict.emitted[:, None]
            at = (batch.lengths[:, None] - 1 - newest).clamp(min=0)
            num_ids = self._step.texts.ids_of(batch.tokens[batch.rows[:, None], at].long())
            self._ids_per_token.learn(torch.where(is_new, num_ids, 0).sum(), is_new.sum())

    def status(self) -> dict[str, Any]:
        """Return the pair, and what its drafts were worth; waits for the device."""
        return status_of(self.model, self.pair, self._step.acceptance)

    def _draft(
        self,
        batch: EngineBatch,
        limits: Tensor,
        draft: Draft,
        num_tokens: int,
        is_enough: Callable[[int], bool] | None = None,
    ) -> None:
        """Draft at most `num_tokens` for each row of a batch that is on the model's device, but for its token table."""
        step = self._step
        num_rows = self._step.loop.num_rows(self._schedule.num_rows)
        at = _At.of(batch, self._schedule.row_of_slot(), num_rows)
        entries = batch.rows[at.place.to(batch.rows.device)].long()
        self._give(at, batch, limits, states=draft.distribution is not Distribution.ONE_HOT)
        step.loop.begin(step, num_rows)
        self._catch_up(batch, entries)
        rows = slice(num_rows)
        step.inputs.tokens[rows] = step.texts.newest(batch.tokens, entries, rows, step.num_tokens)
        self._schedule.grow(step.texts.growth(step.num_tokens))
        num_ids = min(self._num_ids(num_tokens), step.num_drafted)
        step.loop.run(step, num_rows, num_ids, self._schedule.longest + num_ids, is_enough)
        step.written.write(draft, at.rows, step.drawing.logits)
        self._schedule.end(step.figures[:, rows])

    def _num_ids(self, num_tokens: int) -> int:
        """Return how many ids to draft for so many tokens; a text for one more, because its last token may go on.

        For batches in host memory that is as many as `_is_enough` may ask for.
        """
        if not self._step.is_text:
            return num_tokens
        if self._batches is not None:
            return 2 * num_tokens
        return math.ceil((num_tokens + 1) * self._ids_per_token.value)

    def _is_enough(self, num_tokens: int) -> Callable[[int], bool]:
        """Return what ends the drafts of a step that begins now: that no row drafts, enough ids, or the settings."""
        min_survival = self._options.min_survival
        max_ms = self._options.max_ms
        ends = math.inf if max_ms is None else time.monotonic() + max_ms / 1000
        num_rows = self._schedule.num_rows

        def is_enough(num_ids: int) -> bool:
            survival = self._step.survival(num_rows)  # waits for the device
            needed = num_tokens * max(1.0, self._step.ids_per_token(num_rows))
            return survival <= 0 or survival < min_survival or num_ids >= needed or time.monotonic() > ends

        return is_enough

    def _give(self, at: _At, batch: EngineBatch, limits: Tensor, *, states: bool) -> None:
        """Set the step's inputs."""
        inputs = self._step.inputs
        rows = slice(at.num_rows)
        temperature = at.of_rows(batch.temperature)
        inputs.running.owners[rows] = torch.where(at.is_running, _owners(batch)[at.place], NO_REQUEST)
        inputs.running.lengths[rows] = at.of_rows(batch.lengths)
        inputs.running.starts[rows] = at.of_rows(_text_starts(batch))
        inputs.limits[rows] = at.of_rows(limits)
        inputs.temperature[rows] = temperature
        self._step.drawing.temperature[rows] = temperature * states

    def _catch_up(self, batch: EngineBatch, entries: Tensor) -> None:
        """Compute texts that are many tokens behind, such as prompts, up to the chunk of a step."""
        chunk = self._options.prefill_chunk
        texts = self._step.texts
        at_once = min(self._step.num_missing // 2, self._step.num_tokens)
        for row, count in self._schedule.to_catch_up(chunk, at_once):
            rows = slice(row, row + 1)
            num_tokens = size_for(count, sizes(chunk, 16))
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
