"""Faults and changes while a server serves: its corpora, its store's files, its disk, its mode and its caches."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import resource
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from specplug.corpus.documents import Document
from specplug.corpus.store import STORE_FILE, Store
from tests.engines.plain import tokenizer
from tests.soak.leaks import processes
from tests.soak.targets import SglangTarget, Target
from tests.soak.traffic import CORPORA
from tests.soak.truth import Truth

FULL = 64 << 10
"""Size beyond which files do not grow on a full disk."""

UNWRITTEN = f"could not be written; found {os.strerror(errno.EFBIG)}"
"""What the store says then, by status 500: the limit is none of the disk (507)."""

LARGE_WORDS = 20_000
"""Of a corpus that does not fit: always the same number, so that it does not take more memory as the run goes on."""

SETTLE_SECONDS = 0.5
"""Time for the server to notice a change of its store; it looks every 0.2 s."""


class Faults:
    """Injects one fault after the other, and counts them; `problems` are answers that were not as expected.

    Corpora hold texts of `truth`; without a store, the faults that need one are left out.  Corpora of the store are
    those of a server before, which was killed.
    """

    def __init__(
        self, http: httpx.AsyncClient, target: Target, truth: Truth, session: int, store: Path | None, seed: int
    ) -> None:
        self._http, self._target, self._truth = http, target, truth
        self._session, self._store = session, store
        self._random = random.Random(seed)
        infos = Store(store).list() if store is not None and (store / STORE_FILE).exists() else []
        self._present = {info.name: info.tenant or None for info in infos if info.name in CORPORA}
        for info in infos:
            if store is not None and info.name not in CORPORA:  # of a fault that was under way
                Store(store).remove(info.name, tenant=info.tenant)
        self._numbers = itertools.count()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    async def inject(self, pause: float) -> None:
        """Inject all faults in turn, `pause` seconds apart, until cancelled; those that return False did nothing."""
        anywhere = [self.cache_flushed, self.wrong_order]
        if self._target.mode == "on":
            anywhere += [self.speculation_off, self.short_drafts]
        stored = [self.corpus_added, self.corpus_removed, self.segment_cut, self.corpus_added, self.disk_full]
        kinds: list[Callable[[], Awaitable[bool | None]]] = anywhere if self._store is None else [*stored, *anywhere]
        for fault in itertools.cycle(kinds):
            await asyncio.sleep(pause)
            try:
                if await fault() is False:
                    continue
            except (httpx.HTTPError, OSError) as error:
                self._problem(fault.__name__, f"{type(error).__name__}: {error}")
            self.counts[fault.__name__.replace("_", " ")] += 1

    async def restore(self) -> None:
        """Set the mode that speculation began with, without a limit."""
        await self._order("POST", "/specplug/mode", {"mode": self._target.mode, "num_speculative_tokens": None})

    # -- corpora -------------------------------------------------------------------------------------------------------

    async def corpus_added(self) -> bool:
        """Add a corpus of texts that answers repeat, over the server's route."""
        absent = [name for name in CORPORA if name not in self._present]
        if not absent:
            return False
        name = self._random.choice(absent)
        tenant = None if isinstance(self._target, SglangTarget) else self._random.choice([None, "acme", "bolt"])
        prompts = self._random.sample(self._truth.ordinary, 5)
        texts = [tokenizer().decode([*one.token_ids, *one.answer], skip_special_tokens=True) for one in prompts]
        await self._expect("a corpus is added", 200, *self._target.add_order(name, texts, tenant))
        self._present[name] = tenant
        return True

    async def corpus_removed(self) -> bool:
        """Remove one of the corpora, over the server's route."""
        if not self._present:
            return False
        name = self._random.choice(sorted(self._present))
        order = self._target.remove_order(name, self._present.pop(name))
        await self._expect("a corpus is removed", 200, *order)
        return True

    async def segment_cut(self) -> None:
        """Let another process add a corpus, replace its file by one that was cut off, and remove it."""
        await asyncio.to_thread(self._add_for, "torn")
        await asyncio.sleep(SETTLE_SECONDS)
        assert self._store is not None
        for segment in self._store.glob("tenants/t-torn/*.safetensors"):
            replace_by_part(segment)
        await asyncio.sleep(SETTLE_SECONDS)
        await asyncio.to_thread(Store(self._store).remove, "cut", tenant="torn")

    def _add_for(self, tenant: str) -> None:
        import numpy as np

        assert self._store is not None
        prompt = self._random.choice(self._truth.ordinary)
        document = Document("a", np.array([*prompt.token_ids, *prompt.answer], np.int32))
        Store(self._store).add("cut", [document], tenant=tenant)

    async def disk_full(self) -> None:
        """Add a corpus that does not fit, while no file may grow beyond a limit, the log included; then a small one."""
        name = f"large {next(self._numbers)}"
        text = " ".join(str(self._random.getrandbits(40)) for _ in range(LARGE_WORDS))
        with files_limited(self._session, FULL):
            await self._expect("a full disk", 500, *self._target.add_order(name, [text], None), why=UNWRITTEN)
        await self._expect("a corpus after a full disk", 200, *self._target.add_order(name, [text[:100]], None))
        await self._expect("its removal", 200, *self._target.remove_order(name, None))

    # -- control -------------------------------------------------------------------------------------------------------

    async def speculation_off(self) -> None:
        """Switch speculation off for a while."""
        await self._expect("mode off", 200, "POST", "/specplug/mode", {"mode": "off"})
        await asyncio.sleep(SETTLE_SECONDS)
        await self._expect("mode on", 200, "POST", "/specplug/mode", {"mode": "on"})

    async def short_drafts(self) -> None:
        """Limit the length of drafts for a while."""
        for limit in (self._random.randint(0, 3), None):
            await self._expect("a limit", 200, "POST", "/specplug/mode", {"num_speculative_tokens": limit})
            await asyncio.sleep(SETTLE_SECONDS)

    async def cache_flushed(self) -> None:
        """Let the engine empty its prefix cache.

        SGLang refuses while requests run (400); vLLM has the route in its development mode only (404).
        """
        status, body = await self._order("POST", self._target.flush, None)
        if status not in (200, 400, 404):
            self._problem("cache flushed", f"status {status}, {body}")

    async def wrong_order(self) -> None:
        """Give orders that must be refused."""
        for order in ({"mode": "of"}, {"modes": "off"}, {}, {"num_speculative_tokens": -1}):
            await self._expect("a wrong order", 400, "POST", "/specplug/mode", order)

    async def _expect(self, what: str, expected: int, method: str, path: str, body: Any, why: str = "") -> None:
        status, found = await self._order(method, path, body)
        if status != expected or why not in str(found):
            self._problem(what, f"status {status}, {str(found)[:200]}")

    async def _order(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        answer = await self._http.request(method, path, json=body)
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, {"text": answer.text}

    def _problem(self, what: str, found: str) -> None:
        self.problems.append(f"{what}: {found}")


def replace_by_part(file: Path) -> None:
    """Replace a file by its first half.  It is not changed in place, as it may be mapped: see docs/corpus.md."""
    part = file.with_suffix(".part")
    part.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    os.replace(part, file)


@contextmanager
def files_limited(session: int, size: int) -> Iterator[None]:
    """Let no process of a session write beyond `size` bytes into a file, as on a full disk."""
    limited = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in processes(session)}
    try:
        for pid, (_, hard) in limited.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
        yield
    finally:
        for pid in limited.keys() & processes(session).keys():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limited[pid])
