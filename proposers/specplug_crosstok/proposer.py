"""The proposer `crosstok`: a draft model, whose tokenizer may be another one than the target's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specplug.draft_model.drafting import Drafter
from specplug.interfaces import PluginContext, Proposer
from specplug.text.translate.translator import Context
from specplug.types.batch import EngineBatch
from specplug.types.caps import Distribution
from specplug.types.draft import Draft
from specplug.types.request import BEGINS, Event, RequestEvent
from specplug.types.verdict import Verdict
from specplug_crosstok.acceptance import Acceptance
from specplug_crosstok.drawing import Common, Drawing, Drawn, key_of, uniforms
from specplug_crosstok.kinds import DRAWN, NUM_KINDS, SAMPLED, TEXTS, status_of
from specplug_crosstok.loading import common_ids, device_of, load_model
from specplug_crosstok.options import CrossTokSettings
from specplug_crosstok.requests import DraftContext, DraftContexts, InFlight
from specplug_crosstok.writing import COMMON, SOURCES, TEXT, target_tokens


class _Row(NamedTuple):
    """One row of a step.

    Attributes:
        at: its index in the batch.
        limit: the most draft tokens.
        context: its context.
        temperature: 0 is greedy.
        restricted: whether only common ids are drafted.
        draws: whether common ids are drawn from a distribution that the draft states.
        key: slot, generation and length.
    """

    at: int
    limit: int
    context: DraftContext
    temperature: float
    restricted: bool
    draws: bool
    key: tuple[int, int, int]

    @property
    def kind(self) -> int:
        """The first of the kinds of its tokens, see `Acceptance`."""
        return SAMPLED * (self.temperature > 0)


class Survival:
    """The probability that all of a draft so far is accepted, of each row.

    Args:
        acceptance: what tokens turned out to be worth.
        drawing: the choices of the step.
        rows: by their row of the model's cache.
        least: the bound of `is_low`; 0 computes nothing.
    """

    def __init__(self, acceptance: Acceptance, drawing: Drawing, rows: dict[int, _Row], least: float) -> None:
        self._acceptance, self._drawing, self._rows, self._least = acceptance, drawing, rows, least
        self._of_rows = dict.fromkeys(rows, 1.0)

    def is_low(self, ready: Sequence[int]) -> bool:
        """Return whether the newest choice has brought all of some rows below the bound."""
        if not self._least:
            return False
        newest = self._drawing.newest
        probabilities = newest.probabilities.double().cpu().numpy()
        is_common, levels = newest.is_common.cpu().numpy(), newest.levels.cpu().numpy()
        for row in ready:
            it = self._rows[row]
            kind = it.kind + (COMMON if is_common[row] else TEXT)
            kind = DRAWN.start + levels[row] if is_common[row] and it.draws else kind
            of_token = self._acceptance.confidence(np.array([kind]), probabilities[[row]])
            self._of_rows[row] *= float(of_token[0])
        return max(self._of_rows[row] for row in ready) < self._least


class CrossTok(Proposer):
    """Drafts with a smaller model on the host's side: contexts are translated there, and the model runs anywhere.

    With one tokenizer for both models, ids are the same.  With two, a route leads from what the model drafts to the
    target's tokens (Timor et al., ICML 2025, arXiv 2502.05202), and both are lossless:

    - *common ids* (TLI): the model draws from the ids whose text both vocabularies have, and says from which
      distribution, so that sampled tokens are accepted as often as speculative sampling accepts any.
    - *text* (SLEM): the model drafts freely, and the target's tokenizer encodes its text.  These tokens were not drawn
      from a distribution over the target's vocabulary, so they are verified as one-hot.

    Raises:
        SettingsError: no model is named, or one of the tokenizers cannot be translated.
        PluginError: the model cannot be loaded.
    """

    sources = SOURCES

    def __init__(self, context: PluginContext) -> None:
        options: CrossTokSettings = context.options or CrossTokSettings()
        self._options, self._seed = options, context.seed
        self.model, self.pair = load_model(context, options, device_of(options.device))
        max_texts, device = self.model.max_texts, self.model.device
        seconds = None if options.max_ms is None else options.max_ms / 1000
        self._drafter = Drafter(self.model, chunk=options.prefill_chunk, seconds=seconds)
        self._contexts = DraftContexts(
            self.pair, max_texts, self.model.max_length, self.model.vocab_size, options.route
        )
        self.acceptance = Acceptance(NUM_KINDS)
        self._to_target, common = common_ids(self.pair, self.model.vocab_size, context.vocab_size)
        self._common = common.to(device)
        self._is_common = torch.zeros(self.model.vocab_size, dtype=torch.bool, device=device)
        self._is_common[self._common] = True
        self.draft_vocab = torch.from_numpy(self._to_target[common].astype(np.int64)).to(context.device)

    def warmup(self) -> None:
        """Allocate the model's caches."""
        self.model.warm_up()

    def ingest(self, batch: EngineBatch) -> None:
        """Translate the new tokens."""
        self._contexts.ingest(batch)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Draft for the rows that may have drafts and that the model has caught up with."""
        rows = self._rows(batch, limits, states=draft.distribution is not Distribution.ONE_HOT)
        if not rows:
            return
        texts = {row: it.context.text for row, it in rows.items()}
        num_tokens = max(self._num_drafted(it) for it in rows.values())
        drawing = self._drawing(rows, num_tokens)
        survival = Survival(self.acceptance, drawing, rows, self._options.min_survival)
        ready, ids = self._drafter.draft(texts, num_tokens, drawing.choose, survival.is_low)
        if not ready:
            return
        drawn, drafted = drawing.result(), ids.tolist()
        for row in ready:
            texts[row].cache(drafted[row][:-1])
            self._write(rows[row], draft, drafted[row], drawn, row)

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        """Learn how often the routes' tokens are accepted."""
        tested, base = verdict.tested().tolist(), draft.base_len.tolist()
        for at, (slot, accepted) in enumerate(zip(batch.slots.tolist(), verdict.accepted.tolist(), strict=True)):
            context = self._contexts.get(slot)
            sent = None if context is None else context.in_flight.pop(base[at], None)
            if sent is not None:
                self.acceptance.learn(sent.kinds[: tested[at]], sent.probabilities[: tested[at]], accepted)

    def on_event(self, event: Event) -> None:
        """Forget a request that has left its slot."""
        if isinstance(event, RequestEvent) and event.kind not in BEGINS:
            self._contexts.release(event.slot)

    def status(self) -> dict[str, Any]:
        """Return the pair, and what its drafts were worth."""
        return status_of(self.model, self.pair, self.acceptance.counts())

    def _rows(self, batch: EngineBatch, limits: Tensor, *, states: bool) -> dict[int, _Row]:
        """Return the rows to draft for, by their row of the model's cache."""
        rows, route = {}, self._options.route
        columns = (limits, batch.slots, batch.generations, batch.lengths, batch.temperature)
        for at, (limit, slot, generation, length, heat) in enumerate(
            zip(*(it.tolist() for it in columns), strict=True)
        ):
            context = self._contexts.get(slot)
            if limit <= 0 or context is None or context.row is None or context.num_tokens != length:
                continue
            is_same = not isinstance(context.translation, Context)
            restricted, draws = is_same or route == "tli", states and heat > 0 and (is_same or route != "slem")
            rows[context.row] = _Row(at, limit, context, heat, restricted, draws, (slot, generation, length))
        return rows

    def _num_drafted(self, row: _Row) -> int:
        """Return how many ids to draft for a row; texts may take more ids of the draft's than of the target's."""
        if row.restricted:
            return row.limit
        ratio = max(1.0, row.context.text.num_ids / max(1, row.context.num_tokens))
        return min(2 * row.limit, math.ceil(row.limit * ratio))

    def _drawing(self, rows: dict[int, _Row], num_tokens: int) -> Drawing:
        num_rows, draws = max(rows) + 1, {row: it for row, it in rows.items() if it.draws}
        restricted, temperature = torch.zeros(num_rows, dtype=torch.bool), torch.zeros(num_rows)
        restricted[[row for row, it in rows.items() if it.restricted]] = True
        numbers = None
        to = self.model.device
        if draws:
            temperature[list(draws)] = torch.tensor([it.temperature for it in draws.values()])
            keys = torch.zeros(num_rows, dtype=torch.int64)
            keys[list(draws)] = torch.tensor([key_of(*it.key) for it in draws.values()])
            numbers = uniforms(self._seed, keys[:, None], torch.arange(num_tokens)).to(to)
        drawn, text = self.acceptance.by_bucket(DRAWN), self.acceptance.by_bucket(TEXTS, joined=True)
        confidence = torch.tensor(np.concatenate([drawn, text])).to(to)
        common = Common(self._common, self._is_common, confidence)
        return Drawing(common, restricted.to(to), temperature.to(to), numbers)

    def _write(self, it: _Row, draft: Draft, drafted: list[int], drawn: Drawn, row: int) -> None:
        tokens = target_tokens(
            it.context.translation, self._to_target, drafted, drawn.is_common[row].tolist(), drawn.probabilities[row]
        )
        count = min(it.limit, len(tokens.ids))
        if not count:
            return
        sources = np.array(tokens.sources[:count], np.int32)
        is_drawn = (sources == COMMON) & it.draws
        levels = drawn.levels[row, tokens.steps[:count]]
        kinds = np.where(is_drawn, DRAWN.start + levels, sources + it.kind).astype(np.int32)
        probabilities = np.array(tokens.probabilities[:count])
        draft.token_ids[it.at, :count] = torch.tensor(tokens.ids[:count], dtype=torch.int32)
        draft.lengths[it.at] = count
        draft.source[it.at, :count] = torch.from_numpy(sources)
        draft.confidence[it.at, :count] = torch.from_numpy(self.acceptance.confidence(kinds, probabilities)).float()
        it.context.send(it.key[2], InFlight(kinds, probabilities))
        if draft.drawn is not None:
            draft.drawn[it.at, :count] = torch.from_numpy(is_drawn)
            if drawn.logits is not None and draft.draft_logits is not None and is_drawn.any():
                steps = [tokens.steps[at] for at in np.flatnonzero(is_drawn)]
                draft.draft_logits[it.at, np.flatnonzero(is_drawn)] = drawn.logits[row, steps].to(draft.device)
