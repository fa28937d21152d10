"""A thread that runs jobs in order and that no caller waits for, and the events held back while it hangs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import torch

from specplug.errors import describe
from specplug.types.request import BEGINS, EngineEvent, Event, RequestEvent

Job = Callable[[], None]


class JobThread:
    """Runs jobs one after the other on its own thread, in inference mode like the engine's thread.

    The thread is a daemon.  Unlike with `ThreadPoolExecutor`, whose threads the interpreter joins at exit, a job that
    hangs cannot keep the process from exiting.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[None]:
        """Queue a job; the returned future completes with the job and holds its exception."""
        done: Future[None] = Future()
        self._jobs.put((job, done))
        return done

    def stop(self) -> None:
        """Let the thread end after the queued jobs.  Does not wait; jobs submitted later never run."""
        self._jobs.put(None)

    def _run(self) -> None:
        with torch.inference_mode():
            while (entry := self._jobs.get()) is not None:
                job, done = entry
                try:
                    job()
                except KeyboardInterrupt as error:  # not a real Ctrl-C: signals interrupt only the main thread
                    done.set_exception(RuntimeError(f"on a plug-in's thread: {describe(error)}"))
                except BaseException as error:  # the future passes it on
                    done.set_exception(error)
                else:
                    done.set_result(None)


class PendingEvents:
    """Events in order, without those that later events make redundant.

    A request that starts and ends while events are held back leaves no event: the proposer never sees it, which does
    not change its drafts.  At most one end and one start remain per slot, and one engine event of each kind.
    """

    def __init__(self) -> None:
        self._events: dict[object, Event] = {}

    def add(self, event: Event) -> None:
        """Add an event."""
        if isinstance(event, EngineEvent):
            self._put(event.kind, event)
            return
        begin = (event.slot, "begin")
        end = (event.slot, "end")
        begun = self._events.get(begin)
        if event.kind in BEGINS:
            self._put(begin, event)
        elif isinstance(begun, RequestEvent) and begun.generation == event.generation:
            del self._events[begin]
        elif end not in self._events:  # the proposer knows of one request in a slot
            self._put(end, event)

    def take(self) -> list[Event]:
        """Return all events and clear them."""
        events = list(self._events.values())
        self._events = {}
        return events

    def _put(self, key: object, event: Event) -> None:
        self._events.pop(key, None)  # reinsert it at the end
        self._events[key] = event
