"""DeviceStep: what a step computes on the device, over tensors that stay where they are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specplug.draft_model.device.loop import NUM_MISSING, DraftLoop
from specplug.draft_model.device.segments import Segmenter, Segments
from specplug.draft_model.device.texts import NO_REQUEST, DeviceTexts, Missing, Running
from specplug.draft_model.model import DraftModel
from specplug.draft_model.pairing import Pair
from specplug.interfaces import PluginContext
from specplug.text.translate.tables import Ragged
from specplug.types.caps import Distribution
from specplug_crosstok.device.acceptance import DeviceAcceptance
from specplug_crosstok.device.drawing import DeviceDrawing
from specplug_crosstok.device.written import Written
from specplug_crosstok.drawing import GENERATION_BITS, Common
from specplug_crosstok.kinds import DRAWN, NUM_KINDS, TEXTS
from specplug_crosstok.loading import common_ids
from specplug_crosstok.options import CrossTokSettings


class Inputs(NamedTuple):
    """What a step is given, by row of the draft model's cache.

    Attributes:
        running: the requests.
        limits: [rows] int64, the most draft tokens of each.
        temperature: [rows] float32, 0 is greedy.
        tokens: [rows, T] int64, the newest tokens of each, see `DeviceTexts.newest`.
    """

    running: Running
    limits: Tensor
    temperature: Tensor
    tokens: Tensor


class DeviceStep:
    """The parts of a step, see `specplug.draft_model.device.loop.Parts`.

    Args:
        context, options: of the proposer.
        model: the draft model.
        pair: the tokenizers.

    Attributes:
        inputs: set before the step.
        texts, drawing, acceptance: its state.
        written: [rows, K], what it has drafted.
        figures: [3, rows] int64, see `DeviceTexts.figures`.
        draft_vocab: [Vd] int64, the target's ids that are drawn from.
        is_text: whether drafts may be text.
        mean_length: about how many ids of the draft's a token of the target has.
    """

    def __init__(self, context: PluginContext, options: CrossTokSettings, model: DraftModel, pair: Pair) -> None:
        self._device, rows, most = model.device, model.max_texts, context.caps.max_draft_length
        self.is_text = pair.translator is not None and options.route != "tli"
        num_drafted = 2 * (most + 1) if self.is_text else most
        table = pair.table()
        self.mean_length = table.mean_length
        self.texts = _texts(table, pair, model, num_drafted)
        self.acceptance = DeviceAcceptance(NUM_KINDS, self._device)
        to_target, common = common_ids(pair, model.vocab_size, context.vocab_size)
        self._to_target = torch.from_numpy(to_target).long().to(self._device)
        self._common = Common(
            common.to(self._device), (torch.from_numpy(to_target) >= 0).to(self._device), self._confidence().float()
        )
        self.draft_vocab = self._to_target[self._common.ids]
        self.drawing = DeviceDrawing(
            self._common,
            is_restricted=not self.is_text,
            max_rows=rows,
            num_drafted=num_drafted,
            states=context.caps.draft_input is not Distribution.ONE_HOT and options.route != "slem",
            seed=context.seed,
        )
        self._segmenter = None
        if pair.translator is not None:
            self._segmenter = Segmenter(pair, self._to_target, context.vocab_size, num_drafted)
        self.loop = DraftLoop(model, num_drafted)
        numbers = torch.zeros(rows, 2 * (most + 1), dtype=torch.int64, device=self._device)
        owners, lengths, starts, limits = (numbers[:, 0].clone() for _ in range(4))
        running = Running(owners.fill_(NO_REQUEST), lengths, starts)
        self.inputs = Inputs(running, limits, numbers[:, 0].float(), numbers)
        self._is_active = numbers[:, 0] > 0
        self.written = Written.allocate(rows, most, self._device)
        self.figures = torch.zeros(3, rows, dtype=torch.int64, device=self._device)

    @property
    def num_tokens(self) -> int:
        """T, the tokens by which every step extends each text."""
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
        missing = self.texts.missing(rows, NUM_MISSING)
        self._is_active[rows] = self.texts.is_ready(running) & (self.inputs.limits[rows] > 0)
        self.drawing.keys[rows] = (running.owners << GENERATION_BITS) | running.lengths
        return missing, self._is_active[rows]

    def choose(self, num_rows: int, step: Tensor, logits: Tensor) -> Tensor:
        """Choose the next ids."""
        return self.drawing.choose(num_rows, step, logits)

    def finish(self, num_rows: int) -> None:
        """Make the drafted ids draft tokens of the target."""
        rows, is_active = slice(num_rows), self._is_active[:num_rows]
        running = self.inputs.running.at(rows)
        drafted, num_ids = self.loop.drafted[rows], self.loop.num_ids
        self.texts.feed(rows, drafted, torch.where(is_active, num_ids - 1, 0))
        counts = torch.where(is_active, self.inputs.limits[rows], 0)
        is_sampled = self.inputs.temperature[rows] > 0
        found = self._segments(drafted, num_ids)
        self.written.store(Written.of(found, self.drawing, self.acceptance, is_sampled, counts, running))
        self.figures[:, rows] = self.texts.figures(running)

    def learn(self, kinds: Tensor, probabilities: Tensor, tested: Tensor, accepted: Tensor) -> None:
        """Learn from verdicts; see `DeviceAcceptance.learn`."""
        self.acceptance.learn(kinds, probabilities, tested, accepted)
        self._common.confidence.copy_(self._confidence())

    def _confidence(self) -> Tensor:
        drawn, text = self.acceptance.by_bucket(DRAWN), self.acceptance.by_bucket(TEXTS, joined=True)
        return torch.cat([drawn, text])

    def _segments(self, drafted: Tensor, num_ids: Tensor) -> Segments:
        """Return the target's tokens for drafted ids [R, n]."""
        num_rows, most = len(drafted), self.written.ids.shape[1]
        is_common, probabilities = self.drawing.is_common[:num_rows], self.drawing.probabilities[:num_rows]
        if self._segmenter is not None:
            return self._segmenter.find(drafted, num_ids, is_common, probabilities, most)
        steps = torch.arange(most, device=self._device).expand(num_rows, most)
        is_last = torch.zeros_like(is_common)
        return Segments(self._to_target[drafted], steps, is_common, is_last, probabilities, num_ids.expand(num_rows))


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
