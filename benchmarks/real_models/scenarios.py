"""Scenarios: what a client or a server knows that an engine's own lookup does not use.

A scenario's prompts are made before the arms start, of texts that a server without speculation wrote: its greedy
answers, which are also those of every arm.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.real_models.prompts import KINDS, Prompt, read

Write = Callable[[Sequence[Prompt]], list[str]]
"""Returns the answers of a server without speculation to some prompts."""

CONVERSATIONS = Path(__file__).with_name("conversations.jsonl")
"""Chats about a piece of code: "code", and "edits", what the user asks for in each turn."""

SHARES = {"1 in 20 words changed": 0.05, "1 in 5 words changed": 0.2, "unrelated": None}
"""Kinds of predictions, with the share of the answer's words that they replace; None is another prompt's answer."""

EARLY = 4
"""Turns of a chat that are called early."""


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        prompts: returns its prompts, in the order of the run, from what writes answers, the most prompts of a kind
            (None for all) and the most tokens of an answer (None for what prompts ask for).
        samples: answers to each prompt, at the same time.
        temperature: of all answers.
    """

    prompts: Callable[[Write, int | None, int | None], list[Prompt]]
    samples: int = 1
    temperature: float = 0.0


def changed(text: str, share: float, words: Sequence[str], random: random.Random) -> str:
    """Return a text in which each word is replaced by one of `words` with the probability `share`.

    Words are what spaces part; the spaces and ends of lines stay.
    """
    lines = text.split("\n")
    return "\n".join(
        " ".join(random.choice(words) if word and random.random() < share else word for word in line.split(" "))
        for line in lines
    )


def predictions(write: Write, each: int | None, max_tokens: int | None) -> list[Prompt]:
    """Return prompts with a prediction of their answer, of three kinds in turn: see `SHARES`."""
    prompts = read(KINDS, each, max_tokens)
    answers = write(prompts)
    words = sorted({word for prompt in prompts for message in prompt.messages for word in message["content"].split()})
    chance = random.Random(0)
    made = []
    for place, prompt in enumerate(prompts):
        # Kinds of prompts come in turn, too: every kind of prediction gets all of them.
        kind = list(SHARES)[(place + place // len(KINDS)) % len(SHARES)]
        share = SHARES[kind]
        text = answers[place - 1] if share is None else changed(answers[place], share, words, chance)
        made.append(replace(prompt, kind=kind, fields={"specplug_prediction": text}))
    return made


def turns(write: Write, each: int | None, max_tokens: int | None) -> list[Prompt]:
    """Return the turns of chats in which the user has code edited, chat by chat; answers become part of what follows.

    `each` limits the chats.
    """
    made = []
    for line in CONVERSATIONS.read_text(encoding="utf-8").splitlines()[:each]:
        chat = json.loads(line)
        messages: tuple[dict[str, str], ...] = ()
        for turn, edit in enumerate(chat["edits"]):
            content = f"{edit}\n\n```python\n{chat['code']}\n```" if turn == 0 else edit
            kind = f"turns 1 to {EARLY}" if turn < EARLY else f"turns {EARLY + 1} to {len(chat['edits'])}"
            prompt = Prompt(kind, (*messages, {"role": "user", "content": content}), min(160, max_tokens or 160))
            made.append(prompt)
            [answer] = write([prompt])
            messages = (*prompt.messages, {"role": "assistant", "content": answer})
    return made


def rollouts(write: Write, each: int | None, max_tokens: int | None) -> list[Prompt]:
    """Return prompts of all kinds, whose answers are sampled several times."""
    return read(KINDS, each, max_tokens)


RECORDED = {"corpus": False, "references": True}
"""Scenarios of recorded answers, which quote passages: the server holds them, or each request brings some."""

SCENARIOS = {
    "prediction": Scenario(predictions),
    "turns": Scenario(turns),
    "rollouts": Scenario(rollouts, samples=8, temperature=0.7),
}
