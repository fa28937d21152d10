"""`specplug generate`: text from a model, with speculation and its statistics."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from specplug.cli.launch import Device, Dtype, EngineName, Policy, Proposer, Threads, Width, flags, start_engine
from specplug.cli.output import AsJson, console, print_json
from specplug.errors import RequestError


def generate(
    model: Annotated[str, typer.Argument(help="A folder, a model id, or a shipped model: tiny.")],
    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' reads standard input.")] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="A prompt from a file; repeat."),
    ] = None,
    references: Annotated[
        list[Path] | None,
        typer.Option("--reference", "-r", exists=True, dir_okay=False, help="Text the answer may copy from; repeat."),
    ] = None,
    engine: EngineName = "transformers",
    proposer: Proposer = None,
    policy: Policy = None,
    width: Width = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens per answer.")] = 256,
    temperature: Annotated[float, typer.Option("--temperature", "-t", min=0.0, help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", help="1 is off.")] = 1.0,
    seed: Annotated[int | None, typer.Option("--seed", help="Makes sampling reproducible.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="Text that ends the answer; repeat.")] = None,
    speculate: Annotated[bool, typer.Option("--speculate/--plain", help="Draft tokens, or decode plainly.")] = True,
    device: Device = None,
    dtype: Dtype = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Generate text, streaming it as it comes, and print what speculation did.

    One prompt streams to standard output; several (`--file` repeated) are served together and printed one after the
    other.  Statistics go to standard error.

    Examples:

    `specplug generate tiny "import os"`

    `specplug generate ./my-model --file question.txt --reference passage.txt -n 16`
    """
    prompts = _prompts(prompt, files or [])
    fields: dict[str, Any] = {}
    if references:
        fields["references"] = [{"text": path.read_text(encoding="utf-8"), "name": path.name} for path in references]
    from specplug.engines import TextRequest

    overrides = flags(proposer=proposer, policy=policy, num_speculative_tokens=width, mode=None if speculate else "off")
    running = start_engine(engine, model, overrides, device=device, dtype=dtype, threads=threads)
    try:
        requests = [
            TextRequest(
                prompt=text,
                max_tokens=max_tokens,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                stop=tuple(stop or ()),
                specplug=fields,
            )
            for text in prompts
        ]
        answers, seconds = _serve(running, requests, show=not as_json)
        statistics = _statistics(running, sum(len(answer["token_ids"]) for answer in answers), seconds)
    finally:
        running.close()
    if as_json:
        print_json({"answers": answers, "statistics": statistics})
    else:
        _print_statistics(statistics)


def _prompts(prompt: str | None, files: list[Path]) -> list[str]:
    prompts = [path.read_text(encoding="utf-8") for path in files]
    if prompt is not None:
        prompts.insert(0, sys.stdin.read() if prompt == "-" else prompt)
    if not prompts:
        raise RequestError.build(
            "no prompt", who="specplug generate", expected="a prompt or --file", remedy="Use '-' to read standard input"
        )
    return prompts


def _serve(engine: Any, requests: list[Any], *, show: bool) -> tuple[list[dict[str, Any]], float]:
    answers: list[dict[str, Any]] = [{"text": "", "token_ids": [], "finish_reason": None} for _ in requests]
    streaming = show and len(requests) == 1
    began = time.perf_counter()
    for update in engine.stream(requests):
        answer = answers[update.index]
        answer["text"] += update.text
        answer["token_ids"] += update.token_ids
        answer["finish_reason"] = update.finish_reason
        if streaming:
            typer.echo(update.text, nl=False)
            sys.stdout.flush()
    seconds = time.perf_counter() - began
    if streaming:
        typer.echo()
    elif show:
        for number, answer in enumerate(answers, 1):
            typer.echo(f"--- answer {number} of {len(answers)} ---\n{answer['text']}")
    return answers, seconds


def _statistics(engine: Any, tokens: int, seconds: float) -> dict[str, Any]:
    snapshot = engine.metrics.snapshot()
    total = snapshot.total
    return {
        "model": engine.describe(),
        "tokens": tokens,
        "target_steps": total.target_steps,
        "tokens_per_step": total.tau,
        "drafted": total.proposed,
        "accepted": total.accepted,
        "acceptance_rate": total.acceptance_rate,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "accepted_by_source": {name: counts.accepted for name, counts in snapshot.by_source.items() if counts.proposed},
        "faults": snapshot.faults,
    }


def _print_statistics(found: dict[str, Any]) -> None:
    rate = found["acceptance_rate"]
    faults = [f"{count} {kind} ({who})" for who, kinds in found["faults"].items() for kind, count in kinds.items()]
    parts = [
        f"{found['tokens']} tokens in {found['target_steps']} steps: {found['tokens_per_step'] or 0:.2f} per step",
        f"{found['drafted']} drafted, {'none' if rate is None else f'{rate:.0%}'} accepted",
        *faults,
        f"{found['tokens_per_second']:.0f} tokens/s",
        found["model"],
    ]
    console(stderr=True).print(Text("; ".join(parts), style="dim"))
