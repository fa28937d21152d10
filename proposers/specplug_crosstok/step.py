"""A step on the draft model's device, over tensors that stay where they are, and its drafts until their verdict."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from specplug.draft_model.loop import DraftLoop
from specplug.draft_model.model import DraftModel
from specplug.draft_model.pairing import TokenizerPair
from specplug.draft_model.segments import Segmenter, Segments
from specplug.draft_model.texts import NO_REQUEST, DraftTexts, Missing, Running
from specplug.interfaces import PluginContext
from specplug.text.translate.tables import TokenLists
from specplug.types.caps import Distribution
from specplug.types.draft import NO_TOKEN
from specplug.types.step import Draft
from specplug_crosstok.acceptance import COMMON, DRAWN, OPEN_WORD, TEXT, TEXTS, KindAcceptance, kinds_of
from specplug_crosstok.drawing import GENERATION_BITS, Common, Drawing
from specplug_crosstok.loading import common_ids
from specplug_crosstok.options import CrossTokSettings


class Written(NamedTuple):
    """Draft tokens by row of the draft model's cache, [R, K]; only the first `counts` [R] of each row are there.

    Attributes:
        ids, sources, steps, kinds: int64; see `Draft`, `Segments` and `specplug_crosstok.acceptance`.
        is_drawn: bool.
        probabilities: float64, see `Segments`.
        confidence: float32, see `Draft`.
        counts: [R] int64.
        owners, base_len: [R] int64, the request, and its length.
    """

    ids: Tensor
    sources: Tensor
    steps: Tensor
    kinds: Tensor
    is_drawn: Tensor
    probabilities: Tensor
    confidence: Tensor
    counts: Tensor
    owners: Tensor
    base_len: Tensor

    @classmethod
    def allocate(cls, max_rows: int, draft_length: int, device: torch.device) -> Self:
        """Return the drafts of no requests, whose tensors stay where they are."""
        numbers = torch.zeros(max_rows, draft_length, dtype=torch.int64, device=device)
        ids, sources, steps, kinds = (numbers.clone() for _ in range(4))
        counts, owners, base_len = (numbers[:, 0].clone() for _ in range(3))
        is_drawn = numbers > 0
        probabilities = numbers.double()
        confidence = numbers.float()
        of_tokens = ids, sources, steps, kinds, is_drawn, probabilities, confidence
        return cls(*of_tokens, counts, owners.fill_(NO_REQUEST), base_len)

    @classmethod
    def of(
        cls,
        found: Segments,
        drawing: Drawing,
        acceptance: KindAcceptance,
        is_sampled: Tensor,
        counts: Tensor,
        running: Running,
    ) -> Self:
        """Return the draft tokens.

        They stand for what was `found`; `is_sampled` [R] bool are the requests with a temperature, and `counts` [R]
        int64 says how many of the tokens are wanted.
        """
        rows = slice(len(counts))
        draws = drawing.is_common[rows].gather(1, found.steps) & (drawing.temperature[rows] > 0)[:, None]
        is_drawn = found.is_fixed & draws
        sources = torch.where(found.is_fixed, COMMON, torch.where(found.is_last, OPEN_WORD, TEXT))
        levels = drawing.levels[rows].gather(1, found.steps)
        kinds = kinds_of(sources, levels, is_drawn, is_sampled[:, None])
        return cls(
            found.ids,
            sources,
            found.steps,
            kinds,
            is_drawn,
            found.probabilities,
            acceptance.confidence(kinds, found.probabilities).float(),
            torch.minimum(counts, found.counts),
            running.owners,
            running.lengths,
        )

    def store(self, new: Written) -> None:
        """Take over the drafts of the first R rows."""
        num_rows = len(new.counts)
        for own, other in zip(self, new, strict=True):
            own[:num_rows] = other

    def write(self, draft: Draft, rows: Tensor, logits: Tensor | None) -> None:
        """Write the draft of B requests, whose rows are `rows` [B] int64, negative for those without one.

        `logits` [R, n, Vd] is what common ids were drawn from.
        """
        row = rows.clamp(min=0)
        columns = slice(draft.draft_length)
        draft.lengths.copy_(torch.where(rows >= 0, self.counts[row], 0))
        inside = draft.mask()
        draft.token_ids.copy_(torch.where(inside, self.ids[row, columns], NO_TOKEN))
        draft.source.copy_(torch.where(inside, self.sources[row, columns], -1))
        draft.confidence.copy_(torch.where(inside, self.confidence[row, columns], 0.0))
        if draft.drawn is None:
            return
        draft.drawn.copy_(self.is_drawn[row, columns])
        if draft.draft_logits is not None and logits is not None:
            for place in range(draft.draft_length):
                draft.draft_logits[:, place] = logits[row, self.steps[row, place]]


_FEW = 8  # new tokens of a text that every step takes at least


class StepInputs(NamedTuple):
    """The inputs of a step, by row of the draft model's cache.

    By row: the requests, the maximum number of draft tokens (int64), the temperature (float32, 0 is greedy), and the
    newest tokens, [rows, T] int64, see `DraftTexts.newest`.
    """

    running: Running
    limits: Tensor
    temperature: Tensor
    tokens: Tensor


class DraftingStep:
    """The parts of a step, see `specplug.draft_model.loop.Parts`.

    Args:
        context, options: of the proposer.
        model: the draft model.
        pair: the tokenizers.
        is_exact: whether shapes are those that a step needs, which are read back.  Otherwise they are fixed, as CUDA
            graphs need them, and nothing is read back.

    Attributes:
        inputs: set before the step.
        texts, drawing, acceptance: its state.
        written: [rows, K], what it has drafted.
        figures: [3, rows] int64, see `DraftTexts.figures`.
        draft_vocab: [Vd] int64, the target's ids that are drawn from.
        is_text: whether drafts may be text.
        num_drafted: the maximum number of ids of a draft.
        mean_length: about how many ids of the draft's a token of the target has.
        num_missing: the maximum number of missing ids of a text that are computed in the pass before the first draft
            token; more take more steps.  At least as many as a draft has: those after an id that the text has
            otherwise.
    """

    def __init__(
        self,
        context: PluginContext,
        options: CrossTokSettings,
        model: DraftModel,
        pair: TokenizerPair,
        *,
        is_exact: bool,
    ) -> None:
        self._device = model.device
        rows = model.max_texts
        longest = context.caps.max_draft_length
        self.is_text = not pair.is_same and options.route != "tli"
        num_drafted = 2 * (longest + 1) if self.is_text else longest
        num_drafted = min(num_drafted, model.max_length // 4)  # windows begin half full
        self.num_drafted = num_drafted
        num_tokens = max(_FEW, 2 * (longest + 1))
        table = pair.table()
        self.mean_length = table.mean_length
        self.texts = _texts(table, pair, model, num_drafted, is_exact=is_exact)
        self.num_missing = self.texts.growth(num_tokens) if is_exact else max(_FEW, num_drafted)
        self.acceptance = KindAcceptance(self._device)
        to_target, common = common_ids(pair, model.vocab_size, context.vocab_size)
        self._to_target = torch.from_numpy(to_target).long().to(self._device)
        self._common = Common(
            common.to(self._device), (torch.from_numpy(to_target) >= 0).to(self._device), self._confidence().float()
        )
        self.draft_vocab = self._to_target[self._common.ids]
        self.drawing = Drawing(
            self._common,
            is_restricted=not self.is_text,
            max_rows=rows,
            num_drafted=num_drafted,
            states=context.caps.draft_input is not Distribution.ONE_HOT and options.route != "slem",
            seed=context.seed,
        )
        self._segmenter = None
        if not pair.is_same:
            self._segmenter = Segmenter(pair, self._to_target, context.vocab_size, num_drafted, is_exact=is_exact)
        self.loop = DraftLoop(model, num_drafted, is_exact=is_exact)
        numbers = torch.zeros(rows, num_tokens, dtype=torch.int64, device=self._device)
        owners, lengths, starts, limits = (numbers[:, 0].clone() for _ in range(4))
        running = Running(owners.fill_(NO_REQUEST), lengths, starts)
        self.inputs = StepInputs(running, limits, numbers[:, 0].float(), numbers)
        self._is_active = numbers[:, 0] > 0
        self.written = Written.allocate(rows, longest, self._device)
        self._is_bounded = options.min_survival > 0
        self._survival = numbers[:, 0].double()
        self.figures = torch.zeros(3, rows, dtype=torch.int64, device=self._device)

    @property
    def num_tokens(self) -> int:
        """T, the maximum number of tokens by which every step extends each text."""
        return self.inputs.tokens.shape[1]

    def begin(self, num_rows: int) -> None:
        """Empty the texts of new requests."""
        self.texts.begin(self.inputs.running.at(slice(num_rows)))

    def prepare(self, num_rows: int) -> tuple[Missing, Tensor]:
        """Extend the texts by their newest tokens."""
        rows = slice(num_rows)
        running = self.inputs.running.at(rows)
        self.texts.extend(running, rows, self.inputs.tokens[rows])
        self.texts.rejoin(rows)
        missing = self.texts.missing(rows, self.num_missing)
        self._is_active[rows] = self.texts.is_ready(running) & (self.inputs.limits[rows] > 0)
        self.drawing.keys[rows] = (running.owners << GENERATION_BITS) | running.lengths
        self._survival[rows] = self._is_active[rows].double()
        return missing, self._is_active[rows]

    def choose(self, num_rows: int, step: Tensor, logits: Tensor) -> Tensor:
        """Choose the next ids."""
        ids = self.drawing.choose(num_rows, step, logits)
        rows = slice(num_rows)
        if not self._is_bounded:
            return ids
        is_common, levels, probabilities = (
            it[rows].index_select(1, step)[:, 0]
            for it in (self.drawing.is_common, self.drawing.levels, self.drawing.probabilities)
        )
        is_drawn = is_common & (self.drawing.temperature[rows] > 0)
        sources = torch.where(is_common, COMMON, TEXT)
        kinds = kinds_of(sources, levels, is_drawn, self.inputs.temperature[rows] > 0)
        self._survival[rows] *= self.acceptance.confidence(kinds, probabilities)
        return ids

    def survival(self, num_rows: int) -> float:
        """Return the highest probability of a row that all of its draft so far is accepted; waits for the device.

        It is 0 if no row drafts, and 1 otherwise unless the settings bound it.
        """
        return float(self._survival[:num_rows].max())

    def ids_per_token(self, num_rows: int) -> float:
        """Return the ids of a token, on average, of the active text that has most of them; waits for the device."""
        rows = slice(num_rows)
        average = self.texts.num_ids[rows] / self.texts.done[rows].clamp(min=1)
        return float(torch.where(self._is_active[rows], average, 0.0).max())

    def finish(self, num_rows: int) -> None:
        """Make the drafted ids draft tokens of the target."""
        rows = slice(num_rows)
        is_active = self._is_active[:num_rows]
        running = self.inputs.running.at(rows)
        drafted = self.loop.drafted[rows]
        num_ids = self.loop.num_ids
        self.texts.feed(rows, drafted, torch.where(is_active, num_ids - 1, 0))
        counts = torch.where(is_active, self.inputs.limits[rows], 0)
        is_sampled = self.inputs.temperature[rows] > 0
        found = self._segments(drafted, num_ids)
        self.written.store(Written.of(found, self.drawing, self.acceptance, is_sampled, counts, running))
        self.figures[:, rows] = self.texts.figures(running)

    def learn(self, kinds: Tensor, probabilities: Tensor, tested: Tensor, accepted: Tensor) -> None:
        """Learn from verdicts; see `KindAcceptance.learn`."""
        self.acceptance.learn(kinds, probabilities, tested, accepted)
        self._common.confidence.copy_(self._confidence())

    def _confidence(self) -> Tensor:
        drawn = self.acceptance.by_bucket(DRAWN)
        text = self.acceptance.by_bucket(TEXTS, joined=True)
        return torch.cat([drawn, text])

    def _segments(self, drafted: Tensor, num_ids: Tensor) -> Segments:
        """Return the target's tokens for drafted ids [R, n]."""
        num_rows = len(drafted)
        length = self.written.ids.shape[1]
        is_common = self.drawing.is_common[:num_rows]
        probabilities = self.drawing.probabilities[:num_rows]
        if self._segmenter is not None:
            return self._segmenter.find(drafted, num_ids, is_common, probabilities, length)
        steps = torch.arange(length, device=self._device).clamp(max=self.num_drafted - 1).expand(num_rows, length)
        ids, is_fixed, found = (it.gather(1, steps) for it in (self._to_target[drafted], is_common, probabilities))
        return Segments(ids, steps, is_fixed, torch.zeros_like(is_fixed), found, num_ids.expand(num_rows))


def _texts(
    table: TokenLists, pair: TokenizerPair, model: DraftModel, num_drafted: int, *, is_exact: bool
) -> DraftTexts:
    """Return the empty texts of a pair."""
    skipped, prefix = ((), ()) if pair.vocabularies is None else (it.prefix for it in pair.vocabularies)
    return DraftTexts(
        table,
        prefix,
        skipped,
        max_texts=model.max_texts,
        max_length=model.max_length,
        num_drafted=num_drafted,
        device=model.device,
        is_exact=is_exact,
    )
