"""StepTracer: joins what a draft stage drafts, and what becomes of it, to the rows of a trace."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import torch

from specplug.counts import NO_SOURCE
from specplug.faults import FaultGuard, FaultSink
from specplug.trace import TraceRow, TraceWriter
from specplug.types.request import Event, Lifecycle, Request, RequestEvent
from specplug.types.step import Draft, EngineBatch, StepPlan, Verdict


class StepTracer:
    """Writes a row for each request that a step gave tokens or had a draft of.  Reads back from the device.

    Args:
        trace: the file, closed with this object.
        sink: counts its faults: a full disk must not end the engine.
    """

    def __init__(self, trace: TraceWriter, sink: FaultSink) -> None:
        self._trace = trace
        self._guard = FaultGuard("trace", sink=sink)
        self._steps = 0
        self._offers: dict[str, tuple[int, int, str]] = {}  # what is allowed and found, and why nothing is, if so
        self._ends: dict[str, int] = {}  # the length of each request's text, as far as it is written

    def drafted(self, batch: EngineBatch, draft: Draft, plan: StepPlan, *, failed: bool = False) -> None:
        """Note the drafts of a step before the policy trims them, and that a proposer failed."""
        self._guard.call(partial(self._note, batch, draft, plan, "failed" if failed else "nothing found"))

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

    def _note(self, batch: EngineBatch, draft: Draft, plan: StepPlan, why: str) -> None:
        columns = torch.stack([draft.lengths, batch.room, batch.sampled], 1).tolist()
        for (name, request), (found, room, sampled) in zip(_requests(batch), columns, strict=True):
            cap = None if request is None else request.options.cap
            planned = plan.draft_length_for(name)
            allowed = max(0, min(planned if cap is None else min(planned, cap), room - 1))
            whys = {"trimmed": found, "opted out": cap == 0, plan.why or "not planned": not planned}
            whys["last token"] = not allowed
            if sampled:
                self._offers[name] = allowed, found, next((each for each, holds in whys.items() if holds), why)

    def _write(self, batch: EngineBatch, draft: Draft, verdict: Verdict, forced: tuple[Draft, Verdict] | None) -> None:
        rows = self._rows(batch, draft, verdict, self._texts(batch, verdict))
        if forced is not None:
            rows += self._rows(batch, *forced, [(0, ())] * batch.batch_size)
        self._trace.write(*rows)

    def _texts(self, batch: EngineBatch, verdict: Verdict) -> list[tuple[int, tuple[int, ...]]]:
        """Return where the unwritten text of each row starts, and the text up to its stop."""
        columns = torch.stack([batch.lengths, verdict.emitted, verdict.after_stop], 1).tolist()
        starts = []
        for (name, request), (length, emitted, _) in zip(_requests(batch), columns, strict=True):
            begin = length - emitted if request is None else request.prompt_length
            starts.append(min(max(self._ends.get(name, 0), begin), length))
        num_new = batch.lengths - torch.tensor(starts, dtype=batch.lengths.dtype).to(batch.device)
        newest = batch.with_new(num_new, ()).to_host(newest_only=True).tokens.tolist()
        texts = []
        for (name, _), start, (length, _, after_stop), tokens in zip(
            _requests(batch), starts, columns, newest, strict=True
        ):
            self._ends[name] = max(start, length - after_stop)
            texts.append((start, tuple(tokens[: self._ends[name] - start])))
        return texts

    def _rows(
        self, batch: EngineBatch, draft: Draft, verdict: Verdict, texts: list[tuple[int, tuple[int, ...]]]
    ) -> list[TraceRow]:
        counted = (verdict.proposed, verdict.verified, verdict.accepted, verdict.cut_by_grammar)
        counts = [draft.lengths, draft.base_len, *counted, verdict.emitted, verdict.after_stop]
        columns = torch.stack([count.long() for count in counts], 1).tolist()
        ids = draft.token_ids.tolist()
        levels = draft.confidence.tolist()
        sources = draft.source.tolist()
        parents = [[]] * len(ids) if draft.parents is None else draft.parents.tolist()
        named = dict(enumerate(draft.sources))
        now = round(time.time(), 4)
        rows = []
        for row, (name, request) in enumerate(_requests(batch)):
            (start, emitted), (length, base_len, *counted) = texts[row], columns[row]
            if not (length or emitted) or (counted[4] and counted[5] >= counted[4]):  # the request had ended before
                continue
            allowed, found, why = self._offers.pop(name, (0, 0, "prefill"))
            tree = tuple(parents[row][:length])
            made = TraceRow(
                request=name,
                tenant="" if request is None else request.tenant or "",
                step=self._steps,
                time=now,
                batch=batch.batch_size,
                start=start,
                emitted=emitted,
                base_len=base_len,
                allowed=allowed,
                found=max(found, length),
                ids=tuple(ids[row][:length]),
                confidence=tuple(round(level, 6) for level in levels[row][:length]),
                source=tuple(named.get(it, NO_SOURCE) for it in sources[row][:length]),
                parents=None if tree in ((), tuple(range(-1, length - 1))) else tree,
                verified=counted[1],
                accepted=counted[2],
                reason=_reason(*counted) if length else why,
            )
            if made.parents and made.reason == "rejected" and (made.accepted_nodes() or [-1])[-1] not in made.parents:
                made = replace(made, reason="accepted")  # a whole path
            rows.append(made)
        return rows


def _requests(batch: EngineBatch) -> list[tuple[str, Request | None]]:
    """Return a name of each row's request, and the request if it is known."""
    pairs = zip(batch.slots.tolist(), batch.generations.tolist(), strict=True)
    names = batch.request_ids or [f"slot {slot}.{generation}" for slot, generation in pairs]
    return list(zip(names, batch.requests or [None] * len(names), strict=True))


def _reason(proposed: int, verified: int, accepted: int, cut_by_grammar: int, emitted: int, after_stop: int) -> str:
    """Return why no more than `accepted` draft tokens were kept: see `TraceRow.reason`."""
    if after_stop or (verified and emitted <= accepted):  # otherwise a step emits one more token
        return "stopped"
    if accepted == proposed:
        return "accepted"
    if accepted < verified:
        return "rejected"
    return "grammar" if cut_by_grammar else "never verified"
