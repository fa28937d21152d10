"""Known answers: prompts with the greedy output of the control, and the exact distribution of sampled tokens.

The control is the same engine without specplug.  Prompts whose answer holds a near tie are left out, because there the
order of summation may decide, and with it what else is in the batch; so every answer must come token for token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specplug.testing.equality import GStatistic, g_statistic
from specplug.tools.audit.sampled import LEAST_SAMPLES, next_tokens
from specplug.tools.demo.tasks import KINDS, make_tasks
from tests.engines.plain import forward, ids, model

SURE = 1e-3
"""Least gap of the two largest logits in answers that are kept, ten times the tolerance of `judge_greedy`."""

SAMPLING: tuple[dict[str, Any], ...] = ({"temperature": 1.0}, {"temperature": 1.5, "top_k": 20})

LEVELS = {"enum": ["low", "high"]}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"x": {"enum": [1, 2]}, "kind": LEVELS}, "required": ["x", "kind"]},
    {"type": "array", "items": LEVELS, "minItems": 2, "maxItems": 4},
    {"type": "object", "properties": {"done": {"type": "boolean"}, "level": LEVELS}, "required": ["done", "level"]},
)
SCHEMAS[0]["additionalProperties"] = SCHEMAS[2]["additionalProperties"] = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with the control's greedy output, which is empty until it is known.

    Answers may follow a JSON schema, or go on after an end-of-sequence token.
    """

    token_ids: tuple[int, ...]
    answer: tuple[int, ...] = ()
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    ignores_end: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a pool: numbers of prompts, and tokens of answers."""

    prompts: int = 100
    tokens: int = 40
    long_prompts: int = 8
    long_prompt_tokens: int = 260
    long_tokens: int = 120
    structured: int = 12
    sampled: int = 2
    sampled_tokens: int = 4


@dataclass(frozen=True, slots=True)
class Truth:
    """Prompts by use; see `Traffic`."""

    ordinary: tuple[Prompt, ...]
    long: tuple[Prompt, ...]
    structured: tuple[Prompt, ...]
    sampled: tuple[Prompt, ...]
    sampled_tokens: int

    def pool(self, kind: str) -> tuple[Prompt, ...]:
        """Return the prompts of one kind of request."""
        pools = {"long": self.long, "structured": self.structured, "sampled": self.sampled}
        return pools.get(kind, self.ordinary)

    def __iter__(self) -> Iterator[Prompt]:
        return iter((*self.ordinary, *self.long, *self.structured, *self.sampled))


Control = Callable[[Sequence[tuple[Prompt, int]]], Sequence[Sequence[int]]]
"""Returns the greedy output of each prompt, of so many tokens at most."""


def learn(control: Control, size: Size, seed: int = 1) -> Truth:
    """Let the control answer all prompts; keep those with sure answers."""
    ordinary = [Prompt(tokens) for tokens in _task_prompts(size.prompts, seed)]
    long = [Prompt(tokens, ignores_end=True) for tokens in _long_prompts(size, seed + 1)]
    bound = [
        Prompt(prompt.token_ids, schema=SCHEMAS[number % len(SCHEMAS)])
        for number, prompt in enumerate(ordinary[: size.structured])
    ]
    requests = [(prompt, size.tokens) for prompt in ordinary]
    requests += [(prompt, size.long_tokens) for prompt in long] + [(prompt, 48) for prompt in bound]
    answered = [
        replace(prompt, answer=tuple(answer)) for (prompt, _), answer in zip(requests, control(requests), strict=True)
    ]
    return Truth(
        ordinary=tuple(one for one in answered if one.schema is None and not one.ignores_end and is_sure(one)),
        long=tuple(one for one in answered if one.ignores_end and is_sure(one)),
        structured=tuple(one for one in answered if one.schema is not None),
        sampled=tuple(Prompt(prompt.token_ids) for prompt in _uncertain(ordinary)[: size.sampled]),
        sampled_tokens=size.sampled_tokens,
    )


def _task_prompts(count: int, seed: int) -> list[tuple[int, ...]]:
    each = -(-count // len(KINDS))
    tasks = [make_tasks(kind, "held-out", each, seed, max_chars=300) for kind in KINDS]
    return [tuple(ids(task.prompt)) for same in zip(*tasks, strict=True) for task in same][:count]


def _long_prompts(size: Size, seed: int) -> list[tuple[int, ...]]:
    """Return prompts of one length, each of several tasks one after the other."""
    text: list[int] = [token for prompt in _task_prompts(size.long_prompts * 8, seed) for token in prompt]
    length = size.long_prompt_tokens
    return [tuple(text[place * length :][:length]) for place in range(size.long_prompts)]


def is_sure(prompt: Prompt) -> bool:
    """Return whether the plain model agrees on every token of a prompt's answer, by a gap of `SURE`."""
    with torch.inference_mode():
        text = torch.tensor([[*prompt.token_ids, *prompt.answer]])
        logits = model()(input_ids=text).logits[0, len(prompt.token_ids) - 1 : -1].float()
    best, second = logits.topk(2).values.unbind(-1)
    agrees = logits.argmax(-1) == torch.tensor(prompt.answer)
    return bool((agrees & (best - second > SURE)).all())


def _uncertain(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return prompts, first those whose next token is least certain: these show most about sampling."""

    def certainty(prompt: Prompt) -> float:
        return float(forward(prompt.token_ids).softmax(-1).max())

    return sorted(prompts, key=certainty)


def statistic_of(prompt: Prompt, outputs: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> GStatistic:
    """Return the G-statistic of sampled outputs: of the tokens after every context that enough of them share.

    The first token of an output comes from the prefill, all others from steps that verify drafts.
    """
    total = GStatistic()
    for context, counts in next_tokens(outputs, LEAST_SAMPLES).items():
        probs = exact((*prompt.token_ids, *context), sampling["temperature"], sampling.get("top_k", 0))
        observed = torch.zeros_like(probs)
        for token, count in counts.items():
            observed[token] = count
        total += g_statistic(observed.numpy(), probs.numpy())
    return total


@functools.lru_cache(maxsize=4096)
def exact(context: tuple[int, ...], temperature: float, top_k: int) -> Tensor:
    """Return [V] float64: the distribution of the token after a context, by a plain forward."""
    logits = forward(context).double() / temperature
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)
    return logits.softmax(-1)
