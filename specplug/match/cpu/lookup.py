"""Lookup: drafts from own texts, references, responses and corpora, weighting matches by observed hit rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specplug.errors import ContractError
from specplug.match.cpu.corpus_index import MOST_NAMED, CorpusIndex, IdTable, IndexSegment
from specplug.match.cpu.host_step import LookupHostStep, ingest_at, propose_at
from specplug.match.cpu.parallel import FEWEST_ROWS, MOST_THREADS, ThreadPool
from specplug.match.cpu.records import Record, address, record
from specplug.match.cpu.responses import Responses
from specplug.match.cpu.rows import SlotStates, tree, workspace
from specplug.match.cpu.tables import Tables
from specplug.match.cpu.texts import NO_TEXT, Texts, Tokens
from specplug.match.options import LookupSettings
from specplug.types.draft import Draft
from specplug.types.host_step import StepArguments

SOURCES = ("own text", "reference", "response memory", "corpus")
"""Names of the sources that `Lookup.propose` reports per token."""

RESPONSE_CONTEXT = 8
"""Tokens before a response that are stored with it; they are matched and never drafted."""

_CONSIDERED_PER_NODE = 6


class Lookup:
    """Drafts for the texts of S slots, at most C tokens each with references, N tokens at a time.

    `engine_tokens` is G, the tokens of the engine's own drafter that drafts may begin with; their source is numbered
    `engine_source`.  `threads` is the most threads that share a large batch, whatever the settings say; drafts do not
    depend on it.

    All memory is on the CPU.  Drafts depend only on the texts and their history, not on the order of rows.  Two threads
    must not call it at once; the kernels release the GIL.  `ingest` and `propose` share large batches with the threads
    of a `ThreadPool`, which start with the first such batch and end with `close`.

    `host_step` is the exception: its C function may run beside `start`, `begin`, `remember`, `load` and `clear`, if
    these are called for slots that are in no batch of the function.
    """

    def __init__(
        self,
        max_slots: int,
        capacity: int,
        draft_length: int,
        settings: LookupSettings,
        *,
        trees: bool,
        threads: int = 1,
        engine_tokens: int = 0,
        engine_source: int = 0,
    ) -> None:
        self._settings, self._engine_source = settings, engine_source
        considered = _CONSIDERED_PER_NODE * (draft_length + 1) if trees else draft_length
        self.texts = Texts(max_slots, capacity, settings.max_n)
        self.responses = Responses(settings.memory_tokens, settings.max_n)
        self.rows = SlotStates(max_slots, considered, engine_tokens, held=0 if trees else draft_length)
        self.tables = Tables()
        self._default = Tables()
        self._starts = np.zeros(max_slots, np.int32)
        self._draft_length, self._considered, self._trees = draft_length, considered, trees
        self._groups: dict[str, list[int]] = {}
        self._group_of: dict[int, str] = {}
        self.pool = ThreadPool(threads)
        self._workspaces = [self._workspace()]
        self._prefill_scratch = self._workspace(), ThreadPool(1)
        self._numbers, self.host_step = IdTable(), LookupHostStep(self.rows, self.responses)
        self.load({})

    def _workspace(self) -> tuple[Record, Record, Record]:
        """Return what each thread has for itself: a view of the texts, a workspace, and a tree."""
        own = workspace(self._settings.max_n, self._draft_length, trees=self._trees)
        return self.texts.view(), own, tree(self._draft_length, self._considered)

    def corpus_index_of(self, tenants: Mapping[str, Sequence[IndexSegment]]) -> CorpusIndex:
        """Return a corpus index of these segments, by tenant, for `load`; on any thread, but only one at a time."""
        return CorpusIndex(tenants, self._numbers)

    def load(self, corpus_index: CorpusIndex | Mapping[str, Sequence[IndexSegment]]) -> None:
        """Replace the segments to draft from; call it between two steps.  No text is copied."""
        corpus_index = corpus_index if isinstance(corpus_index, CorpusIndex) else self.corpus_index_of(corpus_index)
        self._use(corpus_index, leaves_index=True)
        self.corpus_index = corpus_index

    def _use(self, corpus_index: CorpusIndex, *, leaves_index: bool) -> None:
        """Make a state for each thread; they differ in their workspaces."""
        addresses = np.zeros(MOST_THREADS, np.int64)
        states = [self._state(it, self.pool, self.tables, corpus_index, addresses) for it in self._workspaces]
        addresses[: len(states)] = [address(state) for state in states]
        self.host_step.use(states[0], leaves_index=leaves_index)
        self._states = states

    def _state(
        self,
        own: tuple[Record, Record, Record],
        pool: ThreadPool,
        tables: Tables,
        corpus_index: CorpusIndex,
        addresses: npt.NDArray[np.int64],
    ) -> Record:
        """Return all memory of the kernels in one record; `addresses`: of the states of the pool's threads."""
        settings, (texts, scratch, growing) = self._settings, own
        return record(
            texts=texts,
            memory=self.responses.record,
            corpus_index=corpus_index.view(),
            rows=self.rows.record,
            tables=tables.record,
            workspace=scratch,
            tree=growing,
            starts=self._starts,
            engine_source=self._engine_source,
            max_n=settings.max_n,
            min_n=settings.min_n,
            min_survival=settings.min_survival,
            pool=pool.record,
            of_threads=addresses,
        )

    @property
    def state(self) -> Record:
        """The state that kernels take."""
        return self._states[0]

    def start_threads(self, rows: int = FEWEST_ROWS) -> None:
        """Start the threads, with a workspace each, if there are to be any for batches of so many rows."""
        if not self.pool.is_due(rows):
            return
        more = self.pool.threads - len(self._workspaces)
        self._workspaces += [self._workspace() for _ in range(more)]
        self._use(self.corpus_index, leaves_index=False)
        self.pool.start(self.state)

    def close(self) -> None:
        """End the threads; without them the lookup still works."""
        self.pool.close()

    def start(
        self,
        slot: int,
        *,
        owner: str | None = None,
        references: Sequence[Tokens] = (),
        tenant: str | None = None,
        corpora: Sequence[str] = (),
    ) -> None:
        """Begin a text in a slot.

        Args:
            slot: the slot; its previous text is removed.
            owner: the owner of the responses to draft from, whose hit rates by token are used; None for no responses.
            references: [n] int32 each, additional text to draft from; if there is no room for all, the last are dropped
                first.
            tenant: the tenant of the segments to draft from; None for no segments.
            corpora: the tenant's corpora to draft from first.  Tenants and corpora that were never loaded, and corpora
                beyond `MOST_NAMED`, are ignored.
        """
        self.leave(slot)
        # Clear first, which cannot fail: after an error the slot must not keep its previous request's state.
        self.rows.clear(slot, 0)
        self.texts.clear(slot)
        self._starts[slot] = 0
        text = self._before(references)
        number, named = self._numbers.known(tenant, corpora)
        self.texts.extend(slot, text)
        self._starts[slot] = text.size
        self.rows.clear(slot, 0 if owner is None else self.responses.owner(owner), number, named[:MOST_NAMED])

    def text_of(self, slot: int) -> Tokens:
        """Return a view of a slot's own text, [n] int32."""
        return self.texts.text[slot, self._starts[slot] : self.texts.lengths[slot]]

    def join(self, slot: int, group: str, prompt_length: int) -> None:
        """Let a slot and the others of a group draft from each other's outputs, until `leave` or another text.

        Args:
            slot: the slot; its text so far is ingested, and all of it comes from the thread that steps or from before.
            group: the group.
            prompt_length: tokens of its prompt, which the group has in common.
        """
        members = self._groups.setdefault(group, [])
        shared = int(self._starts[slot]) + prompt_length
        self.rows.join(slot, members[0] if members else slot, shared, self.responses.flag)
        self._group_of[slot] = group
        members.append(slot)

    def leave(self, slot: int) -> None:
        """Take a slot out of its group, if it is in one."""
        group = self._group_of.pop(slot, None)
        if group is not None:
            self.rows.leave(slot, self.responses.flag)
            self._groups[group].remove(slot)
            if not self._groups[group]:
                del self._groups[group]

    def _before(self, references: Sequence[Tokens]) -> Tokens:
        """Return the text before a slot's own text: the references that fit, with NO_TEXT after each."""
        room, parts = self.texts.capacity // 2, [np.zeros(0, np.int32)]
        for reference in references:  # cut before copying: a reference may be part of a large corpus
            parts += [np.asarray(reference[:room], np.int32), np.asarray([NO_TEXT], np.int32)]
            room -= len(reference[:room]) + 1
            if room <= 0:
                break
        text = np.concatenate(parts)[: self.texts.capacity // 2]
        text[-1:] = NO_TEXT
        return text

    def ingest(
        self, slots: Tensor, table: Tensor, table_rows: Tensor, lengths: Tensor, num_new: Tensor, first: Tensor | None
    ) -> None:
        """Ingest the rows' newest tokens and learn from them; see `specplug.match.cpu.steps.learn_from`.

        All tensors are in host memory: `slots` and `table_rows` are [B] int64, the others int32.
        """
        slots, table_rows = slots.contiguous(), table_rows.contiguous()
        lengths, num_new = lengths.contiguous(), num_new.contiguous()
        window = None if first is None else first.contiguous()
        num_rows, num_columns = table.shape
        stride, step = table.stride()
        if step != 1 or stride < num_columns:  # a single row may have any stride
            table, stride = table.contiguous(), num_columns
        self.start_threads(len(slots))
        arguments = StepArguments(
            batch_size=len(slots),
            slots=slots.data_ptr(),
            table=table.data_ptr(),
            num_rows=num_rows,
            stride=stride,
            table_rows=table_rows.data_ptr(),
            lengths=lengths.data_ptr(),
            num_new=num_new.data_ptr(),
            first=0 if window is None else window.data_ptr(),
        )
        ingest_at(self.state, arguments.address)

    def propose(self, slots: Tensor, limits: Tensor, draft: Draft, engine_ids: Tensor | None = None) -> None:
        """Fill a draft in host memory.

        Args:
            slots: [B] int64.
            limits: [B] int32.
            engine_ids: [B, G] int32, the draft of the engine's own drafter; None if it has none.
            draft: to be filled; with trees, if the lookup drafts them and the draft can hold them.

        Raises:
            ContractError: the draft's tensors are not views of one buffer.
        """
        slots, limits, ids = slots.contiguous(), limits.contiguous(), draft.token_ids
        parents, strides = draft.parents if self._trees else None, ids.stride()
        if not draft.lengths.is_contiguous() or (
            ids.shape[1] > 1
            and not (
                strides[1] == 1
                and draft.confidence.stride() == draft.source.stride() == strides
                and (parents is None or parents.stride() == strides)
            )
        ):
            raise ContractError.build("the draft's tensors lie apart", who="Lookup", expected="views of one buffer")
        self.start_threads(len(slots))
        arguments = StepArguments(
            batch_size=len(slots),
            slots=slots.data_ptr(),
            limits=limits.data_ptr(),
            engine_ids=0 if engine_ids is None else engine_ids.data_ptr(),
            num_engine_ids=0 if engine_ids is None else engine_ids.shape[1],
            ids=ids.data_ptr(),
            confidence=draft.confidence.data_ptr(),
            draft_stride=strides[0],
            draft_lengths=draft.lengths.data_ptr(),
            sources=draft.source.data_ptr(),
            parents=0 if parents is None else parents.data_ptr(),
        )
        propose_at(self.state, arguments.address)

    def begin(self, slot: int, tokens: Tokens, most: int) -> None:
        """Ingest the first tokens of a text that has been started; it will have at most `most`.

        The text's trees get their final size now, so that no later step has to rebuild them.
        """
        start = int(self._starts[slot])
        self.texts.reserve(slot, start + most)
        if not len(tokens):
            return
        scratch, pool = self._prefill_scratch
        own = self._state(scratch, pool, self._default, self.corpus_index, np.zeros(MOST_THREADS, np.int64))
        slots, rows = np.array([slot]), np.zeros(1, np.int64)
        table, count = np.ascontiguousarray(tokens, np.int32), np.array([len(tokens)], np.int32)
        arguments = StepArguments(
            batch_size=1,
            slots=slots.ctypes.data,
            table=table.ctypes.data,
            num_rows=1,
            stride=table.size,
            table_rows=rows.ctypes.data,
            lengths=count.ctypes.data,
            num_new=count.ctypes.data,
        )
        ingest_at(own, arguments.address)

    def remember(self, slot: int, owner: str, begin: int, end: int) -> None:
        """Store tokens `begin` to `end` of a slot's own text as a response of `owner`."""
        text, start = self.texts.text[slot], int(self._starts[slot])
        end = min(end, int(self.texts.lengths[slot]) - start)
        if self._settings.memory_tokens and end - begin > 1:
            context = text[start + max(0, begin - RESPONSE_CONTEXT) : start + begin]
            response, number = text[start + begin : start + end], self.responses.owner(owner)
            self.responses.add(number, context, response)

    def clear_responses(self) -> None:
        """Remove all responses."""
        self.responses.clear()
