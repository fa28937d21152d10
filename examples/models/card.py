"""Writer of a trained model's model card from its measured figures.

python examples/models/card.py target .cache/models/target.json .cache/models/target-figures.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

PURPOSE = {
    "target": "the target model of `specplug demo`, trained to copy from its prompt",
    "draft": "a draft model for `tiny`: much smaller, with the same tokenizer",
    "draft-other": "a draft model for `tiny`: much smaller, with a different tokenizer",
}
FOLDERS = {"target": "tiny", "draft": "tiny-draft", "draft-other": "tiny-draft-other"}
KIND_NAMES = {
    "edit": "edit: a snippet applied to an excerpt, right to the character",
    "quote": "quote: a passage found by its first words, right to the character",
    "json": "json: a form filled in from a record, all values right",
    "code": "code: an excerpt continued (no right answer)",
}
LONG_EDITS = {
    "target": "Of 24 held-out edits of 600 to 1,024 tokens, prompt and answer, it got 2 right.",
}
TEMPLATE = """\
# {name}

A Llama of {parameters:.2f} M parameters ({megabytes:.1f} MB): {purpose}.
On held-out files: {headline}.

## What it is

{layers} layers, width {width}, {heads} heads, vocabulary {vocabulary} (byte-level BPE), bfloat16, trained on
texts cut at 1,024 tokens, nearly all of them much shorter (see Limits), greedy by default. An ordinary
`LlamaForCausalLM`: it loads with `AutoModelForCausalLM.from_pretrained` and runs in any engine that runs Llama.

## What it was trained on

The source code and docstrings of CPython's standard library (licence PSF-2.0), and tasks made from
them by `specplug.tools.demo.tasks`: apply a snippet in which a name is exchanged, quote a passage, fill in a
JSON form, continue code. One file in ten is held out by the hash of its name (`specplug.tools.demo.sources`)
and was never trained on; the figures below are from those files. Text repeated between files (licence
headers, common idioms) may occur on both sides. The scripts are in `examples/models/`.

{tokens:.1f} M tokens (padding included) in {steps:,} steps, {minutes:.1f} minutes on one of two CPU cores.

## What it does

Measured by `examples/models/evaluate.py` on held-out files: greedy generation for right answers;
loss (nats a token) and next-token accuracy over the answers' tokens, given the right text before.

| Task | Items | Right | Loss | Next token |
|---|---|---|---|---|
{rows}

The tasks' material is about {min_chars} to {max_chars} characters long, with short material as common as
long (log-uniform). An edit changes one line; the snippet shows it with the lines before and after.

## Limits

It shows the mechanism of speculative decoding offline, and serves for nothing else. It knows only
the prompt formats of `specplug.tools.demo.tasks`, English and Python; it does not follow instructions, its
own continuations of code make no sense for long. Long prompts are beyond it: 1,024 tokens is where training
texts are cut, not how long they are. Of 4,092 texts drawn for the last stage (tokenizer of `tiny`), half have
at most 213 tokens, 99 in 100 at most 644, and the longest 874.
{long_edits}
"""


def headline(figures: list[dict[str, Any]]) -> str:
    """Return the rates of correct answers and the loss on plain code in one line."""
    closed = [f for f in figures if f["right"] is not None]
    rates = ", ".join(f"{f['kind']} {f['right'] / f['items']:.0%} right of {f['items']}" for f in closed)
    loss = next(f["loss"] for f in figures if f["kind"] == "code")
    return f"{rates}; loss on code {loss:.2f}"


def row(figures: dict[str, Any]) -> str:
    """Return one line of the table."""
    right = "-" if figures["right"] is None else f"{figures['right'] / figures['items']:.1%}"
    if figures["valid"] is not None:
        right += f" ({figures['valid'] / figures['items']:.1%} valid JSON)"
    return (
        f"| {KIND_NAMES[figures['kind']]} | {figures['items']} | {right} "
        f"| {figures['loss']:.3f} | {figures['accuracy']:.1%} |"
    )


def main() -> None:
    """Write README.md into the model's folder."""
    from specplug.tools.demo.tasks import MAX_CHARS, MIN_CHARS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("preset", choices=FOLDERS, help="which model")
    parser.add_argument("summary", type=Path, help="what train.py left in its --state folder")
    parser.add_argument("figures", type=Path, help="what evaluate.py --json wrote")
    parser.add_argument("--models", type=Path, default=Path("specplug/tools/demo/models"))
    arguments = parser.parse_args()
    folder: Path = arguments.models / FOLDERS[arguments.preset]
    config = json.loads((folder / "config.json").read_text())
    summary = json.loads(arguments.summary.read_text())
    figures = json.loads(arguments.figures.read_text())
    size = (folder / "model.safetensors").stat().st_size
    card = TEMPLATE.format(
        name=folder.name,
        purpose=PURPOSE[arguments.preset],
        parameters=size / 2e6,
        megabytes=size / 1e6,
        headline=headline(figures),
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        vocabulary=config["vocab_size"],
        rows="\n".join(map(row, figures)),
        min_chars=MIN_CHARS,
        max_chars=MAX_CHARS,
        tokens=summary["tokens"] / 1e6,
        steps=summary["steps"],
        minutes=summary["minutes"],
        long_edits=LONG_EDITS.get(arguments.preset, ""),
    )
    (folder / "README.md").write_text(card.rstrip() + "\n")
    print(card)


if __name__ == "__main__":
    main()
