"""Training of one of the shipped tiny models on this machine's standard library; see README.md.

python examples/models/train.py target --minutes 60 --output specplug/tools/demo/models/tiny
"""

from __future__ import annotations

import argparse
import json
import time
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from data import Batch, ExampleStream
from initial import start_with_induction
from tokenizer import train_tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MAX_LENGTH = 1024


@dataclass(frozen=True)
class Preset:
    """The shape of one model and its training parameters."""

    vocab_size: int
    other_tokenizer: bool
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    learning_rate: float
    tokens: int


PRESETS = {
    "target": Preset(2048, False, 256, 512, 5, 4, 2e-3, 32_000_000),
    "draft": Preset(2048, False, 96, 192, 2, 3, 4e-3, 8_000_000),
    "draft-other": Preset(1024, True, 96, 256, 2, 3, 4e-3, 8_000_000),
}


def build_model(preset: Preset, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a freshly initialised Llama with tied embeddings, see `initial.py`."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=preset.hidden_size,
        intermediate_size=preset.intermediate_size,
        num_hidden_layers=preset.layers,
        num_attention_heads=preset.heads,
        num_key_value_heads=preset.heads,
        head_dim=preset.hidden_size // preset.heads,
        max_position_embeddings=2 * MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.do_sample = False
    start_with_induction(model)
    return model


def build_optimizers(model: LlamaForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the layers and AdamW for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    inner = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inner]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate_factor(progress: float, warmup: float = 0.02, decay: float = 0.3) -> float:
    """Return the factor of a linear warm-up, a constant stretch, and a linear decay to 2 % (warm-up, stable, decay)."""
    return max(0.02, min(1.0, (progress + 1e-3) / warmup, (1.0 - progress) / decay))


def weighted_loss(model: LlamaForCausalLM, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weighted mean loss, and loss and accuracy over the answers' tokens alone.

    Logits are computed only where the weight is not zero: with a vocabulary eight times the
    width they cost as much as two layers.
    """
    counted = batch.weights[:, 1:] > 0
    labels, weights = batch.input_ids[:, 1:][counted], batch.weights[:, 1:][counted]
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][counted])
    losses = functional.cross_entropy(logits.float(), labels, reduction="none")
    answers = (weights >= 1.0).float()  # neither prompts nor plain code
    count = answers.sum().clamp(min=1)
    hits = (logits.argmax(-1) == labels).float()
    return (
        (losses * weights).sum() / weights.sum(),
        (losses.detach() * answers).sum() / count,
        (hits * answers).sum() / count,
    )


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights in bfloat16, and a configuration that older transformers read the same way."""
    deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    _amend(folder / "config.json", rope_theta=model.config.rope_parameters["rope_theta"])
    _amend(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


def _amend(file: Path, **entries: object) -> None:
    values = {**json.loads(file.read_text()), **entries}
    for key in ("is_local", "local_files_only"):  # they say how this run loaded the tokenizer
        values.pop(key, None)
    file.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


class Run:
    """One training run: model, optimizers and counters, with a checkpoint that can be resumed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.output: Path = arguments.output
        self.state_file: Path = arguments.state / f"{arguments.preset}.pt"
        self.seconds_allowed = 60 * arguments.minutes
        preset = PRESETS[arguments.preset]
        self.base_rate = arguments.learning_rate or preset.learning_rate
        self.tokens_wanted: int = arguments.tokens or preset.tokens
        self.batch_tokens: int = arguments.batch_tokens
        self.tokens, self.step, self.seconds_before = 0, 0, 0.0
        torch.manual_seed(arguments.seed)
        if arguments.resume or arguments.tokenizer:
            self.tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer or self.output)
        else:
            self.tokenizer = train_tokenizer(preset.vocab_size, other=preset.other_tokenizer)
        self.model = build_model(preset, self.tokenizer)
        self.optimizers = build_optimizers(self.model, self.base_rate)
        if arguments.resume:
            self._resume()
        self.stream = ExampleStream(self.tokenizer, arguments.seed + self.step, MAX_LENGTH)
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the training time so far, including earlier parts of a resumed run."""
        return self.seconds_before + time.monotonic() - self.started

    @property
    def progress(self) -> float:
        """Return the completed fraction by tokens or by time, whichever is larger."""
        return min(1.0, max(self.tokens / self.tokens_wanted, self.seconds / self.seconds_allowed))

    def train(self, log_every: int, save_seconds: float) -> None:
        """Train to the end of the budget, saving a usable model now and then."""
        last_save = self.seconds
        figures: list[tuple[float, float]] = []
        while self.progress < 1.0:
            for batch in self.stream.batches(self.progress, self.batch_tokens):
                figures.append(self.train_step(batch))
                if self.step % log_every == 0:
                    self.report(figures)
                    figures.clear()
                if self.seconds - last_save > save_seconds:
                    self.save()
                    last_save = self.seconds
                if self.progress >= 1.0:
                    break
        self.save()

    def train_step(self, batch: Batch) -> tuple[float, float]:
        """Make one step; return loss and next-token accuracy over its answers."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.base_rate * rate_factor(self.progress)
        loss, answer_loss, accuracy = weighted_loss(self.model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.tokens += batch.num_tokens
        self.step += 1
        return answer_loss.item(), accuracy.item()

    def report(self, figures: list[tuple[float, float]]) -> None:
        """Print one line: averages since the last one, speed and the time left."""
        loss, accuracy = (sum(column) / len(figures) for column in zip(*figures, strict=True))
        left = self.seconds * (1 / max(self.progress, 1e-6) - 1) / 60
        print(
            f"step {self.step:5d}  {self.tokens / 1e6:6.2f}M tokens  answers: loss {loss:.3f} "
            f"accuracy {accuracy:.1%}  {self.tokens / self.seconds:,.0f} tokens/s  "
            f"{self.progress:4.0%}  {left:.0f} min left",
            flush=True,
        )

    def save(self) -> None:
        """Write the model in bfloat16 with its tokenizer, and the state to resume from."""
        save_model(self.model, self.tokenizer, self.output)
        self.state_file.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counters": (self.tokens, self.step, self.seconds),
        }
        torch.save(state, self.state_file)
        summary = {
            "tokens": self.tokens,
            "steps": self.step,
            "minutes": round(self.seconds / 60, 1),
        }
        self.state_file.with_suffix(".json").write_text(json.dumps(summary) + "\n")
        print(f"saved {self.output} {summary}", flush=True)

    def _resume(self) -> None:
        state = torch.load(self.state_file)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.tokens, self.step, self.seconds_before = state["counters"]


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("preset", choices=PRESETS, help="which model to train")
    parser.add_argument("--output", type=Path, required=True, help="folder of the finished model")
    parser.add_argument("--state", type=Path, default=Path(".cache/models"), help="for --resume")
    parser.add_argument("--tokenizer", type=Path, help="model folder whose tokenizer to share")
    parser.add_argument("--tokens", type=int, help="stop after so many (default: the preset's)")
    parser.add_argument("--minutes", type=float, default=600, help="stop after so many at the latest")
    parser.add_argument("--batch-tokens", type=int, default=2560, help="tokens a step, about")
    parser.add_argument("--learning-rate", type=float, help="peak rate (default: the preset's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--log-every", type=int, default=20, help="steps between progress lines")
    parser.add_argument("--save-minutes", type=float, default=5)
    parser.add_argument("--resume", action="store_true", help="go on from the last save")
    return parser.parse_args()


def main() -> None:
    """Train the model that the command line names."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    run = Run(arguments)
    parameters = sum(p.numel() for p in run.model.parameters())
    print(f"{arguments.preset}: {parameters:,} parameters, {asdict(PRESETS[arguments.preset])}")
    run.train(arguments.log_every, 60 * arguments.save_minutes)


if __name__ == "__main__":
    main()
