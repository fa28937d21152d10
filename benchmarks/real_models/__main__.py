"""Comparison of specplug with each engine's own lookup and with no speculation, on a real language model, in one run.

    make models setup-vllm setup-vllm-peers setup-sglang
    .venv/bin/python -m benchmarks.real_models --engine transformers
    .venv-vllm/bin/python -m benchmarks.real_models --engine vllm-v1 [--concurrency 1 8 32] [--fresh 3] [--json v1.json]
    .venv-vllm/bin/python -m benchmarks.real_models --engine vllm-v2 --prompts 1
    .venv-sglang/bin/python -m benchmarks.real_models --engine sglang --prompts 2
    python -m benchmarks.real_models --engine vllm-gpu --llm '{"dtype": "bfloat16"}'  # vLLM's own environment, on a GPU

Arms are no speculation, the engine's own lookup at several settings, and specplug as README.md launches it; each has
one CPU thread.  They answer chats of six kinds through the model's chat template, in groups of `--concurrency` prompts,
one working at a time: vLLM's arms take turns of four steps, so that other work slows all alike, and the others answer
group by group.  No server sees a prompt twice.  Ratios are of tokens per second,
prefills included, by wall clock and by CPU time, which other work on the machine disturbs less: by kind, and their
geometric mean, with 95 % bootstrap intervals over the groups.  On vLLM's V2 runner and on SGLang a CPU runs stand-ins
for kernels, so only counts mean anything.  `--fresh 3` also compares three pairs of servers from their first steps on.

Greedy texts that differ from those without speculation are shown with the gap between the two tokens' logits: near
ties are decided by rounding, and any other difference makes the exit code 1.  With `--temperature 0.7` each prompt has
a seed.  `--samples 8 --concurrency 8 --temperature 1` answers each prompt eight times at once, as rollouts do,
without seeds: see docs/ngram.md#siblings.

`--scenario` asks what a client or a server knows that an engine's own lookup does not use, on vLLM's V1: "prediction"
(each request brings a text: its answer with 1 in 20 or 1 in 5 words changed, or another answer), "turns" (chats of
eight turns in which code is edited) or "rollouts" (eight samples of each prompt at temperature 0.7).  Two need
`--recordings CLONE` of github.com/ShishirPatil/gorilla, whose answers the model is made to give, so that they are
modelled: "corpus" (the server holds 10,000 passages, which answers quote and prompts do not hold) and "references"
(each request brings the passages that bm25s finds for it).

`--draft DIR`, a draft model such as `python -m benchmarks.real_models.draft_model --out DIR` makes, compares the
engine's own `draft_model` with `hybrid` over it, and with specplug's policy alone.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import in_words, machine, versions
from benchmarks.models import folder
from benchmarks.peers import note
from benchmarks.real_models import recordings, report
from benchmarks.real_models.arms import BASELINE, Arm, chosen
from benchmarks.real_models.equality import NEAR_TIE, differences
from benchmarks.real_models.prompts import KINDS, Prompt, more_chats, read
from benchmarks.real_models.run import Arms, Task, fresh, measured, running
from benchmarks.real_models.scenarios import RECORDED, SCENARIOS, Scenario
from benchmarks.real_models.statistics import Clock, ranked

ENGINES = ("transformers", "vllm-v1", "vllm-gpu", "vllm-v2", "sglang")
TIMED = ENGINES[:3]
CONTEXT = 2048
HOPELESS = 2.0
"""Temperature of texts of which no draft token is right but by chance."""
AT_ONCE = 8
"""Constants that run at a time: a server with SmolLM2 takes 1.5 GB."""
MIN_SURVIVALS = (0.05, 0.1, 0.2, 0.4, 0.6)
CONSTANT_LENGTHS = (3, 7, 15)


def model_folder(name: str) -> str:
    """Return the folder of a fetched model, of the shipped one, or of another path."""
    from specplug.tools.demo import model_path

    found = folder(name) or (model_path(name) if name == "tiny" else Path(name))
    if not (found / "config.json").exists():
        sys.exit(f"--model {name}: no such model; `make models` gets smollm2 and gemma3, and tiny is part of specplug")
    return str(found)


def arms_of(
    engine: str, model: str, concurrency: int, llm: dict[str, Any], draft: str | None = None, **settings: Any
) -> tuple[list[Arm], Any, tuple[str, ...]]:
    """Return an engine's arms, the function that answers on them, and the packages whose versions matter.

    `draft` is the folder of a draft model, and `settings` are further ones of specplug's, both on vLLM's own runners.
    """
    if engine == "transformers":
        from benchmarks.real_models import on_transformers as it

        return it.arms(model, concurrency), it.answer, it.PACKAGES
    if engine == "sglang":
        from benchmarks.real_models import on_sglang

        return on_sglang.arms(model, CONTEXT, concurrency), on_sglang.answer, on_sglang.PACKAGES
    from benchmarks.real_models import on_vllm

    if engine == "vllm-gpu":
        from benchmarks.real_models import on_gpu

        return on_gpu.arms(model, CONTEXT, concurrency, llm), on_vllm.answer, on_gpu.PACKAGES
    runner = engine.removeprefix("vllm-")
    return on_vllm.arms(model, CONTEXT, concurrency, runner, draft, **settings), on_vllm.answer, on_vllm.PACKAGES


def where_it_runs(engine: str) -> str:
    """Return the machine in one line, with its GPU if it serves."""
    if engine != "vllm-gpu":
        return in_words(machine(), 1)
    import torch

    return f"{torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}; {machine()['cpu']}"


def tasks(
    options: argparse.Namespace, model: str, concurrency: int, plain: Arm, answer: Any
) -> tuple[Task, Task, Task]:
    """Return what is measured, what warms up, and what fresh servers are asked.

    Args:
        plain, answer: the arm without speculation and its engine's function, which write what a scenario needs.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)

    def task(prompts: Any) -> Task:
        ids, seeded = [prompt.ids(tokenizer) for prompt in prompts], options.samples == 1  # V1 drafts none with seeds
        made = Task(prompts, ids, concurrency, options.temperature, seeded)
        return made.recorded(tokenizer) if any(prompt.answer for prompt in prompts) else made

    def written(arms: Arms, prompts: Sequence[Prompt]) -> list[str]:
        asked = replace(task(prompts), concurrency=1, temperature=0.0)
        answers = [arms.ask(BASELINE, asked, [place]).token_ids[0] for place in range(len(prompts))]
        return [tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]

    chats = more_chats(options.max_tokens)
    if options.scenario is None:
        prompts = read(options.kinds, options.prompts, options.max_tokens)
    elif options.scenario in RECORDED:
        referring = RECORDED[options.scenario]
        prompts = recordings.prompts(options.recordings, options.prompts, options.max_tokens, referring=referring)
    else:
        note(f"writing the texts of the scenario: {options.scenario}")
        with running(options.engine, [plain], answer) as arms:
            write = functools.partial(written, arms)
            prompts = SCENARIOS[options.scenario].prompts(write, options.prompts, options.max_tokens)
    measured = [prompt for prompt in prompts for _ in range(options.samples)]
    fresh = task(chats[: options.fresh_chats])
    if options.hopeless:
        fresh = replace(fresh, temperature=HOPELESS, seeded=False, ignore_eos=True)
    return task(measured), task(chats[: options.warm_up * concurrency]), fresh


def best_constant(options: argparse.Namespace, model: str, concurrency: int, task: Task, warm_up: Task) -> Any:
    """Return the constant that is fastest on a task by CPU time, and the ratio to no speculation of each.

    Their servers run a few at a time, each time beside no speculation.
    """
    from benchmarks.real_models import on_vllm

    grid = on_vllm.constants(model, CONTEXT, concurrency, options.min_survivals, options.constant_lengths)
    if len(grid) == 1:
        return grid[0], {}
    baseline = on_vllm.arms(model, CONTEXT, concurrency, "v1")[:1]
    found = []
    for first in range(0, len(grid), AT_ONCE):
        with running(options.engine, [*baseline, *grid[first : first + AT_ONCE]], on_vllm.answer) as hosts:
            run = measured(hosts, task, warm_up, options.rounds)
        found.append(run.decoding() if options.decoding else run)
    scores = ranked(found, BASELINE, "cpu")
    return next(arm for arm in grid if arm.name == next(iter(scores))), scores


def run(options: argparse.Namespace, model: str, concurrency: int, **settings: Any) -> dict[str, Any]:
    """Return the results at one concurrency, and print them; `settings` are further ones of specplug's."""
    everything, answer, packages = arms_of(options.engine, model, concurrency, options.llm, options.draft, **settings)
    arms = chosen(everything, options.arms)
    for part in options.arms or ():
        if not any(part in arm.name for arm in arms):
            names = ", ".join(arm.name for arm in everything)
            sys.exit(f"--arms {part}: no such arm among {names}; suffix decoding needs `make setup-vllm-peers`")
    task, warm_up, chats = tasks(options, model, concurrency, arms[0], answer)
    timed = options.engine in TIMED
    # The process of an engine with a GPU uses no CPU worth counting.
    clocks: tuple[Clock, ...] = ("wall",) if options.engine == "vllm-gpu" else ("wall", "cpu") if timed else ()
    results: dict[str, Any] = {"concurrency": concurrency, "differences": []}
    if options.constants:
        choosing, task = task.split(options.constants * len(options.kinds) * options.samples)
        best, results["constants"] = best_constant(options, model, concurrency, choosing, warm_up)
        arms.append(best)
    gaps = model if options.temperature == 0 else None
    with running(options.engine, arms, answer) as hosts:
        if task.prompts:
            found = measured(hosts, task, warm_up, options.rounds)
            differing = differences(found, task.ids, gaps)
            shown = found.decoding() if options.decoding else found
            results["ratios"] = report.compared(shown, arms, clocks)
            results["counts"] = {name: report.counts(found, name, differing) for name in found.answers}
            results["left_out"] = found.left_out
            results["run"] = report.plain(shown, differing)
            results["differences"] += differing
        if options.fresh and timed and report.OURS in hosts.hosts:
            pairs = fresh(hosts, report.OURS, chats, options.fresh, options.fresh_steps[-1])
            results["fresh"] = report.of_fresh(pairs, clocks, options.fresh_steps, options.decoding)
            for pair in [] if options.hopeless else pairs:
                results["differences"] += differences(pair, chats.ids, gaps)
    used = versions(*packages)
    where = f"{where_it_runs(options.engine)}; {Path(model).name}; {packages[0]} {used[packages[0]]}, {options.engine}"
    texts = f"temperature {HOPELESS if options.hopeless else options.temperature:g}"
    report.print_all(f"{where}; {concurrency} at a time, {texts}{', after prefills' * options.decoding}", results)
    return {**results, "differences": [asdict(each) for each in results["differences"]], "versions": used}


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma3, tiny, or a folder (default: smollm2)")
    parser.add_argument("--arms", nargs="+", help="parts of the names of arms to run, beside no speculation")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="default: all")
    parser.add_argument("--prompts", type=int, help="most prompts of a kind; 0: only fresh servers (default: all)")
    parser.add_argument("--max-tokens", type=int, help="most tokens of an answer (default: as the prompts say)")
    parser.add_argument("--samples", type=int, default=1, help="answers to each prompt (default: 1)")
    parser.add_argument("--scenario", choices=(*SCENARIOS, *RECORDED), help="other prompts, see above (vllm-v1)")
    parser.add_argument("--recordings", type=Path, help="a clone of Gorilla's repository, for two of the scenarios")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1], help="prompts at a time (default: 1)")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: 0, greedy")
    parser.add_argument("--rounds", type=int, default=1, help="runs with fresh processes (default: 1)")
    parser.add_argument("--warm-up", type=int, default=2, help="groups of other chats before (default: 2)")
    parser.add_argument("--fresh", type=int, default=0, help="pairs of fresh servers to measure as well (default: 0)")
    parser.add_argument("--fresh-chats", type=int, help="most chats that fresh servers answer (default: all)")
    parser.add_argument("--fresh-steps", type=int, nargs="+", default=[64, 256, 1024], help="default: 64 256 1024")
    parser.add_argument("--hopeless", action="store_true", help="fresh servers sample at temperature 2, past all ends")
    parser.add_argument("--decoding", action="store_true", help="leave out the time until every answer has begun")
    parser.add_argument("--constants", type=int, default=0, help="prompts of a kind that choose the best constant (V1)")
    parser.add_argument("--min-survivals", type=float, nargs="+", default=MIN_SURVIVALS, help="of the constants")
    parser.add_argument("--constant-lengths", type=int, nargs="+", default=CONSTANT_LENGTHS, help="of the constants")
    parser.add_argument(
        "--draft", help="folder of a draft model, which drafts in place of lookup and before it (V1, V2)"
    )
    parser.add_argument("--llm", type=json.loads, default={}, metavar="JSON", help="vllm-gpu: arguments of vLLM's LLM")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    return parser


def main() -> None:
    """Run the benchmark and print the results."""
    parser = arguments()
    options = parser.parse_args()
    if options.constants and (options.engine != "vllm-v1" or (options.prompts or 16) <= options.constants):
        parser.error("--constants needs --engine vllm-v1, and fewer prompts of a kind than --prompts")
    if options.scenario is not None:
        if options.engine != "vllm-v1" or options.constants or options.rounds > 1:
            parser.error("--scenario needs --engine vllm-v1, and takes no --constants and no --rounds")
        if (options.scenario in RECORDED) != (options.recordings is not None):
            parser.error(f"--recordings is needed by --scenario {' and '.join(RECORDED)}, and by no other")
        scenario = SCENARIOS.get(options.scenario, Scenario(lambda *_: []))
        options.samples = scenario.samples
        options.temperature = scenario.temperature
        options.concurrency = [options.samples]
    model = model_folder(options.model)
    with tempfile.TemporaryDirectory() as temporary:
        settings: dict[str, Any] = {}
        if options.scenario == "corpus":
            note("writing the corpus")
            store = recordings.build(Path(temporary), recordings.passages(options.recordings), model)
            settings = {"proposer": "retrieval", "corpora": {"store": str(store)}}
        results = [run(options, model, concurrency, **settings) for concurrency in options.concurrency]
    if options.json is not None:
        stated = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        options.json.write_text(json.dumps({"machine": machine(), "options": stated, "results": results}) + "\n")
    wrong = [
        difference
        for result in results
        for difference in result["differences"]
        if options.temperature == 0 and (difference["gap"] is None or difference["gap"] >= NEAR_TIE)
    ]
    if wrong:
        sys.exit(f"{len(wrong)} texts differ from those without speculation, and not by a near tie: {wrong[:3]}")


if __name__ == "__main__":
    main()
