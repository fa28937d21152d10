"""Prompts for a benchmark: read from JSON lines, deduplicated, and assigned to blocks.

The timed blocks send no prompt twice.  A server with a response memory would draft the second answer from the first
one, and the benchmark would report a gain that the traffic does not have.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specplug.errors import SettingsError, TraceError
from specplug.text.tokenizers import messages
from specplug.tools.client.answers import Mode

EXPECTED = 'a JSON object with "prompt", or with "messages" as in OpenAI chat requests'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: the text of a completion, or messages of a chat, the last of which is not the assistant's."""

    text: str | None = None
    messages: tuple[dict[str, Any], ...] = ()

    @property
    def path(self) -> str:
        """Return the route of the OpenAI API that takes the prompt."""
        return "/v1/chat/completions" if self.text is None else "/v1/completions"

    def body(self) -> dict[str, Any]:
        """Return the prompt's part of the request body."""
        return {"messages": list(self.messages)} if self.text is None else {"prompt": self.text}

    @property
    def size(self) -> int:
        """Return the length in characters."""
        return len(self.text) if self.text is not None else len(json.dumps(self.messages))


@dataclass(frozen=True, slots=True)
class Block:
    """Prompts that are sent in a row, in one mode, with `concurrency` of them in flight.

    It belongs to one of the pairs of blocks, which are numbered from 0 for each concurrency.
    """

    concurrency: int
    pair: int
    mode: Mode
    prompts: tuple[Prompt, ...]


def read_prompts(paths: Iterable[Path]) -> list[Prompt]:
    """Read `.jsonl` files, or all those in folders; return the prompts in file order, without duplicates.

    A line holds ``prompt`` (as traces do) or ``messages``.  The assistant's last messages in a chat log are cut off,
    because the server is to produce them. An unreadable file, or a line without a prompt, raises `TraceError`, which
    names file and line.
    """
    found: dict[str, Prompt] = {}
    for path in paths:
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            for prompt in _read_file(file):
                found.setdefault(json.dumps(prompt.body(), sort_keys=True), prompt)
    return list(found.values())


def as_chats(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Return the prompts, the plain ones as a user's message."""
    return [prompt if prompt.text is None else Prompt(messages=tuple(messages(prompt.text))) for prompt in prompts]


def most_pairs(num_prompts: int, concurrencies: Sequence[int]) -> int:
    """Return the number of pairs of blocks in which each client sends two prompts."""
    return num_prompts // (4 * max(concurrencies) * len(concurrencies))


def assign_blocks(prompts: Sequence[Prompt], concurrencies: Sequence[int], pairs: int, seed: int) -> list[Block]:
    """Assign each prompt to one block.

    A pair has one block for each mode, with equally many prompts of similar lengths.  The mode that comes first
    alternates, so that a drift of the machine favours neither. Too few prompts for a block to keep its requests in
    flight raise `SettingsError`.
    """
    shuffled = random.Random(seed).sample(list(prompts), len(prompts))
    per_block = len(shuffled) // (len(concurrencies) * pairs * 2)
    if per_block < max(concurrencies):
        needed = max(concurrencies) * len(concurrencies) * pairs * 2
        raise SettingsError.build(
            "too few different prompts",
            who="specplug bench",
            found=f"{len(prompts)} for {len(concurrencies) * pairs * 2} blocks",
            expected=f"at least {needed}: in each block as many as requests in flight, {max(concurrencies)}",
            remedy="Give more prompts, or lower --concurrency or --pairs",
        )
    blocks = []
    left = iter(shuffled)
    for concurrency in concurrencies:
        for pair in range(pairs):
            both = sorted((next(left) for _ in range(2 * per_block)), key=lambda prompt: prompt.size)
            modes: tuple[Mode, Mode] = ("off", "on") if pair % 2 == 0 else ("on", "off")
            halves = zip(modes, _halves(both), strict=True)
            blocks += [Block(concurrency, pair, mode, half) for mode, half in halves]
    return blocks


def _halves(ascending: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Split prompts into two halves of about the same lengths: first, second, second, first, and so on."""
    first = tuple(prompt for place, prompt in enumerate(ascending) if place % 4 in (0, 3))
    second = tuple(prompt for place, prompt in enumerate(ascending) if place % 4 in (1, 2))
    return first, second


def _read_file(file: Path) -> Iterator[Prompt]:
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _prompt_of(line, f"{file}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
        expected = "a readable .jsonl file or folder"
        raise TraceError.build("cannot read prompts", who=str(file), found=found, expected=expected) from error


def _prompt_of(line: str, who: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError.build("not a prompt", who=who, found=f"no JSON: {error}", expected=EXPECTED) from error
    match entry:
        case {"prompt": str(text)} if text:
            return Prompt(text)
        case {"messages": [*messages]} if all(isinstance(message, dict) and "role" in message for message in messages):
            while messages and messages[-1]["role"] == "assistant":
                messages.pop()
            if messages:
                return Prompt(messages=tuple(messages))
    keys = ", ".join(map(repr, entry)) if isinstance(entry, dict) else type(entry).__name__
    raise TraceError.build("not a prompt", who=who, found=keys or "an empty object", expected=EXPECTED)
