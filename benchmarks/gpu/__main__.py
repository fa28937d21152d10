"""Correctness and time of drafting in the stream of a GPU, in one command.

    python3 -m benchmarks.gpu [--device cuda] [--minutes 8] [--out FOLDER]

It unpacks what is missing from wheels in a folder, compares kernels, steps and verification on the GPU with the CPU,
and then measures; see benchmarks/gpu/README.md.  `--device cpu` runs the same on a CPU with small sizes, to see that it
runs; its times mean nothing.  A part that raises is reported, and the next one runs.  The exit code is 0 only if all
that was compared is equal and nothing raised.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.packages import ROOT, WHEELS, make_importable

PARTS = ("correctness", "model", "drafting", "bubble")
DRY: dict[str, Any] = {"batches": [1, 3], "contexts": [64], "rounds": 2, "steps": 3, "cases": 20}
FULL: dict[str, Any] = {
    "batches": [1, 8, 32, 64, 128, 256, 512],
    "contexts": [1024, 8192, 32768, 131072],
    "rounds": 5,
    "steps": 20,
    "cases": 400,
}
DRY_TOKENS, MOST_TOKENS = 5000, 6_000_000
LAST_MINUTES = 1.5
"""Of all minutes those in which no case begins: one that has begun may take so long."""


def main(arguments: list[str] | None = None) -> int:
    """Run all parts, print the tables, and write both to the results' folder; return the exit code."""
    began, options = time.monotonic(), _parse(arguments)
    if options.minutes:  # a stream that stands still would wait forever: print all stacks, and end
        faulthandler.dump_traceback_later(60 * options.minutes, exit=True)
    unpacked = make_importable(options.wheels)
    try:
        return _run(options, unpacked, began)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _run(options: argparse.Namespace, unpacked: list[str], began: float) -> int:
    from benchmarks.gpu.device import open_device
    from benchmarks.gpu.report import show
    from benchmarks.gpu.texts import library_tokens, set_aside

    deadline = began + 60 * (options.minutes - LAST_MINUTES) if options.minutes else float("inf")
    device, path = open_device(options.device), options.out / "gpu.json"
    options.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": machine(device), "unpacked": unpacked, "wrong": []}
    report["options"] = {name: str(value) for name, value in vars(options).items()}
    print(json.dumps(report["machine"], indent=2), flush=True)
    tokens, finished = set_aside(library_tokens(DRY_TOKENS if options.device == "cpu" else MOST_TOKENS))
    in_responses = sum(map(len, finished))
    report["texts"] = {"decoded": tokens.size, "finished": in_responses, "responses": len(finished)}
    for name, part in _parts(options, device, tokens, finished, deadline).items():
        print(f"{name}, {time.monotonic() - began:.0f} s after the start", flush=True)
        try:
            report[name] = part()
        except Exception as error:
            traceback.print_exc()
            report[name] = {"raised": traceback.format_exc(), "wrong": [f"raised {type(error).__name__}: {error}"]}
        report["wrong"] += [f"{name}: {stated}" for stated in report[name]["wrong"]]
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as tables:
        show({name: part for name, part in report.items() if not (isinstance(part, dict) and "raised" in part)})
        print(f"{device.name}; {time.monotonic() - began:.0f} s; all figures are in {path}")
    path.with_suffix(".txt").write_text(tables.getvalue(), encoding="utf-8")
    print(tables.getvalue(), end="")
    return 1 if report["wrong"] else 0


def _parts(
    options: argparse.Namespace, device: Any, tokens: Any, finished: Any, deadline: float
) -> dict[str, Callable[[], dict[str, Any]]]:
    from benchmarks.gpu import bubble, correctness, draft_model, drafting

    gamma, rounds, steps = options.draft_lengths[0], options.rounds, options.steps
    # For whole steps and for further draft lengths, one context and a third of the batch sizes are enough.
    context = sorted(options.contexts)[min(1, len(options.contexts) - 1)]
    few = [(gamma, rows, context) for gamma in options.draft_lengths for rows in options.batches[::3]]
    cases = [(gamma, rows, length) for rows in options.batches for length in options.contexts]
    alone = drafting.Sizes(sorted({*cases, *few}, key=math.prod), rounds, steps)
    whole = bubble.Sizes(few, options.model_ms, rounds, 2 * steps)
    reserved = 0.2 * 60 * options.minutes  # for whole steps, which come last
    every: dict[str, Callable[[], dict[str, Any]]] = {
        "correctness": lambda: correctness.check(device.device, options.cases),
        "model": lambda: draft_model.measure(device, options.batches[:4], gamma, rounds, deadline - 2 * reserved),
        "drafting": lambda: drafting.measure(device, tokens, finished, alone, deadline - reserved),
        "bubble": lambda: bubble.measure(device, tokens, finished, whole, deadline),
    }
    return {name: every[name] for name in options.parts}


def machine(device: Any) -> dict[str, Any]:
    """Return the device, the processor, and the versions of what runs."""
    import torch

    from benchmarks.machine import machine as of_host
    from benchmarks.machine import versions

    used = versions("torch", "triton", "numpy", "numba", "llvmlite", "pydantic", "pluggy", "specplug")
    software = {"python": platform.python_version(), "cuda": torch.version.cuda, **used}
    return {"device": device.name, **of_host(), "software": software}


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python3 -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is a dry run (default: cuda)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--minutes", type=float, default=8, help="of the whole run; 0: any number (default: 8)")
    out = Path(os.environ.get("OUT") or ROOT / "build" / "gpu")
    parser.add_argument("--out", type=Path, default=out, help="the results' folder (default: $OUT, or build/gpu)")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="folder of wheels (default: %(default)s)")
    parser.add_argument("--draft-lengths", type=int, nargs="+", default=[7, 15], help="gamma (default: 7 15)")
    parser.add_argument("--model-ms", type=float, default=5, help="milliseconds of a model's step (default: 5)")
    for name in ("batches", "contexts"):
        parser.add_argument(f"--{name}", type=int, nargs="+", help=f"default: {FULL[name]}")
    for name in ("rounds", "steps", "cases"):
        parser.add_argument(f"--{name}", type=int, help=f"default: {FULL[name]}")
    options = parser.parse_args(arguments)
    for name, value in (DRY if options.device == "cpu" else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


if __name__ == "__main__":
    sys.exit(main())
