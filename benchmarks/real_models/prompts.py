"""Prompts of the benchmark: tasks of six kinds that a small model can do, as chats.

`prompts.jsonl` holds one a line.  They were written for this benchmark or taken from this project's documentation and
code, and are under its licence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("prompts.jsonl")
CHATS = Path(__file__).with_name("chats.txt")
"""More chats, a question a line, for fresh servers and to warm others up."""

KINDS = ("chat", "code", "edits", "summaries", "answers", "structured")


@dataclass(frozen=True)
class Prompt:
    """One chat to answer.

    Attributes:
        kind: one of `KINDS`; "answers" are from a given passage, "structured" are JSON, YAML and tables.
        messages: as in OpenAI chat requests, the last one the user's.
        max_tokens: most tokens of the answer.
        fields: specplug's request fields, as in vLLM's `extra_args`; engines without specplug ignore them.
        answer: recorded answer that the model is made to give, see `recordings`; None for the model's own.
    """

    kind: str
    messages: tuple[dict[str, str], ...]
    max_tokens: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    answer: str | None = None

    def ids(self, tokenizer: Any) -> list[int]:
        """Return the token ids of the prompt, through the chat template if the tokenizer has one."""
        if tokenizer.chat_template is None:
            text = "\n\n".join(message["content"] for message in self.messages) + "\n\n"
            return list(tokenizer(text)["input_ids"])
        given = {"add_generation_prompt": True, "return_dict": False}
        return list(tokenizer.apply_chat_template(list(self.messages), **given))


def read(kinds: Sequence[str] = KINDS, each: int | None = None, max_tokens: int | None = None) -> list[Prompt]:
    """Return the prompts, kind by kind in turn, so that no kind always comes after another.

    Args:
        kinds: kinds to read.
        each: most prompts of a kind; None for all.
        max_tokens: most tokens of an answer, below what the prompts ask for.
    """
    rows = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    most = float("inf") if max_tokens is None else max_tokens
    found = {kind: [row for row in rows if row["kind"] == kind][:each] for kind in kinds}
    return [
        Prompt(kind, tuple(found[kind][place]["messages"]), int(min(found[kind][place]["max_tokens"], most)))
        for place in range(max(map(len, found.values()), default=0))
        for kind in kinds
        if place < len(found[kind])
    ]


def more_chats(max_tokens: int | None = None) -> list[Prompt]:
    """Return the chats of `CHATS`, of at most 160 tokens each, or fewer."""
    questions = CHATS.read_text(encoding="utf-8").splitlines()
    most = min(160, max_tokens or 160)
    return [Prompt("chat", ({"role": "user", "content": question},), most) for question in questions]
