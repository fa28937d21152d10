"""Host proposers on their thread: snapshots, deadlines, order, errors.  Nothing here depends on speed."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from concurrent.futures import wait
from contextlib import nullcontext

import pytest

from specplug.errors import ContractError
from specplug.faults import LateDraft
from specplug.steps.handles import MOST_QUEUED, HostHandle
from specplug.testing.batches import make_batch
from specplug.types.request import EngineEvent, Lifecycle, Reference, Request, RequestEvent
from specplug.types.step import Draft, Outcome, Verdict
from specplug.types.tensors import to_host
from tests.steps.tools import VOCAB, Recorder, Rig, count_up, drafts, host_handle, int32, started

SOON = 0.01  # seconds; a deadline that a blocked proposer misses, however long it is
PATIENCE = 60.0  # seconds until a test that waits in vain fails
WAKE = EngineEvent("wake")
STARTED, UPDATED, FINISHED, ABORTED = Lifecycle.STARTED, Lifecycle.UPDATED, Lifecycle.FINISHED, Lifecycle.ABORTED


class Blocked(Recorder):
    """Works, or hangs at the beginning of one method while it is held there."""

    def __init__(self, write=count_up, **caps) -> None:
        super().__init__(write, needs_host=True, **caps)
        self._held_in, self._free = "", threading.Event()

    def hold(self, method: str) -> None:
        self._held_in = method
        self._free.clear()

    def release(self) -> None:
        self._held_in = ""
        self._free.set()

    def _begins(self, name: str) -> None:
        if name == self._held_in:
            assert self._free.wait(PATIENCE)

    def settle(self, handle: HostHandle) -> None:
        """Release the thread and wait until it has done everything that was queued before, and held back."""
        self.release()
        assert not wait(handle._unchecked, PATIENCE).not_done
        handle._catch_up()
        assert not wait(handle._unchecked, PATIENCE).not_done


@pytest.fixture
def blocked():
    proposer = Blocked()
    yield proposer
    proposer.release()


def work(*texts, draft_length=4, **kwargs):
    """Return a batch, its limits and an empty draft."""
    batch = make_batch(texts, vocab_size=VOCAB, **kwargs)
    draft = Draft.allocate(len(texts), draft_length)
    draft.reset(batch.lengths)
    return batch, batch.limits(draft_length), draft


def nothing() -> Verdict:
    """Return the verdict on a row without a draft."""
    return Verdict.build(int32([0]), Outcome(*[int32([0])] * 3))


def late(proposer: Blocked) -> HostHandle:
    """Return a handle whose first step is late: the proposer hangs."""
    handle = host_handle(proposer, SOON)
    proposer.hold("propose")
    with pytest.raises(LateDraft):
        handle.step(*work([1]))
    return handle


def notify(handle: HostHandle, kind: Lifecycle, name: str, *, slot: int, generation: int = 0) -> Request:
    """Send the event of a request that brings a reference; return the request."""
    request = Request(name, 1, 10, references=(Reference.of([1, 2, 3]),))
    handle.on_event(RequestEvent(kind, request, slot, generation))
    return request


def test_a_quick_host_proposer_runs_inline_on_the_engines_own_tensors():
    seen = []

    def write(batch, limits, draft):
        seen.extend((threading.current_thread(), batch, limits))
        draft.set_row(0, [3, VOCAB if batch.lengths[0] > 1 else 4], 0.5)

    proposer = Recorder(write, needs_host=True, inline=True)
    rig = started(Rig({"quick": proposer}), a=[1])
    batch = rig.batch()
    assert drafts(rig.stage.propose(batch, 4)) == [[3, 4]]
    assert seen[0] is threading.current_thread()
    assert seen[1].tokens is batch.tokens
    rig.verify({"a": 0})
    assert drafts(rig.draft()) == [[]]  # a malformed draft is not only cut, but reported
    assert rig.faults == {"quick": {"malformed": 1}}


def test_awaited_proposers_run_on_one_daemon_thread_of_their_own():
    """A daemon: a proposer that hangs must not keep the process from ending."""
    seen = []
    handle = host_handle(Recorder(lambda *_args: seen.append(threading.current_thread()), needs_host=True))
    for _ in range(2):
        handle.step(*work([1]))
    handle.close()
    (thread,) = set(seen)
    assert thread.daemon
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_host_proposer_waits_for_the_device_once_a_step(monkeypatch):
    """At steps that bring it no more tokens than a step can emit; a prompt takes a second copy."""
    transfers = []

    def counting(tensors):
        transfers.append(len(tensors))
        return to_host(tensors)

    monkeypatch.setattr("specplug.types.batch.to_host", counting)
    proposer = Recorder(needs_host=True, incremental=True)
    handle = host_handle(proposer)
    handle.step(*work([1, 2, 3], [4, 5, 6, 7], num_new=[1, 2]))
    assert proposer.handed == [{(0, 0): [3], (1, 0): [6, 7]}]
    assert len(transfers) == 1


class TestSnapshots:
    def test_a_late_job_sees_the_batch_as_it_was(self, blocked):
        handle = host_handle(blocked, SOON)
        blocked.hold("ingest")
        batch, limits, draft = work([1, 2, 3], [4, 5])
        with pytest.raises(LateDraft):
            handle.step(batch, limits, draft)
        batch.tokens.fill_(63)
        batch.lengths.fill_(1)
        limits.zero_()
        blocked.settle(handle)
        assert blocked.handed == [{(0, 0): [1, 2, 3], (1, 0): [4, 5]}]
        assert blocked.limits == [[4, 4]], "it has drafted by now"
        assert draft.token_ids.tolist() == [[-1] * 4] * 2, "what is late is never written"
        assert drafts(draft) == [[], []]

    def test_verdicts_are_snapshots_too(self):
        proposer = Blocked(learns=True)
        handle = host_handle(proposer)
        proposer.hold("on_event")
        handle.on_event(WAKE)  # keeps the thread busy, so that the verdict is looked at later
        after = make_batch([[1, 2, 3]], vocab_size=VOCAB)
        offered = Draft.allocate(1, 2, sources=("host",))
        offered.set_row(0, [3, 4], 0.5)
        verdict = Verdict.build(int32([2]), Outcome(int32([2]), int32([0]), int32([1])))
        handle.observe(after, offered, verdict)
        for tensor in (after.tokens, after.lengths, offered.token_ids, offered.lengths, verdict.accepted):
            tensor.fill_(7)
        verdict.emitted.fill_(7)
        proposer.settle(handle)
        [(seen, seen_draft, seen_verdict)] = proposer.observed
        assert seen.tokens[0, : int(seen.lengths)].tolist() == [1, 2, 3]
        assert (drafts(seen_draft), seen_draft.sources) == ([[3, 4]], ("host",))
        assert (seen_verdict.accepted.tolist(), seen_verdict.emitted.tolist()) == ([0], [1])


class TestDeadlines:
    def test_while_it_is_busy_nothing_waits_and_nothing_is_queued_but_events(self):
        blocked = Blocked(learns=True)
        handle, (batch, _, draft) = late(blocked), work([1])
        for _ in range(100):
            with pytest.raises(LateDraft):
                handle.check_ready()
            handle.observe(batch, draft, nothing())
        handle.on_event(WAKE)
        blocked.settle(handle)
        assert blocked.calls == ["ingest", "propose", "on_event"]

    def test_what_a_late_job_raised_shows_at_the_next_step(self, blocked):
        blocked.fails = {"propose"}
        handle = late(blocked)
        blocked.settle(handle)
        blocked.fails = set()
        handle._deadline = PATIENCE
        with pytest.raises(ZeroDivisionError, match="planted in propose"):
            handle.step(*work([1, 2]))
        assert len(blocked.handed) == 2  # that step's tokens were handed over all the same
        handle.step(*work([1, 2]))

    @pytest.mark.parametrize("raises", [False, True])
    def test_while_nothing_drafts_no_more_is_kept_than_running_requests_need(self, blocked, raises):
        """However many requests pass without a step: speculation is off, or the policy plans none."""
        handle, references = host_handle(blocked, SOON), []
        blocked._called = lambda _name: 1 / 0 if raises else None
        blocked.events = deque(maxlen=1)
        for number in range(1000):
            request = notify(handle, STARTED, f"passing {number}", slot=number % 4, generation=number)
            references.append(weakref.ref(request.references[0].token_ids))
            del request
            notify(handle, FINISHED, f"passing {number}", slot=number % 4, generation=number)
            wait(handle._unchecked, PATIENCE)
        gc.collect()
        assert sum(reference() is not None for reference in references) <= MOST_QUEUED
        assert len(handle._unchecked) <= MOST_QUEUED + 1
        blocked._called = lambda _name: None
        blocked.settle(handle)
        handle._deadline = PATIENCE
        with pytest.raises(ZeroDivisionError) if raises else nullcontext():  # the first failure is kept for it
            handle.step(*work([1]))

    def test_while_it_hangs_no_more_is_kept_than_running_requests_need(self, blocked):
        """It never receives requests that start and end meanwhile, and their references are freed."""
        handle, kept = host_handle(blocked, SOON), []
        notify(handle, STARTED, "a", slot=0)
        notify(handle, STARTED, "b", slot=1)
        blocked.hold("propose")
        with pytest.raises(LateDraft):
            handle.step(*work([1]))
        notify(handle, FINISHED, "a", slot=0)
        for number in range(1, 100):
            request = notify(handle, STARTED, f"passing {number}", slot=0, generation=number)
            kept.append(weakref.ref(request.references[0].token_ids))
            del request
            handle.on_event(WAKE)
            notify(handle, ABORTED if number % 2 else FINISHED, f"passing {number}", slot=0, generation=number)
        notify(handle, UPDATED, "b", slot=1, generation=1)
        notify(handle, UPDATED, "b", slot=1, generation=2)
        notify(handle, STARTED, "c", slot=0, generation=100)
        gc.collect()
        assert sum(ref() is not None for ref in kept) == 0
        blocked.settle(handle)
        stated = [(it.kind, it.request.request_id, it.slot, it.generation) if hasattr(it, "slot") else it.kind
                for it in blocked.events]  # fmt: skip
        assert stated == [
            (STARTED, "a", 0, 0), (STARTED, "b", 1, 0),
            (FINISHED, "a", 0, 0), "wake", (UPDATED, "b", 1, 2), (STARTED, "c", 0, 100),
        ]  # fmt: skip

    @pytest.mark.parametrize(("ending", "calls"), [("step", ["ingest", "propose"]), ("close", ["close"])])
    def test_what_was_held_back_comes_before_the_next_step_and_the_end(self, blocked, ending, calls):
        handle = late(blocked)
        handle.on_event(WAKE)
        blocked.release()
        assert not wait([handle._late], PATIENCE).not_done
        handle._deadline = PATIENCE
        handle.close() if ending == "close" else handle.step(*work([1, 2]))
        assert blocked.calls[2:] == ["on_event", *calls]

    @pytest.mark.parametrize("incremental", [False, True])
    def test_in_the_pipeline_no_token_is_missed_and_other_rows_go_on(self, incremental):
        """Steps sit out while the thread is busy; their tokens, and those of rows that joined, come with the next.

        Requests that came and went meanwhile leave no trace.
        """
        blocked = Blocked(incremental=incremental)
        rig = Rig({"slow": blocked, "quick": Recorder()}, deadline=SOON, max_consecutive=100)
        handle = rig.handles[0]
        rig.start("a", [1, 2])
        rig.start("b", [10], proposer="quick")
        blocked.hold("propose")
        assert drafts(rig.draft()) == [[], [11, 12, 13, 14]]
        rig.verify({"a": 1, "b": 0}, emitted={"a": [3, 4], "b": [11]})
        for number in range(20):
            rig.start("passing", [30, 31])
            rig.draft(names=["passing"])
            if number % 2:
                rig.verify({"passing": 0}, emitted={"passing": [32]})
            rig.leave("passing")
        rig.start("c", [20], slot=3)
        assert drafts(rig.draft()) == [[], [12, 13, 14, 15], []]
        rig.verify({"a": 0, "b": 0, "c": 0}, emitted={"a": [5], "b": [12], "c": [21]})
        assert rig.faults == {"slow": {"late": 22}}
        blocked.settle(handle)
        handle._deadline = PATIENCE
        assert drafts(rig.draft()) == [[6, 7, 8, 9], [13, 14, 15, 16], [22, 23, 24, 25]]
        a, b, c = (0, 0), (1, 0), (3, 0)
        assert blocked.handed == [{a: [1, 2], b: [10]}, {a: [3, 4, 5], b: [11, 12], c: [20, 21]}]
        assert [it.request.request_id for it in blocked.events if isinstance(it, RequestEvent)] == ["a", "b", "c"]
        rig.stage.close()


class TestErrors:
    @pytest.mark.parametrize(
        ("write", "message"),
        [
            (lambda b, m, d: d.set_row(0, [1, VOCAB], 0.5), rf"token ids \[{VOCAB}\].*expected ids in \[0, {VOCAB}\)"),
            (lambda b, m, d: d.set_row(0, [-5], 0.5), r"token ids \[-5\]"),
            (lambda b, m, d: d.lengths.fill_(-1), r"lengths \[-1\]"),
            (lambda b, m, d: (d.token_ids.zero_(), d.lengths.fill_(9)), r"lengths \[9\].*lengths in \[0, 4\]"),
            (lambda b, m, d: d.token_ids.resize_(1, 2), r"token_ids has been resized or moved; found \(1, 2\) on cpu"),
            (lambda b, m, d: d.lengths.resize_(0), r"Draft.lengths is malformed; found \(0,\)"),
            (lambda b, m, d: d.set_row(0, [1] * 5, 0.5), "draft too long"),
        ],
    )
    def test_malformed_drafts_are_named(self, write, message):
        batch, limits, draft = work([1])
        with pytest.raises(ContractError, match=message):
            host_handle(Recorder(write, needs_host=True)).step(batch, limits, draft)
        assert drafts(draft) == [[]]


class TestClosing:
    def test_a_proposer_that_hangs_is_left_behind(self, blocked):
        handle = late(blocked)
        handle._closing = SOON
        with pytest.raises(TimeoutError, match=r"did not close within 0.01 s"):
            handle.close()
        assert "close" not in blocked.calls

    def test_what_is_queued_is_run_first_and_its_errors_show(self):
        proposer = Recorder(needs_host=True)
        proposer.fails = {"on_event"}
        handle = host_handle(proposer)
        handle.on_event(WAKE)
        with pytest.raises(ZeroDivisionError, match="planted in on_event"):
            handle.close()
        assert proposer.calls == ["on_event", "close"]
