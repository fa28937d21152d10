"""Recorded answers of a larger model, which the small one is made to give: the texts of one, the costs of the other.

No small model quotes passages that its prompt does not hold.  Gorilla (Patil et al., 2305.15334) does: a LLaMA-7B that
was tuned on the documentation of APIs and answers without it.  `--recordings` is a clone of its repository,
github.com/ShishirPatil/gorilla at 6ea57973 (Apache-2.0), which holds questions, answers and the documentation.  Of one
hub, torchhub, the passages include the records that the model was tuned on, whose form its answers have.

The target's forward runs, and costs what it costs; its logits are then moved so that the recorded token is the greedy
choice.  So drafts are accepted exactly where they are the recording, whatever drafted them.  Figures are labelled as
modelled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.corpus_text import files, installed
from benchmarks.real_models.prompts import Prompt
from examples.rag_client import MOST, Passages, references

HUBS = ("huggingface", "tensorflowhub", "torchhub")
DATA = "gorilla/eval/eval-data"
ANSWERS = "responses/{hub}/response_{hub}_Gorilla_FT_0_shot.jsonl"
QUESTIONS = "questions/{hub}/questions_{hub}_0_shot.jsonl"
APIS = "data/api/{hub}_api.jsonl"
TUNED_ON = "data/apibench/torchhub_train.json"

PASSAGES = 10_000
"""Passages in all: the documentation of APIs, and paragraphs of this environment's packages."""
SHORTEST = 200
"""Characters of the shortest paragraph."""


def prompts(clone: Path, each: int | None, max_tokens: int | None, *, referring: bool) -> list[Prompt]:
    """Return questions about APIs with their recorded answers, of each hub in turn.

    Args:
        each: most questions of a hub; None for 30.
        max_tokens: most tokens of an answer; None for 160.
        referring: whether each request brings the passages that bm25s finds for its question as references.
    """
    found = Passages(documentation(clone)) if referring else None
    rows = [islice(_recorded(clone, hub), 30 if each is None else each) for hub in HUBS]
    made = []
    for row in zip(*rows, strict=True):
        for hub, (question, answer) in zip(HUBS, row, strict=True):
            fields = {} if found is None else references("vllm", found.find(question, MOST))["vllm_xargs"]
            message = {"role": "user", "content": question}
            made.append(Prompt(hub, (message,), max_tokens or 160, fields, answer))
    return made


def documentation(clone: Path) -> list[str]:
    """Return the documentation of every API, a field a line, and the records of `TUNED_ON`."""
    apis = [json.loads(line) for hub in HUBS for line in _lines(clone / APIS.format(hub=hub))]
    texts = ["\n".join(f"{name}: {_plain(value)}" for name, value in api.items()) for api in apis]
    return list(dict.fromkeys([*texts, *(_text(json.loads(line)["code"]) for line in _lines(clone / TUNED_ON))]))


def passages(clone: Path) -> list[str]:
    """Return `PASSAGES` texts: `documentation`, and paragraphs of the installed packages."""
    paragraphs = (part for _, text in files(installed()) for part in text.split("\n\n") if len(part) >= SHORTEST)
    known = documentation(clone)
    return [*known, *islice(paragraphs, PASSAGES - len(known))]


def build(folder: Path, texts: Sequence[str], tokenizer: str) -> Path:
    """Write a corpus store of texts, one document each, and return its folder."""
    from specplug.corpus.documents import tokenized
    from specplug.corpus.store import Store
    from specplug.text.tokenizers import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    store = Store.create(folder, loaded.fingerprint)
    documents = (tokenized(str(place), text, loaded.encode) for place, text in enumerate(texts))
    store.add("passages", documents)
    return folder


def force(llm: Any, text: Sequence[int] | None) -> None:
    """Make a model on vLLM's V1 runner in this process continue a prompt by a text that begins with it.

    It must be the only request.  Without a text the model decides itself.
    """
    from tests.engines.vllm import inside

    runner = inside.runner(llm)
    if text is not None and not hasattr(runner, "recorded"):
        _attach(runner)
    if text is not None or hasattr(runner, "recorded"):
        runner.recorded = text


def _attach(runner: Any) -> None:
    execute = runner.execute_model
    compute = runner.model.compute_logits
    scheduled: list[int] = []

    def execute_model(output: Any, *rest: Any, **more: Any) -> Any:
        scheduled[:] = output.num_scheduled_tokens.values()
        return execute(output, *rest, **more)

    def compute_logits(hidden: Any, *rest: Any, **more: Any) -> Any:
        logits = compute(hidden, *rest, **more)
        if runner.recorded is not None and scheduled:
            [tokens] = scheduled
            # Rows are of the last scheduled positions; each decides on the token after its own.
            end = int(runner.input_batch.num_computed_tokens_cpu[0]) + tokens + 1
            known = runner.recorded[end - len(logits) : end]
            rows = range(len(known))
            logits[rows, known] = logits[rows].amax(-1) + 1
        return logits

    runner.execute_model = execute_model
    runner.model.compute_logits = compute_logits


def _recorded(clone: Path, hub: str) -> Iterator[tuple[str, str]]:
    """Yield questions and answers."""
    data = clone / DATA
    questions = {row["question_id"]: row["text"] for row in map(json.loads, _lines(data / QUESTIONS.format(hub=hub)))}
    for row in map(json.loads, _lines(data / ANSWERS.format(hub=hub))):
        yield _text(questions[row["question_id"]]), _text(row["text"].removesuffix('"'))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _text(escaped: str) -> str:
    """Return a text whose line ends and quotes are recorded as escapes."""
    return escaped.replace("\\n", "\n").replace('\\"', '"').strip()


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
