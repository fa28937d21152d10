"""`specplug generate` command: generates text with speculation and prints its statistics."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from specplug.errors import RequestError
from specplug.plugins.embedded import TextEngine, TextRequest
from specplug.tools.cli.launch import TEMPLATE, prompt_form, read_text, start_engine
from specplug.tools.cli.options import Drafting, Place, Raw, option, with_groups
from specplug.tools.cli.output import AsJson, faults_of, print_note, show
from specplug.tools.demo.compare import loop_mask

RAW_ENDS = "; instruct models often do so with a raw prompt, so leave out --raw"


@dataclass(frozen=True)
class Prompts:
    """The prompts, and what goes with them."""

    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' reads standard input.")] = None
    files: list[Path] | None = option(
        None, "A prompt from a file; repeat.", "--file", "-f", exists=True, dir_okay=False
    )
    references: list[Path] | None = option(
        None, "Text the answer may copy from; repeat.", "--reference", "-r", exists=True, dir_okay=False
    )
    system: str | None = option(None, "A system prompt for the chat template.", metavar="TEXT")
    raw: Raw = False

    def texts(self) -> list[str]:
        """Return the texts of the prompts."""
        texts = [read_text(path, str(path)) for path in self.files or ()]
        if self.prompt is not None:
            texts.insert(0, sys.stdin.read() if self.prompt == "-" else self.prompt)
        if not texts:
            expected = "a prompt or --file"
            remedy = "Use '-' to read standard input"
            raise RequestError.build("no prompt", who="specplug generate", expected=expected, remedy=remedy)
        return texts

    def fields(self) -> dict[str, Any]:
        """Return specplug's fields of each request."""
        texts = [{"text": read_text(path, str(path)), "name": path.name} for path in self.references or ()]
        return {"references": texts} if texts else {}


@dataclass(frozen=True)
class Sampling:
    """How each answer is made."""

    max_tokens: int = option(256, "Most tokens per answer.", min=1)
    temperature: float = option(0.0, "0 is greedy.", "--temperature", "-t", min=0.0)
    top_k: int = option(0, "0 is off.", min=0)
    top_p: float = option(1.0, "1 is off.")
    seed: int | None = option(None, "Makes sampling reproducible.")
    stop: list[str] | None = option(None, "Text that ends the answer; repeat.")


@with_groups
def generate(
    model: Annotated[str, typer.Argument(help="A folder, a model id, or a shipped model: tiny.")],
    given: Prompts,
    drafting: Drafting,
    sampling: Sampling,
    *,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also decode without drafts and print both; greedy outputs must be equal.")
    ] = False,
    speculate: Annotated[bool, typer.Option("--speculate/--plain", help="Decode with or without drafts.")] = True,
    place: Place,
    as_json: AsJson = False,
) -> None:
    """Generate text, streaming it, and print speculation statistics.

    A model with a chat template gets each prompt in it, as a user's message, unless `--raw` is given.

    One prompt streams to standard output; several (`--file` repeated) are served together and printed one after the
    other.  Statistics go to standard error, and count tokens in repetition loops, where any lookup looks perfect.
    With `--compare`, the exit code is 1 if greedy outputs differ from those of plain decoding.

    Examples:

    `specplug generate ./my-model "Give me five tips for sleeping better." --compare`

    `specplug generate ./my-model --file question.txt --reference passage.txt`
    """
    texts = given.texts()
    fields = given.fields()
    settings = drafting.settings(mode=None if speculate else "off")
    with closing(start_engine(model, settings, **place.arguments())) as running:
        form, described = prompt_form(model, raw=given.raw, system=given.system)
        print_note(described)
        own = {**asdict(sampling), "stop": tuple(sampling.stop or ())}
        requests = [TextRequest(prompt=form(text), specplug=fields, **own) for text in texts]
        answers, seconds = _serve(running, requests, show=not as_json)
        statistics = _statistics(running, answers, seconds)
    if compare:
        with closing(start_engine(model, {**settings, "mode": "off"}, **place.arguments())) as plain:
            expected, statistics["plain_seconds"] = _serve(plain, requests, show=False)
        statistics["identical"] = answers == expected if sampling.temperature == 0 else None
    for number, answer in enumerate(answers, 1):
        if why := _ended_at_once(answer, sampling):
            print_note(f"answer {number} of {len(answers)} {why}{RAW_ENDS if given.raw else ''}")
    if as_json:
        statistics["chat_template"] = described == TEMPLATE
        show({"answers": answers, "statistics": statistics}, as_json=True)
    else:
        _print_statistics(statistics)
    if statistics.get("identical") is False:
        raise typer.Exit(1)


def _serve(engine: TextEngine, requests: list[TextRequest], *, show: bool) -> tuple[list[dict[str, Any]], float]:
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


def _ended_at_once(answer: dict[str, Any], sampling: Sampling) -> str | None:
    """Return why an answer holds no text, or has ended after at most one token; None if neither is so."""
    is_empty = not answer["text"].strip()
    count = len(answer["token_ids"])
    if not is_empty and (count > 1 or answer["finish_reason"] == "length"):
        return None
    state = "is empty" if is_empty else f"is only {answer['text']!r}"
    if answer["finish_reason"] == "length":
        return f"{state}: its {sampling.max_tokens} tokens (--max-tokens) make no text"
    ends = "the model ended it at once" if count <= 1 else f"its {count} tokens are white space or markers"
    return f"{state}: {ends}{', or it began with a --stop text' if sampling.stop else ''}"


def _statistics(engine: TextEngine, answers: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    tokens = sum(len(answer["token_ids"]) for answer in answers)
    snapshot = engine.metrics.snapshot()
    total = snapshot.total
    return {
        "model": engine.describe(),
        "tokens": tokens,
        "tokens_in_loops": sum(sum(loop_mask(answer["token_ids"])) for answer in answers),
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
    in_loops = found["tokens_in_loops"]
    loops = [f"{in_loops} tokens in loops, where any lookup looks perfect"] if in_loops else []
    parts = [
        f"{found['tokens']} tokens in {found['target_steps']} steps: {found['tokens_per_step'] or 0:.2f} per step",
        f"{found['drafted']} drafted, {'none' if rate is None else f'{rate:.0%}'} accepted",
        *loops,
        *faults_of(found["faults"]),
        rate_text(found["tokens_per_second"]),
        found["model"],
    ]
    print_note("; ".join(parts))
    if "plain_seconds" in found:
        verdicts = {True: "outputs are identical", False: "outputs DIFFER", None: "sampled, so outputs may differ"}
        ratio = found["plain_seconds"] / found["seconds"]
        plain = rate_text(found["tokens"] / found["plain_seconds"])
        verdict = verdicts[found["identical"]]
        print_note(f"plain decoding: {plain}; {ratio:.2f} times as fast with speculation; {verdict}")


def rate_text(rate: float) -> str:
    """Return a rate in tokens per second as text, with a decimal below 10."""
    return f"{rate:.{1 if rate < 10 else 0}f} tokens/s"
