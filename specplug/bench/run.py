"""Execution of a benchmark: for each block in turn, switch the mode and send the requests concurrently."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from specplug.bench.prompts import Block, Mode, Prompt
from specplug.bench.server import Answer, Server
from specplug.errors import EngineError

WARM_UP = Prompt("The quick brown fox")
"""An untimed request before each block; once it is answered, the new mode is in effect."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one block.

    Attributes:
        seconds: time from the first request sent to the last one answered.
        counts: increase of the counters in `/specplug/status` over the block.
    """

    block: Block
    answers: tuple[Answer, ...]
    seconds: float
    counts: dict[str, int]


@asynccontextmanager
async def keeping_mode(server: Server) -> AsyncIterator[None]:
    """Restore the server's mode on exit, even after an exception."""
    before = await server.mode()
    try:
        yield
    finally:
        await server.set_mode(before)


async def measure(
    server: Server, model: str, blocks: Sequence[Block], max_tokens: int, advance: Callable[[Block], None]
) -> list[Measured]:
    """Run the blocks in order; `advance` is called with the block after each answered request.

    Raises:
        EngineError: the server's routes do not answer, or a whole block of requests came back without a token.
    """
    found = []
    for block in blocks:
        await server.set_mode(block.mode)
        await server.send(WARM_UP, model, 4)
        before = await server.counts()
        began = time.perf_counter()
        answers = await _in_flight(server, model, block, max_tokens, lambda block=block: advance(block))  # type: ignore[misc]
        seconds = time.perf_counter() - began
        after = await server.counts()
        if not any(answer.tokens for answer in answers):
            raise _unanswered(block, answers)
        counts = {name: after[name] - before[name] for name in after}
        found.append(Measured(block, tuple(answers), seconds, counts))
    return found


async def measure_until(
    server: Server,
    model: str,
    blocks: Sequence[Block],
    max_tokens: int,
    advance: Callable[[Block], None],
    looks: Sequence[int],
    is_known: Callable[[Sequence[Measured]], bool],
) -> list[Measured]:
    """Run the blocks of each concurrency until `is_known`, called after as many pairs as `looks` names."""
    found = []
    for concurrency in dict.fromkeys(block.concurrency for block in blocks):
        of_one = [block for block in blocks if block.concurrency == concurrency]
        done: list[Measured] = []
        for pairs in looks:
            done += await measure(server, model, of_one[len(done) : 2 * pairs], max_tokens, advance)
            if is_known(done):
                break
        found += done
    return found


async def same_texts(server: Server, model: str, prompts: Sequence[Prompt], max_tokens: int) -> int:
    """Return the number of prompts with the same greedy answer in both modes, each sent alone."""
    answers: dict[Mode, list[Answer]] = {}
    modes: tuple[Mode, Mode] = ("off", "on")
    for mode in modes:
        await server.set_mode(mode)
        answers[mode] = [await server.send(prompt, model, max_tokens) for prompt in prompts]
    pairs = zip(answers["off"], answers["on"], strict=True)
    return sum(off.error is None and on.error is None and off.text == on.text for off, on in pairs)


async def _in_flight(
    server: Server, model: str, block: Block, max_tokens: int, done: Callable[[], None]
) -> list[Answer]:
    """Send a block's prompts with `concurrency` of them in flight; each answer triggers the next request."""
    left: Iterator[tuple[int, Prompt]] = iter(enumerate(block.prompts))
    answers: dict[int, Answer] = {}

    async def client() -> None:
        for place, prompt in left:
            answers[place] = await server.send(prompt, model, max_tokens)
            done()

    await asyncio.gather(*(client() for _ in range(block.concurrency)))
    return [answers[place] for place in range(len(block.prompts))]


def _unanswered(block: Block, answers: Sequence[Answer]) -> Exception:
    errors = dict.fromkeys(answer.error or "an answer without tokens" for answer in answers)
    return EngineError.build(
        "no request of a block was answered",
        who=f"speculation {block.mode}, {block.concurrency} in flight",
        found="; ".join(errors),
        remedy="Send one of the prompts by hand to see what the server says",
    )
