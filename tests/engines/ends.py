"""Requests that end in each possible way, and the length of the text that the client saw."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tests.engines.plain import model, prompts, tokenizer

PLACES = (3, 11)  # prompts whose answers are long
ENDING = (13, 17)  # prompts whose answers end by themselves
LONG = 60

Case = dict[str, Any]
"""What ends a request, in words of no engine: "most" tokens, "ids" and "strings" to stop at, "keep" the string,
"least" tokens; "ends" by itself or not.  Further "name", "prompt", and "answer"."""


def decoded(ids: Sequence[int]) -> str:
    """Return the text that clients get for token ids."""
    return str(tokenizer().decode(list(ids), skip_special_tokens=True))


@functools.cache
def answer(place: int) -> list[int]:
    """Return the plain model's answer to a prompt, `LONG` tokens, including its end and the tokens after it."""
    prompt = torch.tensor([prompts()[place]])
    with torch.inference_mode():
        text = model().generate(prompt, do_sample=False, max_new_tokens=LONG, eos_token_id=None)
    return list(text[0, prompt.shape[1] :].tolist())


@functools.cache
def cases() -> list[Case]:
    """Return all cases."""
    made: list[tuple[int, Case, str]] = [(place, {"ends": True}, "end of text") for place in ENDING]
    for place in PLACES:
        made += [(place, case, name) for name, case in _stops(answer(place))]
    default = {"most": LONG, "ids": [], "strings": [], "keep": False, "least": 0, "ends": False}
    return [
        {**default, **case, "name": f"{name} {place}", "prompt": list(prompts()[place]), "answer": answer(place)}
        for place, case, name in made
    ]


def _stops(answer: list[int]) -> Iterator[tuple[str, Case]]:
    yield "length", {"most": 13}
    yield "one", {"most": 1}
    yield "id", {"ids": [answer[9]]}
    yield "late id", {"ids": [answer[9]], "least": 17}
    text = decoded(answer)
    aligned = _string(answer, 10, 12, 0)
    yield "string", {"strings": ["never said", aligned]}
    yield "string kept", {"strings": [aligned], "keep": True}
    within = _string(answer, 12, 14, 1)
    yield "string within tokens", {"strings": [within]}
    done = min(count for count in range(1, len(answer)) if within in decoded(answer[:count]))
    yield "string at the end", {"strings": [within], "most": done}
    yield "string before the end", {"strings": [within], "most": done + 1}
    yield "late string", {"strings": [aligned], "least": done, "most": LONG - 4}
    yield "never", {"strings": [text + "?"], "most": 20}


def _string(answer: list[int], start: int, stop: int, shift: int) -> str:
    """Return what tokens say, moved by some characters, so that it begins and ends within tokens."""
    text = decoded(answer)
    return text[len(decoded(answer[:start])) + shift : len(decoded(answer[:stop])) + shift]


def seen(case: Case, output: dict[str, Any]) -> int:
    """Return how many tokens of prompt and output a client saw, from all that it got: "token_ids", "text" and
    "stop_reason".  A token is seen when all of its text is."""
    ids = output["token_ids"]
    count = len(ids)
    if isinstance(output["stop_reason"], str):
        count = max(n for n in range(count + 1) if output["text"].startswith(decoded(ids[:n])))
    return len(case["prompt"]) + count


def newest_text(records: list[dict[str, Any]], name: str) -> list[int]:
    """Return the longest text of a request that the proposer `recorder` was shown, by verdicts too."""
    texts = [
        text
        for record in records
        if record["call"] in ("ingest", "observe") and record["request_ids"]
        for owner, text in zip(record["request_ids"], record["texts"], strict=True)
        if owner == name
    ]
    return max(texts, key=len)
