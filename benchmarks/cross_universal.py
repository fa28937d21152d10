"""Rates of `crosstok` beside transformers' universal assisted generation, and of its larger batches.

Greedy universal assisted generation re-encodes the drafted text, as the route "slem" does; sampled, it drafts from the
common tokens, as "tli" does.  `generate` counts the draft model's tokens: with 5 of them it drafts less text than 5
tokens of the target, and with 8 of the shipped pair about as much, so both are run greedily.  Forward passes are
counted at the target's `forward`; the first one computes the prompt and verifies a draft.  Samples of every arm are
judged by their probabilities, see `excess`.
"""

from __future__ import annotations

import copy
import functools
import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from transformers.generation.candidate_generator import AssistantToTargetTranslator

from benchmarks.cross_engine import (
    MAX_TOKENS,
    PLAIN,
    Answers,
    Check,
    answer,
    model,
    serving,
    settings,
    tokenizer,
)

OURS = "crosstok"
LENGTHS = (5, 8)
BATCHES = (1, 8, 32)

Run = Callable[[list[int]], Answers]


@contextmanager
def counted(target: Any) -> Iterator[list[int]]:
    """Count the forward passes of a model; the list has one entry."""
    calls, forward = [0], target.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return forward(*args, **kwargs)

    counting.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    with mock.patch.object(target, "forward", counting):
        yield calls


@functools.cache
def assistant(draft: str, kind: str) -> tuple[Any, Any]:
    """Return a draft model for `generate`, which drafts a constant number of tokens, and its tokenizer.

    A sampled run prunes the model's head, and remembers that by the tokenizer, so each kind of run has its own copies.
    """
    found = copy.deepcopy(model(draft))
    found.generation_config.num_assistant_tokens_schedule = "constant"
    found.generation_config.assistant_confidence_threshold = 0.0
    return found, copy.deepcopy(tokenizer(draft))


_tables = AssistantToTargetTranslator._get_assistant_to_target_input_ids


def in_order(self: AssistantToTargetTranslator) -> Any:
    """Return the tables between the vocabularies, the common tokens in the order in which logits are assigned to them.

    transformers 5.19 has them in another order, so the probabilities that it verifies with are those of other tokens.
    """
    to_target, to_assistant = _tables(self)
    return to_target, dict(sorted(to_assistant.items(), key=lambda pair: pair[1]))


def generating(draft: str | None, length: int, temperature: float, *, ordered: bool = False) -> Run:
    """Return a function that answers a prompt by `model.generate`, with an assistant if `draft` is a model."""
    more: dict[str, Any] = {"do_sample": False}
    if temperature:
        more = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    if draft is not None:
        kind = "greedy" if not temperature else "ordered" if ordered else "sampled"
        more["assistant_model"], more["assistant_tokenizer"] = assistant(draft, kind)
        more["tokenizer"] = tokenizer()
    name = "_get_assistant_to_target_input_ids"

    def run(prompt: list[int]) -> Answers:
        ids = torch.tensor([prompt])
        with ExitStack() as stack:
            if draft is not None:
                more["assistant_model"].generation_config.num_assistant_tokens = length
            if ordered:
                stack.enter_context(mock.patch.object(AssistantToTargetTranslator, name, in_order))
            calls = stack.enter_context(counted(model()))
            began = time.perf_counter()
            out = model().generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, **more)
            seconds = time.perf_counter() - began
        return Answers([out[0, len(prompt) :].tolist()], [calls[0]], seconds)

    return run


def side_by_side(
    prompts: Sequence[list[int]], draft: str, check: Check, temperature: float = 0.0
) -> list[dict[str, Any]]:
    """Answer one prompt at a time in every arm, the arms in a rotating order."""
    with ExitStack() as stack:

        def engine(chosen: dict[str, Any]) -> Run:
            built = stack.enter_context(serving(chosen, 1))
            return lambda prompt: answer(built, [prompt], temperature)

        routes = ("tli", "auto") if temperature else ("slem", "auto")
        assisted = {f"generate, {n} assistant tokens": generating(draft, n, temperature) for n in LENGTHS}
        if temperature:
            assisted = {"generate, 5 assistant tokens": generating(draft, 5, temperature)}
            assisted["the same, tables in order"] = generating(draft, 5, temperature, ordered=True)
        runs: dict[str, Run] = {
            "generate": generating(None, 0, temperature),
            **assisted,
            "engine, no drafts": engine(PLAIN),
            **{f"{OURS}, {route}": engine(settings(draft, route)) for route in routes},
        }
        found = {name: Answers() for name in runs}
        for run in runs.values():
            run(prompts[-1])
        names = list(runs)
        for place, prompt in enumerate(prompts):
            turn = place % len(names)
            for name in names[turn:] + names[:turn]:
                torch.manual_seed(place)
                found[name].add(runs[name](prompt))
    rows = []
    for name, mine in found.items():
        same, extra = None, None
        if temperature:
            extra = excess(prompts, mine.token_ids, temperature)
        else:
            same = sum(a == b for a, b in zip(mine.token_ids, found["generate"].token_ids, strict=True))
            if name.startswith(OURS):
                check.compare(prompts, found["generate"].token_ids, mine.token_ids)
        rows.append(
            {"arm": name, "temperature": temperature, "identical": same, "tasks": len(prompts), "excess": extra}
        )
        rows[-1] |= {**mine.figures(), "tokens_per_second": mine.rate}
    return rows


@torch.no_grad()
def excess(prompts: Sequence[list[int]], outputs: Sequence[list[int]], temperature: float) -> tuple[float, float]:
    """Return the mean of -log p - H over sampled tokens, in nats, with its error of chance (1.96 sigma).

    p is the target's probability of the token and H the entropy there, so that the mean is 0 for the target's own
    samples, and greater for tokens that it would draw less often.
    """
    found = []
    for prompt, output in zip(prompts, outputs, strict=True):
        logits = model()(input_ids=torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        logs = (logits.double() / temperature).log_softmax(1)
        entropy = -(logs.exp() * logs).sum(1)
        found.append(-logs[torch.arange(len(output)), torch.tensor(output)] - entropy)
    every = torch.cat(found)
    return float(every.mean()), float(1.96 * every.std() / len(every) ** 0.5)


def batches(
    prompts: Sequence[list[int]], draft: str, rounds: int, check: Check, sizes: Sequence[int] = BATCHES
) -> list[dict[str, Any]]:
    """Return the rates of batches, with and without drafts; batches take turns, round by round."""
    arms = {"no drafts": PLAIN, OURS: settings(draft)}
    found: dict[tuple[str, int], list[Answers]] = {(name, size): [] for name in arms for size in sizes}
    with ExitStack() as stack:
        engines = {key: stack.enter_context(serving(arms[key[0]], key[1])) for key in found}
        for engine in engines.values():
            answer(engine, prompts[:1])
        for number in range(rounds):
            keys = list(found)
            turn = number % len(keys)
            for key in keys[turn:] + keys[:turn]:
                found[key].append(answer(engines[key], prompts))
    for (name, size), runs in found.items():
        if name == OURS:
            for one, plain in zip(runs, found["no drafts", size], strict=True):
                check.compare(prompts, plain.token_ids, one.token_ids)
    alone = {name: [it.rate for it in found[name, sizes[0]]] for name in arms}
    return [
        {
            "arm": name,
            "batch": size,
            "tau": statistics.mean(it.tau for it in runs),
            "tokens_per_second": [it.rate for it in runs],
            "to_batch_1": [it.rate / one for it, one in zip(runs, alone[name], strict=True)],
            "to_no_drafts": [it.rate / plain.rate for it, plain in zip(runs, found["no drafts", size], strict=True)],
        }
        for (name, size), runs in found.items()
    ]


def middle(values: Sequence[float]) -> str:
    """Return the median of rounds, with the least and the most."""
    digits = 0 if min(values) > 20 else 2
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
