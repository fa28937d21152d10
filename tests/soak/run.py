"""A soak of one running server: traffic, faults and the watch over its processes, together."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import httpx

from specplug.operator.status import counting_parts
from tests.soak import client, leaks
from tests.soak.faults import Faults
from tests.soak.judge import Judge
from tests.soak.report import Report
from tests.soak.targets import Target
from tests.soak.traffic import Request, Traffic
from tests.soak.truth import Prompt, Truth

Plant = Literal["token", "crash", "connections"]
"""A failure on purpose, which a run must find: a wrong token in a known answer, a process that is killed, connections
that stay open."""

KILLED = "killed at the end of its run"
SAMPLE_SECONDS = 1.0
DRAIN_SECONDS = 60.0


@dataclass
class Soak:
    """One run against a server, by its address, the session of its processes, its log and the store of its corpora.

    Faults are drawn by `seed`, and come every `pause` seconds; `plant` is a failure on purpose.  The server's resources
    are read every second, and with `every` after so many requests, too, for a short run.  `kills`: the server is killed
    after its requests or its time, while others run.
    """

    target: Target
    url: str
    session: int
    log: Path
    truth: Truth
    traffic: Traffic
    store: Path | None = None
    seed: int = 0
    pause: float = 1.0
    plant: Plant | None = None
    every: int | None = None
    kills: bool = False
    judge: Judge = field(default_factory=Judge)
    samples: list[leaks.Sample] = field(default_factory=list)
    crash: str | None = None
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _judged_before: int = 0
    _latest: dict[str, Any] | None = None
    _held: list[Any] = field(default_factory=list)

    async def run(self, requests: int, minutes: float, done: Callable[[int], None] = lambda count: None) -> Report:
        """Send `requests` requests, or as many as fit into the time."""
        async with client.connect(self.url) as http:
            faults = Faults(http, self.target, self.truth, self.session, self.store, self.seed)
            running = set(leaks.processes(self.session))
            before = await self._counts(http)
            self._judged_before = sum(self.judge.kinds.values())
            first = await self._sample(http)
            began = time.monotonic()
            beside = [asyncio.create_task(faults.inject(self.pause)), asyncio.create_task(self._watch(http))]
            given = self._given(requests, began + 60 * minutes)
            work = [asyncio.create_task(self._work(http, given, done)) for _ in range(self.target.together)]
            beside.append(asyncio.create_task(self._guard(running, work)))
            if self.kills:
                beside.append(asyncio.create_task(self._kill(http, beside[0])))
            for ended in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
            self._find_lost(running)
            was_killed = self.crash == KILLED
            seconds = time.monotonic() - began
            for task in beside:
                task.cancel()
            ended = await asyncio.gather(*beside, return_exceptions=True)
            if not was_killed:  # else a sample of its resources may have been under way
                faults.problems += [f"{type(e).__name__}: {e}" for e in ended if isinstance(e, Exception)]
            last = await self._drained(http, faults) if self.crash is None else None
            if self.crash is None:
                self._latest = await self._counts(http)
            after = self._latest or before
            growths = leaks.growths(self.samples)
        return Report(
            engine=self.target.name,
            seconds=seconds,
            judge=self.judge,
            faults=faults.counts,
            fault_problems=faults.problems,
            growths=growths,
            first=first,
            last=last or first,
            preemptions=after["preemptions"] - before["preemptions"],
            accepted=after["accepted"] - before["accepted"],
            drafts=self.target.mode == "on",
            proposer_faults={
                name: Counter(kinds) - Counter(before["faults"].get(name)) for name, kinds in after["faults"].items()
            },
            crash=None if was_killed else self.crash,
            unwatched=[] if growths else [len(self.samples)],
        )

    def _given(self, requests: int, deadline: float) -> Iterator[Request]:
        planted = self.plant != "crash"
        for request in self.traffic:
            if request.number >= requests or time.monotonic() > deadline:
                self._over.set()
            if self.crash is not None or (self._over.is_set() and not self.kills):
                return
            if not planted and request.number >= requests // 3:
                planted = True
                os.kill(max(leaks.processes(self.session)), signal.SIGKILL)
            yield request

    async def _work(self, http: httpx.AsyncClient, given: Iterator[Request], done: Callable[[int], None]) -> None:
        """Send requests one after the other."""
        for request in given:
            if self.plant == "connections":
                port = httpx.URL(self.url).port
                self._held.append(await asyncio.open_connection("127.0.0.1", port))
            outcome = await client.send(http, self.target, request)
            if self.crash is None:
                self.judge.take(outcome)
                count = sum(self.judge.kinds.values())
                done(count)
                if self.every is not None and count % self.every == 0:
                    with suppress(httpx.HTTPError):  # the server has crashed, which `_guard` notes
                        self.samples.append(await self._sample(http))

    async def _kill(self, http: httpx.AsyncClient, faults: asyncio.Task[None]) -> None:
        """When the run is over, end the faults, read the counts, and kill all processes of the server."""
        await self._over.wait()
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        try:
            self._latest = await self._counts(http)
        finally:
            self.crash = KILLED  # outcomes from now on are not judged
            for process in leaks.processes(self.session):
                with suppress(ProcessLookupError):  # it has ended with its parent
                    os.kill(process, signal.SIGKILL)

    async def _guard(self, running: set[int], work: list[asyncio.Task[None]]) -> None:
        """End the traffic when a process of the server has ended, because others may then wait for it for ever."""
        while not self._find_lost(running):
            await asyncio.sleep(0.5)
        for task in work:
            task.cancel()

    def _find_lost(self, running: set[int]) -> set[int]:
        """Return the processes of the server that have ended, and note the crash."""
        lost = running - set(leaks.processes(self.session))
        if lost and self.crash is None:
            count = sum(self.judge.kinds.values())
            self.crash = f"processes {sorted(lost)} of the server have ended, after {count} requests"
        return lost

    async def _watch(self, http: httpx.AsyncClient) -> None:
        """Read the server's resources now and then, until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self.samples.append(await self._sample(http))

    async def _sample(self, http: httpx.AsyncClient) -> leaks.Sample:
        slots = leaks.occupied((await http.get("/specplug/status")).raise_for_status().json())
        port = httpx.URL(self.url).port
        assert port is not None
        return leaks.sample(self.session, port, sum(self.judge.kinds.values()) - self._judged_before, slots)

    async def _drained(self, http: httpx.AsyncClient, faults: Faults) -> leaks.Sample | None:
        """Wait until no request runs; return the resources then, or None if the server does not answer."""
        deadline = time.monotonic() + DRAIN_SECONDS
        try:
            await faults.restore()
            while True:
                found = await self._sample(http)
                if not found.slots or time.monotonic() > deadline:
                    (await http.get("/health")).raise_for_status()
                    return found
                await asyncio.sleep(0.2)
        except httpx.HTTPError as error:
            self.crash = self.crash or f"the server does not answer: {type(error).__name__}: {error}"
            return None

    async def _counts(self, http: httpx.AsyncClient) -> dict[str, Any]:
        """Return counts of specplug and of the engine."""
        status = (await http.get("/specplug/status")).raise_for_status().json()
        parts = [part["metrics"] for engine in status["engines"] for part in counting_parts(engine)]
        metrics = (await http.get("/metrics")).text
        return {
            "accepted": sum(part["total"]["accepted"] for part in parts),
            "faults": parts[0]["faults"],
            "preemptions": self.target.preemptions(metrics, self.log.read_text(errors="replace")),
        }


def with_wrong_token(truth: Truth) -> Truth:
    """Return the truth with one token of one known answer changed."""
    first, *others = truth.ordinary
    answer = (first.answer[0] ^ 1, *first.answer[1:])
    return replace(truth, ordinary=(replace(first, answer=answer), *others))


async def answers(url: str, target: Target, prompts: list[tuple[Prompt, int]]) -> list[tuple[int, ...]]:
    """Let a server answer prompts greedily, a few at a time."""
    places = asyncio.Semaphore(target.together)

    async def one(http: httpx.AsyncClient, prompt: Prompt, tokens: int) -> tuple[int, ...]:
        async with places:
            outcome = await client.send(http, target, Request(0, "greedy", prompt, max_tokens=tokens))
        assert outcome.status == 200, outcome.text
        return outcome.token_ids

    async with client.connect(url) as http:
        return list(await asyncio.gather(*(one(http, prompt, tokens) for prompt, tokens in prompts)))
