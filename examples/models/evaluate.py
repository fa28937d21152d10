"""Evaluation of a tiny model on held-out files: loss, next-token accuracy, and correct answers.

    python examples/models/evaluate.py specplug/tools/demo/models/tiny --count 256

Right answers come from greedy generation in the weights' own precision: an edit or a quote must
match to the character, JSON must parse to the same values, and the text must end by itself.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from specplug.tools.demo.sources import Split
from specplug.tools.demo.tasks import KINDS, Kind, Task, make_tasks

BATCH = 32


@dataclass(frozen=True)
class Figures:
    """Figures of one kind of task; `right` is None for open tasks, `valid` for all but JSON."""

    kind: Kind
    items: int
    answer_tokens: int
    loss: float
    accuracy: float
    right: int | None
    valid: int | None


def teacher_forced(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, task: Task) -> tuple[float, int, int]:
    """Return summed loss, number of right next tokens and number of tokens over one answer."""
    prompt = tokenizer(task.prompt).input_ids
    text = task.prompt + task.answer
    ids = tokenizer(text if task.kind == "code" else text + tokenizer.eos_token).input_ids
    first = _common_prefix(prompt, ids)
    logits = model(torch.tensor([ids])).logits[0, first - 1 : -1].float()
    labels = torch.tensor(ids[first:])
    loss = functional.cross_entropy(logits, labels, reduction="sum").item()
    return loss, int((logits.argmax(-1) == labels).sum()), len(labels)


def _common_prefix(first: list[int], second: list[int]) -> int:
    """Length of the common prefix: a cut inside white space may merge across prompt and answer."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def generated(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tasks: list[Task]
) -> Iterator[tuple[Task, str]]:
    """Yield every task with the text that greedy generation gives; unfinished text is marked."""
    tasks = sorted(tasks, key=lambda task: len(task.prompt))
    for start in range(0, len(tasks), BATCH):
        group = tasks[start : start + BATCH]
        answers = tokenizer([task.answer for task in group]).input_ids
        inputs = tokenizer(
            [task.prompt for task in group],
            padding=True,
            padding_side="left",
            return_tensors="pt",
            return_token_type_ids=False,
        )
        longest = max(len(answer) for answer in answers) + 8
        output: Tensor = model.generate(**inputs, max_new_tokens=longest, do_sample=False)
        for task, row in zip(group, output[:, inputs.input_ids.shape[1] :].tolist(), strict=True):
            ended = tokenizer.eos_token_id in row
            text = tokenizer.decode(row[: row.index(tokenizer.eos_token_id)] if ended else row)
            yield task, text if ended else text + " [no end]"


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    tasks: list[Task],
    show_wrong: int = 0,
) -> Figures:
    """Measure one kind of task; print the first few wrong answers if asked to."""
    forced = [teacher_forced(model, tokenizer, task) for task in tasks]
    loss, hits, tokens = (sum(column) for column in zip(*forced, strict=True))
    right = valid = None
    if tasks[0].kind != "code":
        pairs = list(generated(model, tokenizer, tasks))
        right = sum(bool(task.is_correct(text)) for task, text in pairs)
        if tasks[0].kind == "json":
            valid = sum(_is_json(text) for _, text in pairs)
        for task, text in [(t, x) for t, x in pairs if not t.is_correct(x)][:show_wrong]:
            print(f"--- wrong {task.kind}\n{task.prompt}\n--- wanted\n{task.answer}\n--- got\n{text}")
    return Figures(tasks[0].kind, len(tasks), tokens, loss / tokens, hits / tokens, right, valid)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder with weights and tokenizer")
    parser.add_argument("--count", type=int, default=256, help="items of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--split", choices=("held-out", "train"), default="held-out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show-wrong", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    """Print one line for each kind of task."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype="auto").eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    split: Split = arguments.split
    results = []
    print(f"{arguments.model}, {split} files, {model.dtype}")
    for kind in arguments.kinds:
        started = time.monotonic()
        tasks = make_tasks(kind, split, arguments.count, arguments.seed)
        figures = measure(model, tokenizer, tasks, arguments.show_wrong)
        results.append(asdict(figures))
        share = "" if figures.right is None else f"right {figures.right / figures.items:.1%}"
        share += "" if figures.valid is None else f", valid {figures.valid / figures.items:.1%}"
        print(
            f"{kind:5s}  {figures.items} items  {figures.answer_tokens} answer tokens  "
            f"loss {figures.loss:.4f}  next token {figures.accuracy:.2%}  {share}  "
            f"({time.monotonic() - started:.0f} s)",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
