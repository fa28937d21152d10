"""Benchmark of `crosstok` with two real models beside transformers' universal assisted generation, prompt by prompt.

    .venv/bin/python -m benchmarks.cross_real TARGET DRAFT [--lengths 5] [--max-tokens 128] [--json real.json]

TARGET and DRAFT are folders of models with different tokenizers.  Arms take turns, in float32 on one thread of a CPU,
greedily: `generate`, the same with an assistant as transformers configures it and with constant numbers of assistant
tokens, the embedded engine without drafts, and with drafts of each number of tokens.  Times are CPU time of the
process, so that other work on the machine disturbs them less.  Texts are compared token by token with those of
`generate`; the exit code is 1 if one of them differs other than at a near tie of logits.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.cross_engine import PLAIN, Answers, model, settings, tokenizer
from benchmarks.machine import in_words, machine, versions
from benchmarks.peers import note
from specplug.testing import judge_greedy
from specplug.text.tokenizers import chat_ids, has_chat_template
from specplug.tools.cli.output import print_table
from specplug_transformers import Engine, GenerateRequest, SamplingParams

QUESTIONS = (
    "Why is the sky blue during the day and red at sunset?",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Explain the difference between a list and a tuple in Python, with an example of each.",
    "Give me five tips for sleeping better.",
    "What are the main causes of inflation?",
    "Write a polite e-mail that asks a colleague to review a document by Friday.",
    "Summarise the plot of Romeo and Juliet in a paragraph.",
    "Describe how photosynthesis works to a ten-year-old.",
)
TEXTS = (
    "The history of the bicycle begins in the early nineteenth century, when Karl von Drais, a German baron,",
    "def binary_search(items, target):\n    low, high = 0, len(items) - 1\n",
    "Ingredients for a simple vegetable soup:\n\n- 2 carrots\n- 1 onion\n",
    "The results of the experiment were surprising. Although the temperature had been held constant,",
)

Run = Callable[[list[int]], Answers]


def prompts_of(target: str) -> list[list[int]]:
    """Return the prompts' ids: questions through the chat template if there is one, and the beginnings of texts."""
    own = tokenizer(target)
    plain = [f"Question: {text}\nAnswer:" for text in QUESTIONS]
    requested = (
        [chat_ids(own, text) for text in QUESTIONS] if has_chat_template(own) else [own(it).input_ids for it in plain]
    )
    return [*requested, *(own(text).input_ids for text in TEXTS)]


def timed(run: Callable[[], Answers]) -> Answers:
    """Run, and set `seconds` to the CPU time of the process."""
    began = time.process_time()
    found = run()
    found.seconds = time.process_time() - began
    return found


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


def generating(target: str, draft: str | None, length: int | None, max_tokens: int) -> Run:
    """Return a function that answers by `generate`, with an assistant if `draft` is a model.

    Args:
        length: the constant number of assistant tokens; None leaves transformers' own settings.
    """
    more: dict[str, Any] = {"do_sample": False, "max_new_tokens": max_tokens}
    configuration = None if draft is None else copy.deepcopy(model(draft).generation_config)
    if configuration is not None and length is not None:
        configuration.num_assistant_tokens = length
        configuration.num_assistant_tokens_schedule = "constant"
        configuration.assistant_confidence_threshold = 0.0
    if draft is not None:
        more |= {
            "assistant_model": model(draft),
            "tokenizer": tokenizer(target),
            "assistant_tokenizer": tokenizer(draft),
        }

    def run(prompt: list[int]) -> Answers:
        ids = torch.tensor([prompt])
        if draft is not None:
            model(draft).generation_config = copy.deepcopy(configuration)  # generate changes it
        with counted(model(target)) as calls:
            out = model(target).generate(ids, attention_mask=torch.ones_like(ids), **more)
        return Answers([out[0, len(prompt) :].tolist()], [calls[0]])

    return run


def serving(engine: Engine, max_tokens: int) -> Run:
    """Return a function that answers by the embedded engine."""

    def run(prompt: list[int]) -> Answers:
        before = engine.metrics.snapshot()
        (output,) = engine.generate(
            [GenerateRequest(prompt=prompt, params=SamplingParams(max_tokens=max_tokens, temperature=0.0))]
        )
        counts = engine.metrics.snapshot()
        if counts.faults:
            raise RuntimeError(f"the proposer failed: {counts.faults}")
        total = (counts - before).total
        drafts = {"drafted": total.proposed, "tested": total.tested, "accepted": total.accepted}
        return Answers([list(output.token_ids)], [output.steps], **drafts)

    return run


def arms(
    target: str,
    draft: str,
    assisted: Sequence[int],
    drafts: Iterable[tuple[int, float]],
    max_tokens: int,
    stack: ExitStack,
    *,
    short: bool = False,
) -> dict[str, Run]:
    """Return the arms by name: constant numbers of assistant tokens, and lengths and least survivals of drafts."""

    def engine(chosen: dict[str, Any]) -> Run:
        built = Engine(model(target), tokenizer(target), settings=chosen, max_num_seqs=1)
        stack.callback(built.close)
        return serving(built, max_tokens)

    found = {"generate": generating(target, None, None, max_tokens)}
    found["universal, its settings"] = generating(target, draft, None, max_tokens)
    for length in assisted:
        found[f"universal, {length} tokens"] = generating(target, draft, length, max_tokens)
    if not short:
        found["engine, no drafts"] = engine(PLAIN)
    for length, least in drafts:
        chosen = settings(draft)
        chosen["num_speculative_tokens"] = length
        chosen["options"]["crosstok"] |= {"min_survival": least, "max_requests": 1, "max_context": 1024}
        found[f"crosstok, {length} tokens, survival {least:g}"] = engine(chosen)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--lengths", type=int, nargs="+", default=[5])
    parser.add_argument("--assisted", type=int, nargs="*", default=[], help="constant numbers of assistant tokens")
    parser.add_argument("--survivals", type=float, nargs="+", default=[0.0, 0.4], help="options.crosstok.min_survival")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--short", action="store_true", help="leave out the engine without drafts")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    prompts = prompts_of(given.target)
    with ExitStack() as stack, torch.inference_mode():
        drafts = itertools.product(given.lengths, given.survivals)
        runs = arms(given.target, given.draft, given.assisted, drafts, given.max_tokens, stack, short=given.short)
        found = {name: Answers() for name in runs}
        for run in runs.values():
            run(prompts[-1])
        for place, prompt in enumerate(prompts):
            turn = place % len(runs)
            for name in [*list(runs)[turn:], *list(runs)[:turn]]:
                found[name].add(timed(lambda name=name, prompt=prompt: runs[name](prompt)))
            note(f"{place + 1} of {len(prompts)} prompts: {', '.join(f'{n} {summary(it)}' for n, it in found.items())}")
        failures = report(given.target, prompts, found)
    if given.json:
        rows = [{"arm": name, "texts": mine.token_ids, **mine.figures()} for name, mine in found.items()]
        given.json.write_text(json.dumps({"machine": machine(), "versions": versions(), "rows": rows}, indent=1))
    return int(failures > 0)


def summary(mine: Answers) -> str:
    """Return tokens, tokens per target step and CPU time per token in a few words."""
    return f"{mine.tokens} tokens, tau {mine.tau:.2f}, {1000 / mine.rate:.0f} ms"


def report(target: str, prompts: Sequence[Sequence[int]], found: dict[str, Answers]) -> int:
    """Print the table, and return how many texts differ otherwise than at a near tie."""
    plain = found["generate"]
    best = max(mine.rate for name, mine in found.items() if name.startswith("universal"))
    cells, failures = [], 0
    for name, mine in found.items():
        judged = judge_greedy(lambda ids: _logits(target, ids), prompts, plain.token_ids, mine.token_ids)
        failures += len(judged.failures)
        shares = mine.figures()["accepted_of_drafted"], mine.figures()["accepted_of_tested"]
        cells.append(
            (
                name,
                f"{mine.tau:.2f}",
                *("" if share is None else f"{share:.0%}" for share in shares),
                f"{1000 / mine.rate:.1f}",
                f"{mine.rate / plain.rate:.2f}",
                f"{mine.rate / best:.2f}",
                f"{judged.identical} of {judged.total}, {len(judged.near_ties)} near ties",
            )
        )
    header = ("arm", "tau", "of drafted", "of tested", "CPU ms a token", "to generate", "to universal", "identical")
    print_table(f"{target}: {in_words(machine(), 1)}", header, cells)
    return failures


def _logits(target: str, ids: Sequence[int]) -> Tensor:
    logits: Tensor = model(target)(input_ids=torch.tensor([list(ids)])).logits[0, -1].float()
    return logits


if __name__ == "__main__":
    sys.exit(main())
