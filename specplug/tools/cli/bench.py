"""`specplug bench` command: says whether speculation, or one server against another, is faster on one's own traffic."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specplug.errors import EngineError, SettingsError
from specplug.tools.cli.html_report import HtmlFile, write_report
from specplug.tools.cli.launch import parse_numbers, server_form
from specplug.tools.cli.options import Raw, Server, with_groups
from specplug.tools.cli.output import AsJson, print_error, print_note, progress, remark_text, show
from specplug.tools.cli.replay import SHIPPED
from specplug.tools.client.http import ServerClient
from specplug.tools.client.interrupt import run_interruptible

if TYPE_CHECKING:
    from specplug.tools.bench.prompts import Group, Prompt
    from specplug.tools.bench.run import Course
    from specplug.tools.bench.sides import Side
    from specplug.tools.cli.bench_report import Report


@dataclass(frozen=True)
class Requests:
    """The requests of a run, and when it ends."""

    until: Annotated[
        Literal["decided", "end"],
        typer.Option(help="End once the verdict and the interval are known, or only with the prompts or the minutes."),
    ] = "decided"
    within: Annotated[float, typer.Option(min=1, help="Percent of the ratio within which its interval must end.")] = 20
    minutes: Annotated[float, typer.Option(min=0.01, help="Most minutes, at each concurrency.")] = 2
    limit: Annotated[int | None, typer.Option(min=1, help="At most N prompts, the kinds in proportion.")] = None
    concurrency: Annotated[str, typer.Option(help="Requests in flight; several, joined by commas, run in turn.")] = "1"
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Most tokens per answer; by default 16 to 64, so that the prompts, or 36, fit into the minutes."
        ),
    ] = None
    raw: Raw = False
    model: Annotated[str | None, typer.Option(help="The model's name; by default the first one.")] = None


@with_groups
def bench(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8000.")],
    others: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL2] [PROMPTS]...",
            help="A server to compare with; files or folders of .jsonl, by default the shipped traces.",
        ),
    ] = None,
    *,
    requests: Requests,
    server: Server,
    seed: Annotated[int, typer.Option(help="Seed of the order of prompts and sides.")] = 0,
    html: HtmlFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether speculation makes a running vLLM or SGLang server faster for you, or one server than another.

    With one URL, of a server started with specplug, each prompt is sent with speculation and without, by a request
    field: other clients notice nothing, and nothing of it is remembered. With two, each prompt is sent to both, and the
    ratio is that of the first to the second (docs/measuring.md has the launch lines).

    Each prompt goes once, untimed, into the prefix cache; then both sides answer it, in random order. Before, a short
    pair or two tell how long answers may be, unless --max-tokens does. The run ends once the interval of the ratio
    excludes 1 and is narrow enough (--within), or lies between 0.97 and 1.03. At --minutes, or with the last prompt, a
    line says how many more would be needed. The intervals allow for a look after every few prompts: of runs between
    sides that do not differ about 5% name one. Ctrl-C, or a server that fails, prints what was measured.

    A line of PROMPTS is a JSON object with "prompt", or with "messages" as in OpenAI chat requests and logs; its kind
    is "kind", or else the file's name, and the table has a row for each. A "prompt" is sent as a chat if the model has
    a chat template. With N in flight a pair is a group of N prompts of one kind, so give N times as many.

    The texts of both sides are compared. The exit code is 1 if requests failed or texts differ.

    Examples:

    `specplug bench http://127.0.0.1:8000 chats.jsonl code.jsonl --concurrency 1,8 --minutes 5 --html report.html`

    `specplug bench http://127.0.0.1:8000 http://127.0.0.1:8001 logs.jsonl --json`
    """
    from specplug.tools.bench.prompts import limited, read_prompts
    from specplug.tools.cli.bench_report import Report

    servers = [url, *(each for each in others or () if "://" in each)]
    files = [Path(each) for each in others or () if "://" not in each]
    if len(servers) > 2:
        raise SettingsError.build("too many servers", who="specplug bench", found=len(servers), expected="one or two")
    prompts = limited(read_prompts(files or [SHIPPED]), requests.limit, seed)
    run = Run(requests, prompts, seed, quiet=as_json)
    is_whole = False
    with suppress(KeyboardInterrupt):
        asyncio.run(run_interruptible(run.measure([server.client(each) for each in servers])))
        is_whole = True
    report = Report(run.about, run.courses)
    if report.measured or is_whole:
        _show(report, servers, html, as_json=as_json)
    for failure in report.failures if not as_json else ():
        print_error(failure)
    if report.errors or report.differences or not is_whole:
        raise typer.Exit(1 if is_whole else 130)


def _show(report: Report, servers: Sequence[str], html: Path | None, *, as_json: bool) -> None:
    if not report.measured:
        raise EngineError.build(
            "no prompt was answered by both sides",
            who=" and ".join(servers),
            found="; ".join(report.errors[:2]) or "no answer",
            remedy="Send one of the prompts by hand to see what the server says",
        )
    show(report.as_dict(), *report.parts(), as_json=as_json)
    if html is not None:
        plots = [report.plot(course) for course in report.measured if course.counted]
        write_report(html, report.title, report.verdict(), [*report.parts(), *report.failures], plots, report.as_dict())


class Run:
    """The courses of a command, one for each concurrency, and what they are about: also after Ctrl-C."""

    def __init__(self, requests: Requests, prompts: Sequence[Prompt], seed: int, *, quiet: bool) -> None:
        self.about: dict[str, Any] = {}
        self.courses: list[Course] = []
        self._requests = requests
        self._prompts = prompts
        self._seed = seed
        self._quiet = quiet

    async def measure(self, servers: Sequence[ServerClient]) -> None:
        """Measure one server with and without speculation, or the first of two against the second."""
        from specplug.tools.bench.prompts import as_chats, assign_groups
        from specplug.tools.bench.run import Course
        from specplug.tools.bench.sequential import LEVEL
        from specplug.tools.bench.sides import sides_of

        requests = self._requests
        in_flight = parse_numbers(requests.concurrency, "numbers", "--concurrency")
        groups = [assign_groups(self._prompts, each, self._seed) for each in in_flight]
        async with AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server)
            sides = await sides_of(servers, requests.model)
            self.about = {
                "model": sides[0].model,
                "tested": sides[0].about(),
                "baseline": sides[1].about(),
            }
            has_template = not requests.raw and await servers[0].has_chat_template(sides[0].model)
            print_note(server_form(has_template, raw=requests.raw))
            for concurrency, of_one in zip(in_flight, groups, strict=True):
                chats = [replace(group, prompts=tuple(as_chats(group.prompts))) for group in of_one]
                left_out = len(self._prompts) - sum(len(group.prompts) for group in of_one)
                if left_out:
                    print_note(f"{left_out} prompts are left out: fewer of their kind than {concurrency} in flight")
                course = Course(
                    concurrency, chats if has_template else of_one, LEVEL / len(in_flight), requests.max_tokens
                )
                self.courses.append(course)
                await self._follow(sides, course)

    async def _follow(self, sides: tuple[Side, Side], course: Course) -> None:
        """Run a course, and show on stderr how far it is, and the ratio at each look."""
        from specplug.tools.bench.report import is_known, rows
        from specplug.tools.bench.run import measure

        requests = self._requests
        kinds = Counter(prompt.kind for group in course.groups for prompt in group.prompts)
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        with progress(quiet=self._quiet) as bar:
            bar.console.print(
                remark_text(
                    f"{course.concurrency} in flight, at most {requests.minutes:g} minutes (--minutes) and "
                    f"{sum(kinds.values())} prompts: {counted}"
                )
            )
            task = bar.add_task("asking", total=len(course.groups))

            def known(course: Course) -> bool:
                found = rows(course)[0]
                bar.console.print(remark_text(f"{found.prompts} prompts, {course.seconds:.0f} s: {found.ratio}"))
                return requests.until == "decided" and is_known(course, requests.within)

            def advance(group: Group) -> None:
                if requests.max_tokens is None and not bar.tasks[task].completed:
                    fitted = f"answers of at most {course.max_tokens} tokens, to fit into the minutes (--max-tokens)"
                    bar.console.print(remark_text(fitted))
                bar.update(task, description=group.kind, advance=1)

            await measure(sides, course, 60 * requests.minutes, advance, known)
