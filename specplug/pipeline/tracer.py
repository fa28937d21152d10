"""StepTracer: joins what a draft stage drafts, and what becomes of it, to the rows of a trace."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from specplug.faults import FaultGuard, FaultSink
from specplug.metrics import NO_SOURCE
from specplug.trace import TraceRow, TraceWriter
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from specplug.types.request import Event, Lifecycle, RequestEvent
from specplug.types.verdict import Verdict


class _Offer(NamedTuple):
    """What a step could draft of a row, what it found, and why it drafts nothing, if so."""

    allowed: int
    found: int
    why: str


class StepTracer:
    """Writes a row for each request that a step gave tokens or had a draft of.  Reads back from the device.

    Args:
        trace: the file, closed with this object.
        sink: counts its faults: a full disk must not end the engine.
    """

    def __init__(self, trace: TraceWriter, sink: FaultSink) -> None:
        self._trace, self._guard = trace, FaultGuard("trace", sink=sink)
        self._steps = 0
        self._offers: dict[str, _Offer] = {}
        self._ends: dict[str, int] = {}  # the length of each request's text, as far as it is written

    def drafted(self, batch: EngineBatch, draft: Draft, plan: StepPlan, *, failed: bool = False) -> None:
        """Note the drafts of a step before the policy trims them, and that a proposer failed."""
        self._guard.call(partial(self._note, batch, draft, plan, failed))

    def verified(
        self, batch: EngineBatch, draft: Draft, verdict: Verdict, forced: tuple[Draft, Verdict] | None = None
    ) -> None:
        """Write the rows of a step: of the drafts, and of the tokens that grammars `forced` after them.

        Drafts and verdicts are in the row order of `batch`, the batch after verification.
        """
        if self._guard.admits_step():
            self._guard.step(partial(self._write, batch, draft, verdict, forced))
        self._steps += 1

    def on_event(self, event: Event) -> None:
        """Forget a request that ends."""
        if isinstance(event, RequestEvent) and event.kind in (Lifecycle.FINISHED, Lifecycle.ABORTED):
            self._ends.pop(event.request.request_id, None)
            self._offers.pop(event.request.request_id, None)

    def close(self) -> None:
        """Close the file."""
        self._guard.call(self._trace.close)

    def _note(self, batch: EngineBatch, draft: Draft, plan: StepPlan, failed: bool) -> None:
        columns = torch.stack([draft.lengths, batch.room, batch.sampled], 1).tolist()
        for row, (name, (found, room, sampled)) in enumerate(zip(_names(batch), columns, strict=True)):
            if not sampled:
                continue
            request = None if batch.requests is None else batch.requests[row]
            cap = None if request is None else request.options.cap
            planned = plan.draft_length_for(name)
            allowed = max(0, min(planned if cap is None else min(planned, cap), room - 1))
            why = "failed" if failed else "nothing found"
            if found:
                why = "trimmed"
            elif cap == 0:
                why = "opted out"
            elif not planned:
                why = plan.why or "not planned"
            elif not allowed:
                why = "last token"
            self._offers[name] = _Offer(allowed, found, why)

    def _write(self, batch: EngineBatch, draft: Draft, verdict: Verdict, forced: tuple[Draft, Verdict] | None) -> None:
        rows = self._rows(batch, draft, verdict, self._texts(batch, verdict))
        if forced is not None:
            rows += self._rows(batch, *forced, [(0, ())] * batch.batch_size)
        self._trace.write(*rows)

    def _texts(self, batch: EngineBatch, verdict: Verdict) -> list[tuple[int, tuple[int, ...]]]:
        """Return where the unwritten text of each row starts, and the text up to its stop."""
        columns = torch.stack([batch.lengths, verdict.emitted, verdict.after_stop], 1).tolist()
        starts = []
        for row, (name, (length, emitted, _)) in enumerate(zip(_names(batch), columns, strict=True)):
            begin = length - emitted if batch.requests is None else batch.requests[row].prompt_length
            starts.append(min(max(self._ends.get(name, 0), begin), length))
        num_new = batch.lengths - torch.tensor(starts, dtype=batch.lengths.dtype).to(batch.device)
        newest = batch.handed(num_new, ()).to_host(newest_only=True).tokens.tolist()
        texts = []
        for name, start, (length, _, after_stop), tokens in zip(_names(batch), starts, columns, newest, strict=True):
            self._ends[name] = max(start, length - after_stop)
            texts.append((start, tuple(tokens[: self._ends[name] - start])))
        return texts

    def _rows(
        self, batch: EngineBatch, draft: Draft, verdict: Verdict, texts: list[tuple[int, tuple[int, ...]]]
    ) -> list[TraceRow]:
        counts, per_token = _read(draft, verdict), [draft.token_ids, draft.confidence, draft.source]
        ids, levels, sources = (tensor.tolist() for tensor in per_token)
        parents = None if draft.parents is None else draft.parents.tolist()
        named, now, rows = dict(enumerate(draft.sources)), round(time.time(), 4), []
        for row, (name, (start, emitted), (length, base_len, *fate)) in enumerate(
            zip(_names(batch), texts, counts, strict=True)
        ):
            if not (length or emitted) or (fate[4] and fate[5] >= fate[4]):  # the request had ended before
                continue
            request = None if batch.requests is None else batch.requests[row]
            offer = self._offers.pop(name, _Offer(0, 0, "prefill"))
            tree = None if parents is None else parents[row][:length]
            made = TraceRow(
                request=name,
                tenant="" if request is None else request.tenant or "",
                step=self._steps,
                time=now,
                batch=batch.batch_size,
                start=start,
                emitted=emitted,
                base_len=base_len,
                allowed=offer.allowed,
                found=max(offer.found, length),
                ids=tuple(ids[row][:length]),
                confidence=tuple(round(level, 6) for level in levels[row][:length]),
                source=tuple(named.get(it, NO_SOURCE) for it in sources[row][:length]),
                parents=None if tree is None or tree == list(range(-1, length - 1)) else tuple(tree),
                verified=fate[1],
                accepted=fate[2],
                reason=_reason(*fate) if length else offer.why,
            )
            rows.append(replace(made, reason="accepted") if _ends_at_leaf(made) else made)
        return rows


def _ends_at_leaf(row: TraceRow) -> bool:
    """Return whether a whole path of a tree was accepted, so that nothing of it was rejected."""
    return (
        row.reason == "rejected" and row.parents is not None and (row.accepted_nodes() or [-1])[-1] not in row.parents
    )


def _names(batch: EngineBatch) -> tuple[str, ...]:
    """Return a name of each row's request."""
    if batch.request_ids is not None:
        return batch.request_ids
    pairs = zip(batch.slots.tolist(), batch.generations.tolist(), strict=True)
    return tuple(f"slot {slot}.{generation}" for slot, generation in pairs)


def _read(draft: Draft, verdict: Verdict) -> list[list[int]]:
    """Return each row's draft length and base, and the arguments of `_reason`."""
    names = ("proposed", "verified", "accepted", "cut_by_grammar", "emitted", "after_stop")
    columns: list[Tensor] = [draft.lengths, draft.base_len, *(getattr(verdict, name) for name in names)]
    rows: list[list[int]] = torch.stack([column.long() for column in columns], 1).tolist()
    return rows


def _reason(proposed: int, verified: int, accepted: int, cut_by_grammar: int, emitted: int, after_stop: int) -> str:
    """Return why no more than `accepted` draft tokens were kept: see `TraceRow.reason`."""
    if after_stop or (verified and emitted <= accepted):  # otherwise a step emits one more token
        return "stopped"
    if accepted == proposed:
        return "accepted"
    if accepted < verified:
        return "rejected"
    return "grammar" if cut_by_grammar else "never verified"
