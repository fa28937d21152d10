"""Execution of a benchmark: for each block in turn, switch the mode and send the requests concurrently."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from specplug.errors import EngineError
from specplug.tools.bench.prompts import Block, Prompt
from specplug.tools.client.answers import Answer, Mode
from specplug.tools.client.http import ServerClient, answer_all

COUNTS = ("target_steps", "proposed", "accepted", "emitted")
"""Counters of `/specplug/status` from which a block's tokens per step are computed."""

WARM_UP = Prompt("The quick brown fox")
"""An untimed request before each block; once it is answered, the new mode is in effect."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one block, in `seconds` from the first request sent to the last one answered.

    `counts` are the increases of the counters in `/specplug/status` over the block.
    """

    block: Block
    answers: tuple[Answer, ...]
    seconds: float
    counts: dict[str, int]


@asynccontextmanager
async def keeping_mode(server: ServerClient) -> AsyncIterator[None]:
    """Restore the server's mode on exit, even after an exception."""
    before = (await server.status()).mode
    try:
        yield
    finally:
        await server.set_mode(before)


async def measure(
    server: ServerClient,
    model: str,
    blocks: Sequence[Block],
    max_tokens: int,
    advance: Callable[[Block], None],
    looks: Sequence[int],
    is_known: Callable[[Sequence[Measured]], bool],
) -> list[Measured]:
    """Run the blocks of each concurrency, in order, until `is_known`, called after as many pairs as `looks` names.

    `advance` is called with the block after each answered request. Routes that do not answer, and a whole block of
    requests without a token, raise `EngineError`.
    """
    found = []
    for concurrency in dict.fromkeys(block.concurrency for block in blocks):
        of_one = [block for block in blocks if block.concurrency == concurrency]
        done: list[Measured] = []
        for pairs in looks:
            for block in of_one[len(done) : 2 * pairs]:
                done.append(await _measured(server, model, block, max_tokens, partial(advance, block)))
            if is_known(done):
                break
        found += done
    return found


async def _measured(
    server: ServerClient, model: str, block: Block, max_tokens: int, done: Callable[[], None]
) -> Measured:
    await server.set_mode(block.mode)
    await _answers(server, model, [WARM_UP], 4)
    before = await counts(server)
    began = time.perf_counter()
    answers = await _answers(server, model, block.prompts, max_tokens, block.concurrency, done)
    seconds = time.perf_counter() - began
    after = await counts(server)
    if not any(answer.num_tokens for answer in answers):
        raise EngineError.build(
            "no request of a block was answered",
            who=f"speculation {block.mode}, {block.concurrency} in flight",
            found="; ".join(dict.fromkeys(answer.error or "an answer without tokens" for answer in answers)),
            remedy="Send one of the prompts by hand to see what the server says",
        )
    return Measured(block, tuple(answers), seconds, {name: after[name] - before[name] for name in after})


async def same_texts(server: ServerClient, model: str, prompts: Sequence[Prompt], max_tokens: int) -> int:
    """Return the number of prompts with the same greedy answer in both modes, each sent alone."""
    answers: dict[Mode, list[Answer]] = {}
    modes: tuple[Mode, Mode] = ("off", "on")
    for mode in modes:
        await server.set_mode(mode)
        answers[mode] = await _answers(server, model, prompts, max_tokens)
    pairs = zip(answers["off"], answers["on"], strict=True)
    return sum(off.error is None and on.error is None and off.text == on.text for off, on in pairs)


async def counts(server: ServerClient) -> dict[str, int]:
    """Return the counters of the server's drafts, summed over its engines."""
    totals = [metrics.total for metrics in (await server.status()).metrics]
    return {name: sum(getattr(total, name) for total in totals) for name in COUNTS}


async def _answers(
    server: ServerClient,
    model: str,
    prompts: Sequence[Prompt],
    max_tokens: int,
    together: int = 1,
    done: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """Send greedy, streamed requests, `together` of them in flight."""
    defaults = {"model": model, "max_tokens": max_tokens, "temperature": 0.0}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}

    async def send(prompt: Prompt) -> Answer:
        return await server.stream(prompt.path, {**prompt.body(), **defaults, **streamed})

    return await answer_all(prompts, together, send, done)
