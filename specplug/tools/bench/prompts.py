"""Prompts for a benchmark: read from JSON lines, deduplicated, with their kinds, and assigned to groups."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specplug.errors import SettingsError, TraceError
from specplug.text.tokenizers import messages

EXPECTED = 'a JSON object with "prompt", or with "messages" as in OpenAI chat requests'

MOST_KINDS = 8
"""Kinds that are told apart: the most frequent ones."""

OTHER = "other"
"""The kind of the prompts of all further kinds, and of those too small for two groups."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: the text of a completion, or messages of a chat, the last of which is not the assistant's."""

    text: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    kind: str = field(default="", compare=False)

    @property
    def path(self) -> str:
        """Return the route of the OpenAI API that takes the prompt."""
        return "/v1/chat/completions" if self.text is None else "/v1/completions"

    @property
    def last_text(self) -> str:
        """Return the text, or that of the chat's last message without its images and the like; "" if it has none."""
        content = self.messages[-1].get("content") if self.text is None else self.text
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))

    def body(self) -> dict[str, Any]:
        """Return the prompt's part of the request body."""
        return {"messages": list(self.messages)} if self.text is None else {"prompt": self.text}


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts of one kind that are sent together, first to the tested side or first to the baseline."""

    kind: str
    prompts: tuple[Prompt, ...]
    tested_first: bool


def read_prompts(paths: Iterable[Path]) -> list[Prompt]:
    """Read `.jsonl` files, or all those in folders; return the prompts in file order, without duplicates.

    A line holds ``prompt`` (as traces do) or ``messages``.  The assistant's last messages in a chat log are cut off,
    because the server is to produce them.  Its kind is ``kind``, or ``workload`` as in traces, or else the file's name.
    An unreadable file, or a line without a prompt, raises `TraceError`, which names file and line.
    """
    found: dict[str, Prompt] = {}
    for path in paths:
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            for prompt in _read_file(file):
                found.setdefault(json.dumps(prompt.body(), sort_keys=True), prompt)
    return list(found.values())


def as_chats(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Return the prompts, the plain ones as a user's message."""
    return [
        prompt if prompt.text is None else replace(prompt, text=None, messages=tuple(messages(prompt.text)))
        for prompt in prompts
    ]


def limited(prompts: Sequence[Prompt], limit: int | None, seed: int) -> list[Prompt]:
    """Return at most `limit` prompts at random, the kinds in proportion."""
    return [prompt for group in _spread(_by_kind(prompts, 1), 1, random.Random(seed)) for prompt in group][:limit]


def assign_groups(prompts: Sequence[Prompt], concurrency: int, seed: int) -> list[Group]:
    """Assign each prompt to one group of its kind, of `concurrency` prompts or a few more.

    At any time the groups so far have the kinds in proportion.  A fair coin says which side is first: between sides
    that do not differ each ratio is then as likely as its inverse, whatever the noise is.  Strict turns would make 8 %
    false verdicts of 5 % where noise lasts for a few requests.  Prompts for fewer than two groups raise
    `SettingsError`.
    """
    if len(prompts) < 2 * concurrency:
        raise SettingsError.build(
            "too few different prompts",
            who="specplug bench",
            found=f"{len(prompts)} for {concurrency} in flight",
            expected=f"at least {2 * concurrency}",
            remedy="Give more prompts, or lower --concurrency",
        )
    draw = random.Random(seed)
    groups = _spread(_by_kind(prompts, 2 * concurrency), concurrency, draw)
    return [Group(group[0].kind, group, draw.random() < 0.5) for group in groups]


def _by_kind(prompts: Sequence[Prompt], least: int) -> list[list[Prompt]]:
    """Return the prompts by kind; those of kinds with fewer than `least`, and of rare ones, become `OTHER`."""
    counts = Counter(prompt.kind for prompt in prompts if prompt.kind != OTHER)
    told_apart = {kind for kind, count in counts.most_common(MOST_KINDS) if count >= least}
    kinds: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        kind = prompt.kind if prompt.kind in told_apart else OTHER
        kinds.setdefault(kind, []).append(replace(prompt, kind=kind))
    return list(kinds.values())


def _spread(kinds: list[list[Prompt]], size: int, draw: random.Random) -> list[tuple[Prompt, ...]]:
    """Return groups of at least `size` prompts of one kind, the kinds in proportion; a smaller kind has none."""
    placed = []
    for prompts in kinds:
        shuffled = draw.sample(prompts, len(prompts))
        count = len(prompts) // size
        groups = [tuple(shuffled[number::count]) for number in range(count)]
        placed += [((number + 0.5) / count, group) for number, group in enumerate(groups)]
    return [group for _, group in sorted(placed, key=lambda each: each[0])]


def _read_file(file: Path) -> Iterator[Prompt]:
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _prompt_of(line, f"{file}, line {number}", file.stem)
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
        expected = "a readable .jsonl file or folder"
        raise TraceError.build("cannot read prompts", who=str(file), found=found, expected=expected) from error


def _prompt_of(line: str, who: str, default_kind: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError.build("not a prompt", who=who, found=f"no JSON: {error}", expected=EXPECTED) from error
    if isinstance(entry, dict):
        kind = str(entry.get("kind") or entry.get("workload") or default_kind)
    match entry:
        case {"prompt": str(text)} if text:
            return Prompt(text, kind=kind)
        case {"messages": [*messages]} if all(isinstance(message, dict) and "role" in message for message in messages):
            while messages and messages[-1]["role"] == "assistant":
                messages.pop()
            if messages:
                return Prompt(messages=tuple(messages), kind=kind)
    keys = ", ".join(map(repr, entry)) if isinstance(entry, dict) else type(entry).__name__
    raise TraceError.build("not a prompt", who=who, found=keys or "an empty object", expected=EXPECTED)
