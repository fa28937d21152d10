"""One thread that runs jobs in order, and that nobody ever has to wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import torch

Job = Callable[[], None]


class Worker:
    """Runs jobs one after the other on a thread of its own, in inference mode like the engine's thread.

    The thread is a daemon: unlike those of `ThreadPoolExecutor`, which the interpreter joins at exit, a job that hangs
    cannot keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[None]:
        """Queue a job; the future tells when it is done and what it raised."""
        done: Future[None] = Future()
        self._jobs.put((job, done))
        return done

    def stop(self) -> None:
        """Let the thread end when it has run what is queued.  Does not wait; jobs submitted later never run."""
        self._jobs.put(None)

    def _run(self) -> None:
        with torch.inference_mode():
            while (entry := self._jobs.get()) is not None:
                job, done = entry
                try:
                    job()
                except KeyboardInterrupt as error:  # nobody's Ctrl-C: signals interrupt the main thread alone
                    done.set_exception(RuntimeError(f"KeyboardInterrupt on a plug-in's thread: {error}"))
                except BaseException as error:  # handed to whoever asks the future
                    done.set_exception(error)
                else:
                    done.set_result(None)
