"""Steps of the lookup on an engine's device: its memory, its texts, and the form that runs there.

    event  --references--> texts          batch --ingest--> texts --scan, search, draft--> Draft

Nothing is read back.  Events may come while a step is still in a GPU's stream: what they launch follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.launching import Around
from specplug.lookup import corpora, storage
from specplug.lookup import layout as at
from specplug.types.batch import Barrier
from specplug.types.draft import NO_TOKEN
from specplug.types.step import Draft, EngineBatch
from specplug.types.tensors import to_device

Tokens = npt.NDArray[np.int32]

NO_GENERATION = -1

_COLUMNS = (np.int64, np.int32, np.int32, np.int32, np.int64, np.int32, np.int32)
"""Of a step's columns in compiled code, which has one variant."""


def form_for(device: torch.device) -> ModuleType:
    """Return the form that runs on a device: the compiled one on CPUs, else the kernels."""
    if device.type == "cpu":
        from specplug.lookup import compiled

        return compiled
    from specplug.lookup import kernels

    return kernels


class LookupSteps:
    """The lookup for S slots and drafts of K tokens.

    Args:
        slots: S.
        length: L, the maximum number of tokens of a text with its references.
        draft_length: K.
        ring: C, tokens of responses and of what siblings share.
        device: the device of the batches.
        engine_tokens: G, the maximum number of tokens of the engine's own drafter; 0 without one.
        trees: whether trees are drafted.
        settings: `shortest`, `least` and `engine_source`, see `layout.SHORTEST`.

    Attributes:
        state: see `layout.State`.
        texts: [S, L] int32.
        around: what kernels also do in the next step, on GPUs, for chains; see `Around`.
    """

    def __init__(
        self,
        slots: int,
        length: int,
        draft_length: int,
        ring: int,
        device: torch.device,
        *,
        engine_tokens: int = 0,
        trees: bool = False,
        **settings: int,
    ) -> None:
        more: dict[str, Any] = {"engine_tokens": engine_tokens, "trees": trees, **settings}
        self.state = storage.allocate(slots, length, draft_length, ring, device, **more)
        self.texts = torch.zeros(slots, length, dtype=torch.int32, device=device)
        self._form = form_for(device)
        self._device = device
        self._is_compiled = self._form.__name__.endswith("compiled")
        self.around = None if self._is_compiled or trees else Around()
        self._zeros = torch.zeros(slots, dtype=torch.int32, device=device)
        self._no_parents = torch.zeros(0, draft_length, dtype=torch.int32, device=device)
        self._draft_length = draft_length
        self._engine_tokens = engine_tokens
        self._trees = trees
        self._barriers: tuple[tuple[Barrier, ...], Tensor, Tensor] | None = None
        self._steps = 0
        self._launched: at.State | None = None  # the state of the newest step, if it only launched
        self._use(self.state)

    def _use(self, state: at.State) -> None:
        self.state = state
        self._memory = self._in_form(state), self._in_form(self.texts)

    def _in_form(self, tensors: Any) -> Any:
        """Return tensors as the form takes them."""
        if not self._is_compiled:
            return tensors
        return tensors.numpy() if isinstance(tensors, Tensor) else storage.views(tensors)

    # -- between steps ---------------------------------------------------------------------------------------------

    def begin(
        self, slot: int, generation: int, owner: int, references: Sequence[Tokens], scope: Sequence[int] = ()
    ) -> int:
        """Begin a request's text in a slot, and return the length of its references.

        Args:
            slot: the slot; its earlier text is dropped.
            generation: the slot's generation.
            owner: the number of the owner of the responses to draft from.
            references: texts that come before its own; if there is no room for all, the last are dropped first.
            scope: what `corpora.Numbers.known_numbers` returned.
        """
        before = _before(references, self.texts.shape[1] // 2)
        facts = np.array([slot, generation, owner, before.size], np.int32)
        (packed,) = to_device([torch.from_numpy(np.concatenate((facts, before)))], self._device)
        if before.size:
            self.texts[slot, : before.size] = packed[4:]
        storage.begin(self.state, packed[:1].long(), packed[1:2], packed[2:3], packed[3:4])
        if scope and scope[0]:
            corpora.assign(self.state, packed[:1].long(), [scope])
        return int(before.size)

    def remember(self, slot: int, start: int, begin: int, end: int, owner: int, number: int) -> None:
        """Enter a slot's tokens as a response; `plain.remember` describes the arguments, `start` is its `prompt`."""
        self._form.remember(*self._memory, slot, start, begin, end, owner, number)

    def load(self, loaded: corpora.Corpora) -> None:
        """Replace the corpora; see `corpora.use`."""
        self._use(corpora.use(self.state, loaded))

    # -- steps -----------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Compile or load everything by a step that changes nothing: its row belongs to no request.

        With work `around`, which has no programs here, the step has no row.
        """
        is_alone = self.around is None or self.around.begin is None
        one = torch.ones(int(is_alone), dtype=torch.int32, device=self._device)
        slots = torch.zeros_like(one).long()
        stale = one.long() * NO_GENERATION
        row = EngineBatch(slots, stale, slots, one[None], one, one > 0, one, one.float(), one > 0, vocab_size=1)
        self._arranged, source = self._arguments(row, one, None)
        self._ingest(row, source)
        self._form.scan(*self._memory, self._arranged)
        self._form.search(*self._memory, self._arranged)
        draft = Draft.allocate(1, self._draft_length, device=self._device, trees=self._trees)
        drafts = self._drafts_of(draft)
        self._draft(row, drafts, is_last=True)
        if self._engine_tokens:
            engine_ids = torch.zeros(len(one), self._engine_tokens, dtype=torch.int32, device=self._device)
            self._append(self._arranged, engine_ids, drafts)
        self.remember(0, 0, 0, 0, 1, 0)

    def run(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None, *, is_new: bool = True) -> None:
        """Ingest a batch, and fill its draft if there is one; the tokens are not `is_new` if they were ingested."""
        size = batch.batch_size
        if not size:
            return
        self._steps += 1
        if self._steps % at.HALVED_EVERY == 0:
            storage.halve(self.state)
        self._launched = None if batch.barriers else self.state
        self._arranged, source = self._arguments(batch, limits, batch.num_new if is_new else None)
        self._ingest(batch, source)
        self._form.scan(*self._memory, self._arranged)
        if draft is None or limits is None:
            return
        drafts = self._drafts_of(draft)
        if batch.engine_ids is not None:
            self._draft(batch, drafts)
            self._append(self._arranged, batch.engine_ids, drafts)
            self._form.scan(*self._memory, self._arranged)
        self._draft(batch, drafts, is_last=True)

    def _ingest(self, batch: EngineBatch, source: at.Source) -> None:
        """Run the work that the step begins with, ingest, replace tokens that are not text, and learn."""
        arguments = *self._memory, self._arranged, source, not batch.barriers
        around = self.around
        if around is None or around.begin is None:
            self._form.ingest(*arguments)
        else:
            self._form.ingest(*arguments, around.begin)
            around.begin = None
        if batch.barriers:
            self._erase(batch)
            nothing = self._zeros[: batch.batch_size]
            source = source._replace(num_new=nothing.numpy() if self._is_compiled else nothing)
            self._form.ingest(*self._memory, self._arranged, source, True)

    def may_repeat(self) -> bool:
        """Count a step, and return whether it launches what `run` launched last, if it is of the same batch."""
        if self._is_compiled or self._launched is not self.state or (self._steps + 1) % at.HALVED_EVERY == 0:
            return False
        self._steps += 1
        return True

    def _append(self, rows: at.Rows, engine_ids: Tensor, drafts: at.Drafts) -> None:
        ids: Any = whole_rows(engine_ids.int()) if self._is_compiled else engine_ids
        self._form.append(*self._memory, rows, ids, drafts)

    def _draft(self, batch: EngineBatch, drafts: at.Drafts, *, is_last: bool = False) -> None:
        """Draft for the rows that were scanned, and finish the `last` draft of a step."""
        if self.state.tenants.shape[0] > 2:
            self._form.search(*self._memory, self._arranged)
        arguments = *self._memory, self._arranged, drafts, batch.vocab_size
        around = self.around
        if around is None or around.finish is None or not is_last:
            self._form.draft(*arguments)
        else:
            self._form.draft(*arguments, around.finish)
            around.finish = None

    def _arguments(
        self, batch: EngineBatch, limits: Tensor | None, num_new: Tensor | None
    ) -> tuple[at.Rows, at.Source]:
        """Return the rows and the source of a step: kernels take the tensors, compiled code takes contiguous arrays.

        What is None is 0 for all rows.
        """
        tensors = batch.slots, batch.generations, batch.lengths, limits, batch.rows, batch.first, num_new
        size = batch.batch_size
        columns: list[Any]
        table: Any = batch.tokens
        if self._is_compiled:
            columns = [
                np.zeros(size, kind) if it is None else np.ascontiguousarray(it.numpy(), kind)
                for it, kind in zip(tensors, _COLUMNS, strict=True)
            ]
            table = whole_rows(batch.tokens)
        else:
            zeros = self._zeros[:size]
            columns = [zeros if it is None else it for it in tensors]
        slots, generations, lengths, bounds, table_rows, first, new = columns
        return at.Rows(slots, generations, lengths, bounds), at.Source(table, table_rows, first, new)

    def _drafts_of(self, draft: Draft) -> at.Drafts:
        """Return a draft's tensors as the form writes them."""
        parents = draft.parents if self._trees and draft.parents is not None else self._no_parents
        tensors = draft.token_ids, draft.confidence, draft.source, draft.lengths, parents
        return at.Drafts(*[whole_rows(it) if self._is_compiled else it for it in tensors])

    def _erase(self, batch: EngineBatch) -> None:
        """Replace tokens that are not text by negative ones, also those that the row will only reach later."""
        if self._barriers is None or self._barriers[0] is not batch.barriers:
            rows = [barrier.row for barrier in batch.barriers for _ in range(barrier.start, barrier.stop)]
            places = [place for barrier in batch.barriers for place in range(barrier.start, barrier.stop)]
            of = to_device([torch.tensor(rows), torch.tensor(places)], self._device)
            self._barriers = batch.barriers, of[0], of[1]
        _, rows_of, places_of = self._barriers
        slots = batch.slots.long()[rows_of]
        length = self.texts.shape[1]
        starts = self.state.slots[slots, at.START]
        is_there = starts + places_of < length
        # Where there is no room, the text has only its references, which end with a negative token.
        self.texts[slots, torch.where(is_there, starts + places_of, starts - 1)] = NO_TOKEN


def _before(references: Sequence[Tokens], room: int) -> Tokens:
    """Return the text before a request's own: the references that fit, with a negative token after each."""
    parts = [np.zeros(0, np.int32)]
    whole = room
    for reference in references:  # cut before copying: a reference may be part of a large corpus
        parts += [np.asarray(reference[:room], np.int32), np.full(1, NO_TOKEN, np.int32)]
        room -= len(reference[:room]) + 1
        if room <= 0:
            break
    text = np.concatenate(parts)[:whole]
    text[-1:] = NO_TOKEN
    return text


def whole_rows(table: Tensor) -> npt.NDArray[Any]:
    """Return a table as a contiguous array: compiled code of one variant takes no other.

    Columns between the rows of a larger table belong to it, but nothing reads them, and padding may be written there.
    """
    if table.is_contiguous() or table.dim() == 1:
        return table.numpy()  # type: ignore[no-any-return]
    rows, columns = table.shape
    stride, step = table.stride()
    if step != 1 or stride < columns:
        return table.contiguous().numpy()  # type: ignore[no-any-return]
    wide: npt.NDArray[Any] = np.lib.stride_tricks.as_strided(table.numpy(), (rows, stride))
    return wide
