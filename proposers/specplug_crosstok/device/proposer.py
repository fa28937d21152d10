"""DeviceCrossTok: the proposer `crosstok` for batches on a GPU."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.draft_model.device.loop import NUM_MISSING, DraftLoop, size_for, sizes
from specplug.draft_model.device.schedule import IdsPerToken, Schedule
from specplug.draft_model.device.segments import Segmenter, Segments
from specplug.draft_model.device.texts import NOBODY, DeviceTexts, Missing, Running
from specplug.draft_model.model import DraftModel
from specplug.draft_model.pairing import Pair
from specplug.interfaces import PluginContext, Proposer
from specplug.text.translate.tables import Ragged, expansions
from specplug.types.batch import BatchView
from specplug.types.caps import Distribution
from specplug.types.draft import Draft
from specplug.types.request import BEGINS, Event, RequestEvent
from specplug.types.transfer import to_device
from specplug.types.verdict import Verdict
from specplug_crosstok.device.acceptance import DeviceAcceptance
from specplug_crosstok.device.drawing import DeviceDrawing
from specplug_crosstok.device.written import Sent, Written
from specplug_crosstok.drawing import Common
from specplug_crosstok.kinds import DRAWN, NUM_KINDS, TEXTS, status_of
from specplug_crosstok.opening import common_ids, open_model
from specplug_crosstok.options import CrossTokSettings
from specplug_crosstok.writing import SOURCES

_GENERATION_BITS = 24


class DeviceCrossTok(Proposer):
    """Drafts like `CrossTok`, on the engine's device, and reads nothing back.

    Texts are translated token by token, by tables, and drafted text becomes the target's tokens by their longest
    match.  The draft model runs as CUDA graphs.

    Raises:
        SettingsError: no model is named, or one of the tokenizers cannot be translated.
        PluginError: the model cannot be loaded, or not be captured as a CUDA graph.
    """

    sources = SOURCES

    def __init__(self, context: PluginContext) -> None:
        options: CrossTokSettings = context.options or CrossTokSettings()
        self.model, self.pair = open_model(context, options, context.device)
        self._options, self._device = options, context.device
        max_rows, most, pair = self.model.max_texts, context.caps.max_draft_length, self.pair
        is_text = pair.translator is not None and options.route != "tli"
        table = _table(pair)
        self._ids_per_token = IdsPerToken(min(2.0, table.usual_length), context.device) if is_text else None
        self._num_drafted = 2 * (most + 1) if is_text else most
        self.schedule = Schedule(context.max_slots, max_rows, self.model.max_length, context.device)
        self._texts = _texts(table, pair, self.model, self._num_drafted)
        self.acceptance = DeviceAcceptance(NUM_KINDS, context.device)
        to_target, common = common_ids(pair, self.model.vocab_size, context.vocab_size)
        self._to_target = torch.from_numpy(to_target).long().to(context.device)
        ids, is_used = common.to(context.device), torch.zeros(self.model.vocab_size, dtype=torch.bool)
        is_used[common] = True
        self._common = Common(ids, is_used.to(context.device), self._confidence().float())
        self.draft_vocab = self._to_target[ids]
        self._drawing = DeviceDrawing(
            self._common,
            is_restricted=not is_text,
            max_rows=max_rows,
            num_drafted=self._num_drafted,
            states=context.caps.draft_input is not Distribution.ONE_HOT and options.route != "slem",
            seed=context.seed,
        )
        self._loop = DraftLoop(self.model, self._drawing.choose, self._num_drafted)
        self._segmenter = None
        if pair.translator is not None:
            self._segmenter = Segmenter(pair, self._to_target, context.vocab_size, self._num_drafted)
        self._width = 2 * (most + 1)
        self._sent = Sent.allocate(max_rows, most, context.device)

    def warmup(self) -> None:
        """Allocate the model's caches, and capture the graphs."""
        self.model.warm_up()
        with torch.inference_mode():
            self._loop.capture()

    def on_event(self, event: Event) -> None:
        """Give a request a row of the model's cache, or take it back."""
        if not isinstance(event, RequestEvent):
            return
        if event.kind in BEGINS:
            self.schedule.begin(event.slot, event.request.prompt_length)
        else:
            self.schedule.release(event.slot)

    def propose(self, batch: BatchView, limits: Tensor, draft: Draft) -> None:
        """Draft for the rows that may have drafts and that the model has caught up with."""
        if not self.schedule.num_rows:
            return
        at = _At.of(batch, self.schedule.row_of_slot(), self._num_rows())
        running, draft_length = at.running(batch), draft.draft_length
        self._texts.begin(running)
        self._catch_up(running)
        missing, is_ready = self._next(running)
        limits = torch.where(at.is_running, limits[at.place].long(), 0)
        is_active, heat = is_ready & (limits > 0), at.of_rows(batch.temperature)
        self._set_drawing(at, running, heat if draft.distribution is not Distribution.ONE_HOT else 0.0)
        count = self._num_ids(draft_length)
        self._loop.run(missing, is_active, count, self.schedule.longest + count)
        drafted = self._loop.drafted[: at.num_rows, :count]
        self._texts.feed(slice(at.num_rows), drafted[:, :-1], torch.where(is_active, count - 1, 0))
        found = self._segments(drafted, draft_length)
        written = Written.of(found, self._drawing, heat > 0, torch.where(is_active, limits, 0))
        written.write(draft, at.rows, self.acceptance, self._drawing.logits)
        self._sent.store(written, running.owners, running.lengths)
        self.schedule.end(self._texts.figures(running))

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        """Learn how often the routes' tokens are accepted."""
        rows = self.schedule.row_of_slot()[batch.slots.long()]
        row, sent = rows.clamp(min=0), self._sent
        is_mine = (rows >= 0) & (sent.owners[row] == _owners(batch)) & (sent.base_len[row] == draft.base_len)
        tested = torch.where(is_mine, verdict.tested(), 0)
        self.acceptance.learn(sent.kinds[row], sent.probabilities[row], tested, verdict.accepted)
        self._common.confidence.copy_(self._confidence())
        if self._ids_per_token is not None:
            newest = torch.arange(draft.draft_length + 1, device=self._device)
            at = (batch.lengths[:, None] - 1 - newest).clamp(min=0)
            is_new = newest < verdict.emitted[:, None]
            num_ids = self._texts.num_ids(batch.tokens[batch.rows[:, None], at].long())
            self._ids_per_token.learn(torch.where(is_new, num_ids, 0).sum(), is_new.sum())

    def status(self) -> dict[str, Any]:
        """Return the pair, and what its drafts were worth; waits for the device."""
        return status_of(self.model, self.pair, self.acceptance.counts())

    def _num_rows(self) -> int:
        return size_for(self.schedule.num_rows, sizes(self.model.max_texts, 1))

    def _num_ids(self, num_tokens: int) -> int:
        """Return how many ids to draft for so many tokens; a text for one more, because its last token may go on."""
        if self._ids_per_token is None:
            return num_tokens
        return math.ceil((num_tokens + 1) * self._ids_per_token.value)

    def _confidence(self) -> Tensor:
        drawn, text = self.acceptance.by_bucket(DRAWN), self.acceptance.by_bucket(TEXTS, joined=True)
        return torch.cat([drawn, text])

    def _catch_up(self, running: Running) -> None:
        """Compute texts that are many tokens behind, such as prompts, up to the chunk of a step."""
        chunk = self._options.prefill_chunk
        for row, count in self.schedule.to_catch_up(chunk, NUM_MISSING):
            if row >= len(running.owners):
                continue
            rows, width = slice(row, row + 1), size_for(count, sizes(chunk, 16))
            self._extend(running, rows, width)
            self._texts.rejoin(rows)
            missing = self._texts.missing(rows, self._texts.growth(width), keep=1)
            self.model.forward(*missing, first=row, longest=self.schedule.longest)
            self.schedule.caught_up(row, count)

    def _next(self, running: Running) -> tuple[Missing, Tensor]:
        """Take the newest tokens of all rows; return what is to be computed of them, and which rows are complete."""
        rows = slice(len(running.owners))
        self._extend(running, rows, self._width)
        self._texts.rejoin(rows)
        missing = self._texts.missing(rows, NUM_MISSING)
        return missing, self._texts.is_ready(running)

    def _extend(self, running: Running, rows: slice, num_tokens: int) -> None:
        self._texts.extend(running, rows, num_tokens)
        self.schedule.grow(self._texts.growth(num_tokens))

    def _set_drawing(self, at: _At, running: Running, heat: Tensor | float) -> None:
        self._drawing.temperature[: at.num_rows] = heat
        self._drawing.keys[: at.num_rows] = (running.owners << _GENERATION_BITS) | running.lengths

    def _segments(self, drafted: Tensor, num_tokens: int) -> Segments:
        """Return the target's tokens for drafted ids [R, n]."""
        num_rows, count = drafted.shape
        is_common, probabilities = (
            it[:num_rows, :count] for it in (self._drawing.is_common, self._drawing.probabilities)
        )
        if self._segmenter is not None:
            return self._segmenter.find(drafted, is_common, probabilities, num_tokens)
        steps = torch.arange(count, device=self._device).expand(num_rows, count)
        counts = torch.full_like(drafted[:, 0], count)
        is_last = torch.zeros_like(is_common)
        return Segments(self._to_target[drafted], steps, is_common, is_last, probabilities, counts)


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
    def of(cls, batch: BatchView, row_of_slot: Tensor, num_rows: int) -> _At:
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

    def running(self, batch: BatchView) -> Running:
        """Return the requests by row."""
        return Running(
            tokens=batch.tokens,
            entries=batch.rows[self.place].long(),
            lengths=self.of_rows(batch.lengths.long()),
            owners=torch.where(self.is_running, _owners(batch)[self.place], NOBODY),
            starts=self.of_rows(_text_starts(batch)),
        )


def _owners(batch: BatchView) -> Tensor:
    """Return [B] int64, a number for each slot and generation."""
    return (batch.slots.long() << _GENERATION_BITS) | batch.generations


def _text_starts(batch: BatchView) -> Tensor:
    """Return [B] int64, the position after each row's last barrier."""
    if not batch.barriers:
        return torch.zeros_like(batch.slots, dtype=torch.int64)
    starts = [0] * batch.batch_size
    for barrier in batch.barriers:
        starts[barrier.row] = max(barrier.stop, starts[barrier.row])
    (found,) = to_device([torch.tensor(starts)], batch.device)
    return found


def _table(pair: Pair) -> Ragged:
    """Return the draft's ids for each of the target's."""
    to_draft, translator = pair.intersection.to_draft, pair.translator
    if translator is None:
        return Ragged.identity(int((to_draft >= 0).sum()), len(to_draft))
    return expansions(translator.target, translator.draft, to_draft)


def _texts(table: Ragged, pair: Pair, model: DraftModel, num_drafted: int) -> DeviceTexts:
    """Return the empty texts of a pair."""
    translator = pair.translator
    return DeviceTexts(
        table,
        () if translator is None else translator.draft.prefix,
        () if translator is None else translator.target.prefix,
        max_texts=model.max_texts,
        max_length=model.max_length,
        num_drafted=num_drafted,
        device=model.device,
    )
