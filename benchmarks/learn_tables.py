"""Learns what the tables of lookup start from, and writes `specplug/match/cpu/start_weights.py`.

    python -m benchmarks.learn_tables answers.jsonl

All texts may be redistributed: the shipped traces (licences in `specplug/replay/traces/README.md`), and a model's own
answers to `benchmarks/real_models/chats.txt` and `specplug/demo/chats.jsonl`.  The answers are made if the file does
not exist, greedily by SmolLM2-135M-Instruct (Apache-2.0), which `python -m benchmarks.models smollm2` downloads.

Every text is replayed by a lookup that has learnt nothing from the texts before it but keeps their responses: once as
it is, and once with a corpus of other prompts, of the documents cut out of its own, and of the files to be edited.
Hits and tries of a workload count as at most `MOST_TRIES`; the weights are a logistic regression's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.real_models.prompts import Prompt, more_chats
from specplug.match.cpu.corpus_index import IndexSegment
from specplug.match.cpu.lookup import Lookup
from specplug.match.cpu.sorting import sorted_places
from specplug.match.cpu.tables import evidence_features, vote_features
from specplug.match.cpu.texts import NO_TEXT
from specplug.match.options import LookupSettings
from specplug.replay import load_tokenizer, read_traces, tokenize
from specplug.replay.items import Ids, TokenItem, without_documents
from specplug.types.draft import Draft

ROOT = Path(__file__).parents[1]
MODEL = Path(os.environ.get("SPECPLUG_MODELS", "~/.cache/specplug/models")).expanduser() / "smollm2"
MOST_TRIES = 12_000
RIDGE = 1.0
DRAFT_LENGTH = 15


def answer(file: Path) -> None:
    """Write the model's answers as traces, 16 prompts at a time, the shortest answers first."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    demo = map(json.loads, (ROOT / "specplug/demo/chats.jsonl").read_text(encoding="utf-8").splitlines())
    prompts = more_chats() + [Prompt(it["kind"], ({"role": "user", "content": it["prompt"]},), 200) for it in demo]
    with file.open("w", encoding="utf-8") as lines, torch.inference_mode():
        for begin in range(0, len(prompts), 16):
            batch = sorted(prompts, key=lambda it: it.max_tokens)[begin : begin + 16]
            texts = [tokenizer.decode(it.ids(tokenizer)) for it in batch]
            given = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
            found = model.generate(**given, max_new_tokens=batch[-1].max_tokens, do_sample=False)
            for k, (text, row) in enumerate(zip(texts, found[:, given.input_ids.shape[1] :], strict=True)):
                output = tokenizer.decode(row[: batch[k].max_tokens], skip_special_tokens=True)
                item = {"id": str(begin + k), "workload": "answers", "prompt": text, "output": output}
                lines.write(json.dumps(item) + "\n")


def segment(texts: Sequence[Ids]) -> IndexSegment:
    """Return a corpus of texts."""
    ids = np.concatenate([[NO_TEXT], *(np.append(text, NO_TEXT) for text in texts)]).astype(np.int32)
    starts = np.cumsum([1, *(len(text) + 1 for text in texts)])
    return IndexSegment(ids, sorted_places(ids), starts, np.zeros(len(texts), np.int32), ["corpus"])


def counted(items: Sequence[TokenItem], corpus: Sequence[Ids] = ()) -> list[Any]:
    """Replay items; return the hits and tries in `votes` and `evidence`, each [n, 2]."""
    longest = max(len(it.prompt) + len(it.output) for it in items)
    lookup = Lookup(1, longest + 1, DRAFT_LENGTH, LookupSettings(), trees=False)
    if corpus:
        lookup.load({"": [segment(corpus)]})
    draft = Draft.allocate(1, DRAFT_LENGTH, trees=False, sources=("",) * 4)
    slot = torch.tensor([0])
    start = [table.copy() for table in lookup.tables.arrays]
    sums: list[Any] = [0.0, 0.0]  # of `votes` and `evidence`, the first two
    limits = torch.tensor([DRAFT_LENGTH], dtype=torch.int32)
    for it in items:
        text = np.concatenate((it.prompt, it.output))
        length = len(it.prompt) + 1
        new = 1
        lookup.start(0, owner="", tenant="" if corpus else None)
        lookup.begin(0, it.prompt, len(text))
        while True:
            counts = (torch.tensor([number], dtype=torch.int32) for number in (length, new))
            lookup.ingest(slot, torch.from_numpy(text[None]), slot, *counts, None)
            if length == len(text):
                break
            lookup.propose(slot, limits, draft)
            drafted = draft.token_ids[0, : draft.lengths[0]].numpy()[: len(text) - length]
            wrong = np.flatnonzero(drafted != text[length : length + len(drafted)])
            new = min(int(wrong[0]) if len(wrong) else len(drafted), len(text) - length - 1) + 1
            length += new
        lookup.remember(0, "", len(it.prompt), len(text))
        learnt = lookup.tables.arrays
        sums = [total + table - before for total, table, before in zip(sums, learnt, start, strict=False)]
        for table, before in zip(learnt, start, strict=True):
            table[:] = before
    return sums


def fitted(features: Any, counts: Any) -> list[float]:
    """Return the weights of a logistic regression with a small penalty, by Newton's method."""
    hits = counts[:, 0]
    tries = counts[:, 1]
    weights = np.zeros(features.shape[1])
    for _ in range(30):
        rates = 1 / (1 + np.exp(-features @ weights))
        slope = features.T @ (hits - tries * rates) - RIDGE * weights
        curvature = (features.T * (tries * rates * (1 - rates))) @ features + RIDGE * np.eye(len(weights))
        weights = weights + np.linalg.solve(curvature, slope)
    return [round(float(weight), 3) + 0.0 for weight in weights]


def main(answers: Path) -> None:
    """Replay all texts, fit the weights and write them."""
    if not answers.exists():
        answer(answers)
    read = read_traces(ROOT / "specplug/replay/traces")
    tokenizer = load_tokenizer(str(MODEL))
    read["answers"] = [item for items in read_traces(answers).values() for item in items]
    workloads = {name: tokenize(items, tokenizer) for name, items in read.items()}
    sums = [0.0, 0.0]
    for name, items in workloads.items():
        others = [it.prompt for other in workloads if other not in (name, "answers") for it in workloads[other][::3]]
        bare = tokenize([without_documents(item) for item in read[name]], tokenizer)
        own = [document for it in items for document in it.documents]
        if name == "code_edit":  # a request without the file that is to be edited, which is in the corpus
            own = [it.prompt for it in items]
            bare = [replace(it, prompt=it.prompt[-40:]) for it in items]
        counts = [sum(pair) for pair in zip(counted(items), counted(bare, [*others, *own]), strict=True)]
        share = min(1.0, MOST_TRIES / counts[1][:, 1].sum())
        sums = [total + share * count for total, count in zip(sums, counts, strict=True)]
    lines = ['"""Weights of `tables`, written by `benchmarks.learn_tables`, which says from which texts."""', ""]
    for name, features, total in zip(("VOTES", "EVIDENCE"), (vote_features(), evidence_features()), sums, strict=True):
        lines += [f"{name} = (", *(f"    {weight}," for weight in fitted(features, total)), ")"]
    (ROOT / "specplug/match/cpu/start_weights.py").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
