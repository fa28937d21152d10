"""Distillation: aligns a draft model with a target on the target's own outputs (DistillSpec, arXiv 2310.08461).

python examples/distill_draft.py --out DIR

The target answers training tasks, greedily and sampled.  A draft with the target's tokenizer learns the target's
distribution at each position of the answers, by forward KL.  A draft with another tokenizer learns the text of the
answers, by cross-entropy.  What the draft is worth is measured on tasks of files that neither model has seen.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from specplug.tools.demo import MODEL_NAMES, model_path
from specplug.tools.demo.tasks import KINDS, Kind, make_tasks
from specplug_transformers import Engine, GenerateRequest, SamplingParams

IGNORED = -100
DRAFT_LENGTH = 4


class Example(NamedTuple):
    """A text in the draft's ids, and how many of them are the prompt's."""

    ids: list[int]
    num_prompt: int


class Model(NamedTuple):
    """A model and its tokenizer."""

    path: str
    model: Any
    tokenizer: Any

    @classmethod
    def load(cls, name: str) -> "Model":
        """Load a shipped model by its name, or another one by its folder or id."""
        path = str(model_path(name)) if name in MODEL_NAMES else name
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        return cls(path, model, AutoTokenizer.from_pretrained(path))


def answers(target: Model, prompts: list[str], params: SamplingParams) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the ids of each prompt and of the target's answer."""
    engine = Engine(target.model, target.tokenizer, settings={"proposer": "ngram", "num_speculative_tokens": 8})
    ids = [target.tokenizer.encode(prompt) for prompt in prompts]
    outputs = engine.generate([GenerateRequest(prompt=prompt, params=params) for prompt in ids])
    engine.close()
    yield from ((prompt, list(output.token_ids)) for prompt, output in zip(ids, outputs, strict=True))


def make_examples(target: Model, draft: Model, arguments: argparse.Namespace, *, same: bool) -> list[Example]:
    """Let the target answer training tasks, every second one sampled, and return the texts."""
    share = -(-arguments.texts // len(KINDS))
    prompts = [task.prompt for kind in KINDS for task in make_tasks(kind, "train", share, arguments.seed)]
    examples, began = [], time.monotonic()
    for first, temperature in ((0, 0.0), (1, 1.0)):
        params = SamplingParams(max_tokens=arguments.max_tokens, temperature=temperature)
        for prompt, answer in answers(target, prompts[first::2], params):
            examples.append(Example(prompt + answer, len(prompt)) if same else encoded(target, draft, prompt, answer))
        print(f"{len(examples)} of {len(prompts)} answers, {time.monotonic() - began:.0f} s", flush=True)
    return examples


def encoded(target: Model, draft: Model, prompt: list[int], answer: list[int]) -> Example:
    """Return a text in the ids of another tokenizer; a token that begins in the prompt belongs to it."""
    num_chars = len(target.tokenizer.decode(prompt))
    text = target.tokenizer.decode(prompt + answer)
    found = draft.tokenizer(text, return_offsets_mapping=True)
    return Example(found["input_ids"], sum(start < num_chars for start, _ in found["offset_mapping"]))


def padded(examples: list[Example]) -> tuple[Tensor, Tensor]:
    """Return ids [B, T], and the ids of the answers' tokens shifted to where they are predicted, `IGNORED` elsewhere.

    Padding follows the texts, where causal attention does not see it.
    """
    ids = torch.zeros(len(examples), max(len(it.ids) for it in examples), dtype=torch.int64)
    labels = torch.full_like(ids, IGNORED)
    for row, it in enumerate(examples):
        ids[row, : len(it.ids)] = torch.tensor(it.ids)
        labels[row, it.num_prompt - 1 : len(it.ids) - 1] = torch.tensor(it.ids[it.num_prompt :])
    return ids, labels


def loss_of(draft: Any, target: Any | None, examples: list[Example]) -> Tensor:
    """Return the mean loss of the answers' tokens: KL from the target's distribution, or the text's cross-entropy."""
    ids, labels = padded(examples)
    counted = labels != IGNORED
    logits = draft(ids, use_cache=False).logits[counted]
    if target is None:
        return functional.cross_entropy(logits, labels[counted])
    with torch.no_grad():
        wanted = target(ids, use_cache=False).logits[counted]
    own, other = (each[:, : min(logits.shape[1], wanted.shape[1])].log_softmax(1) for each in (logits, wanted))
    return functional.kl_div(own, other, log_target=True, reduction="batchmean")


def train(draft: Any, target: Any | None, examples: list[Example], arguments: argparse.Namespace) -> None:
    """Train in place, until the steps or the minutes are used up; the learning rate falls to 0."""
    torch.manual_seed(arguments.seed)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=arguments.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    draft.train()
    began, losses, seconds = time.monotonic(), [], 60 * arguments.minutes
    for step in range(arguments.steps):
        progress = max(step / arguments.steps, (time.monotonic() - began) / seconds)
        if progress >= 1:
            break
        optimizer.param_groups[0]["lr"] = arguments.learning_rate * min(1.0, (step + 1) / 20, 1.0 - progress)
        batch = [examples[at] for at in torch.randint(len(examples), (arguments.batch_size,)).tolist()]
        loss = loss_of(draft, target, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == 50 or step == arguments.steps - 1:
            done = max((step + 1) / arguments.steps, (time.monotonic() - began) / seconds)
            left = (time.monotonic() - began) * (1 / done - 1) / 60
            print(f"step {step + 1}: loss {sum(losses) / len(losses):.3f}, {max(0.0, left):.1f} min left", flush=True)
            losses.clear()
    draft.eval()


def measure(target: Model, draft: str, arguments: argparse.Namespace) -> dict[Kind, tuple[float, float]]:
    """Return the share of tested draft tokens that are accepted, and tokens per step, greedily on held-out tasks."""
    settings = {"proposer": "crosstok", "policy": "fixed", "num_speculative_tokens": DRAFT_LENGTH}
    settings |= {"faults": {"host_deadline_ms": None}, "options": {"crosstok": {"model": draft, "max_ms": None}}}
    engine = Engine(target.model, target.tokenizer, settings=settings)
    rates: dict[Kind, tuple[float, float]] = {}
    for kind in KINDS:
        before = engine.metrics.snapshot()
        tasks, params = (
            make_tasks(kind, "held-out", arguments.held_out),
            SamplingParams(max_tokens=arguments.max_tokens),
        )
        engine.generate([GenerateRequest(prompt=task.prompt, params=params) for task in tasks])
        counts = (engine.metrics.snapshot() - before).total
        rates[kind] = (counts.accepted / max(1, counts.tested), counts.tau or 1.0)
    engine.close()
    return rates


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", default="tiny", help="a shipped model's name, a folder, or an id (default: tiny)")
    parser.add_argument("--draft", default="tiny-draft", help="likewise (default: tiny-draft)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the trained draft")
    parser.add_argument("--texts", type=int, default=512, help="training tasks that the target answers")
    parser.add_argument("--max-tokens", type=int, default=96, help="the most tokens of an answer")
    parser.add_argument("--steps", type=int, default=600, help="the most training steps")
    parser.add_argument("--minutes", type=float, default=10.0, help="the most minutes of training")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--held-out", type=int, default=16, help="tasks of each kind to measure on")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Measure, train, save, and measure again."""
    arguments = parse_arguments()
    target, draft = Model.load(arguments.target), Model.load(arguments.draft)
    same = target.tokenizer.get_vocab() == draft.tokenizer.get_vocab()
    before = measure(target, draft.path, arguments)
    examples = make_examples(target, draft, arguments, same=same)
    print(f"training by {'forward KL' if same else 'cross-entropy on the text'}", flush=True)
    train(draft.model, target.model if same else None, examples, arguments)
    draft.model.to(torch.bfloat16).save_pretrained(arguments.out)
    draft.tokenizer.save_pretrained(arguments.out)
    after = measure(target, str(arguments.out), arguments)
    print("held-out tasks, before and after: accepted of the tested draft tokens, tokens per step")
    for kind in KINDS:
        (rate, tau), (new_rate, new_tau) = before[kind], after[kind]
        print(f"{kind:6} {rate:6.1%} -> {new_rate:6.1%}   {tau:.2f} -> {new_tau:.2f}")


if __name__ == "__main__":
    main()
