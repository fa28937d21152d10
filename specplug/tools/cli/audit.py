"""`specplug audit` command: compares a speculating engine with the same engine without speculation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from specplug.errors import SettingsError, TraceError
from specplug.tools.cli.html_report import HtmlFile, write_report
from specplug.tools.cli.launch import flags, nested_options, prompt_form, server_form, start_engine
from specplug.tools.cli.options import Drafting, Place, PluginOptions, Raw, Server, option, with_groups
from specplug.tools.cli.output import AsJson, print_note, progress, show, table

if TYPE_CHECKING:
    from specplug.tools.audit.probe import Side
    from specplug.tools.audit.run import Open, Report

POLICY = "fixed"
"""The default policy of audited engines: it always drafts, where others stop if drafts do not pay."""

COLOURS = {"passed": "green", "failed": "red", "unproven": "yellow", "not run": "dim"}


def _number_or_name(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class Material:
    """Options of the requests that both servers get."""

    prompts: list[Path] | None = option(
        None, "File or folder of .jsonl with prompts; by default tasks made from Python files."
    )
    checks: list[str] | None = option(None, "Run this check only, and fail if it cannot run; repeat.", "--check")
    limit: int = option(24, "Most prompts.", min=1)
    samples: int = option(200, "Samples for each of 4 prompts and 2 kinds of sampling.", min=1)
    max_tokens: int = option(64, "Most tokens per answer.", min=2)
    raw: Raw = False
    concurrency: int = option(8, "Requests in flight.", min=1)

    def texts(self) -> list[str]:
        """Return the texts of the prompts."""
        from specplug.tools.demo.tasks import KINDS, make_tasks

        if self.prompts:
            return _texts(self.prompts, self.limit)
        kinds = sorted(KINDS, key="code".__ne__)  # open tasks, whose answers are uncertain, first
        tasks = [make_tasks(kind, "held-out", -(-self.limit // len(kinds))) for kind in kinds]
        return [task.prompt for of_kind in zip(*tasks, strict=True) for task in of_kind][: self.limit]


def _texts(paths: Sequence[Path], limit: int) -> list[str]:
    """Return the texts of the prompts in files, of a chat the last message's; notes say what is left out."""
    from specplug.text.tokenizers import messages
    from specplug.tools.bench.prompts import read_prompts

    prompts = read_prompts(paths)
    with_text = [prompt for prompt in prompts if prompt.last_text]
    if not with_text:
        raise TraceError.build(
            "no prompts to audit",
            who=", ".join(map(str, paths)),
            found=f"{len(prompts)} prompts, none with text in its last message",
            expected='"prompt", or "messages" whose last one has text',
        )
    if left_out := len(prompts) - len(with_text):
        print_note(f"{left_out} of {len(prompts)} prompts are left out, as their last message has no text")
    sent = with_text[:limit]
    if cut := sum([*prompt.messages] not in ([], messages(prompt.last_text)) for prompt in sent):
        print_note(f"{cut} of {len(sent)} prompts are cut to the text of their last message")
    return [prompt.last_text for prompt in sent]


@dataclass(frozen=True)
class Audited(Drafting):
    """What drafts and verifies in an audited engine."""

    policy: str = option(POLICY, "The policy that chooses draft lengths; fixed always drafts.")
    verifier: str | None = option(None, "The verifier that requests name; see `specplug list`. A lossy one fails.")
    acceptance_threshold: Any | None = option(
        None, "Threshold of a lossy verifier, which must be named.", parser=_number_or_name, metavar="NUMBER|NAME"
    )
    options: PluginOptions = None

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings of the audited engine."""
        own = super().settings(verifier=self.verifier, **more)
        return {**own, "options": {**own.get("options", {}), **nested_options(self.options or ())}}

    def fields(self) -> dict[str, Any]:
        """Return specplug's fields of each request."""
        return flags(verifier=self.verifier, acceptance_threshold=self.acceptance_threshold)


@with_groups
def audit(
    audited: Annotated[
        str, typer.Argument(help="A server, such as http://127.0.0.1:8000, or a model: a folder, an id, or tiny.")
    ],
    control: Annotated[
        str | None,
        typer.Argument(
            help="For a server: the same server started without speculation. Without it, the audited server itself "
            "answers again with speculation switched off."
        ),
    ] = None,
    *,
    material: Material,
    drafting: Audited,
    place: Place,
    reached: Server,
    html: HtmlFile = None,
    as_json: AsJson = False,
) -> None:
    """Check that speculation leaves an engine's output as it is, and report what was compared.

    Greedy outputs, sampled tokens, stop strings, log-probabilities, structured output, tool calls and reasoning are
    compared with those of the same engine without speculation. Two servers are compared over HTTP, whether they use
    specplug or not; a model is run by transformers, first with speculation and then without. Log-probabilities,
    structured output, tool calls and reasoning need servers. docs/audit.md describes the checks.

    The exit code is 1 if a check failed, was unproven (too few samples, say, or no draft at work), or was named by
    --check and could not run.

    Examples:

    `specplug audit tiny --proposer ngram`

    `specplug audit http://127.0.0.1:8000 http://127.0.0.1:8001 --prompts logs.jsonl --json`
    """
    from specplug.tools.audit.probe import CheckOutcome
    from specplug.tools.audit.run import choose_checks, run

    selected = choose_checks(material.checks or [], material.samples)
    sides = _sides(audited, control, material, drafting, place, reached)
    with progress(quiet=as_json) as bar:

        def advance(title: str, total: int) -> Callable[[], None]:
            task = bar.add_task(title, total=total, visible=total > 0)
            return lambda: bar.advance(task)

        report = run(
            audited=sides[0],
            control=sides[1],
            texts=material.texts(),
            checks=selected,
            max_tokens=material.max_tokens,
            together=material.concurrency,
            progress=advance,
            fields=drafting.fields(),
        )
    _publish(report, html, as_json=as_json)
    if not report.passed or (material.checks and report.has(CheckOutcome.NOT_RUN)):
        raise typer.Exit(1)


def _publish(report: Report, html: Path | None, *, as_json: bool) -> None:
    *parts, verdict = _shown(report)
    show(report.as_dict(), *parts, verdict, as_json=as_json)
    if html is not None:
        verdict.style = "green" if report.passed else "red" if report.failed else "yellow"
        plots = [lambda figure: _plot(report, figure)] if report.drafts is not None else []
        write_report(html, f"specplug audit: {report.audited}", verdict, parts, plots, report.as_dict())


def _sides(
    audited: str, control: str | None, material: Material, drafting: Audited, place: Place, reached: Server
) -> tuple[Open, Open]:
    if _is_url(audited):
        return _servers(audited, control, reached, raw=material.raw)
    if control is None:
        own = {**place.arguments(), "max_num_seqs": max(2, material.concurrency)}
        return _engines(audited, drafting.settings(), raw=material.raw, **own)
    found = f"the model {audited!r} and a control"
    expected = "two servers' addresses, or one model"
    raise SettingsError.build("a control is a server", who="specplug audit", found=found, expected=expected)


def _servers(audited: str, control: str | None, reached: Server, *, raw: bool) -> tuple[Open, Open]:
    from specplug.tools.audit.server import connect

    if control is not None and not _is_url(control):
        what = "not a server"
        expected = "an address with http://"
        raise SettingsError.build(what, who="CONTROL", found=repr(control), expected=expected)

    @contextmanager
    def noted(**mode: Any) -> Iterator[Side]:
        with connect(reached.client(audited), raw=raw, **mode) as side:
            print_note(server_form(side.has_template, raw=raw))
            yield side

    if control is None:
        return lambda: noted(mode="on"), lambda: connect(reached.client(audited), raw=raw, mode="off")
    return noted, lambda: connect(reached.client(control), raw=raw)


def _engines(model: str, overrides: dict[str, Any], *, raw: bool, **place: Any) -> tuple[Open, Open]:
    from specplug.tools.audit.probe import TextEngineSide

    @contextmanager
    def audited() -> Iterator[Side]:
        with closing(start_engine(model, overrides, baseline=False, **place)) as running:
            form, described = prompt_form(model, raw=raw)
            print_note(described)
            yield TextEngineSide(running, drafts=True, form=form)

    @contextmanager
    def control() -> Iterator[Side]:
        with closing(start_engine(model, {}, baseline=True, **place)) as running:
            yield TextEngineSide(running, drafts=False)

    return audited, control


def _shown(report: Report) -> Iterator[Any]:
    yield f"audited: {report.audited}\ncontrol: {report.control}"
    rows = [
        (
            finding.check,
            Text(str(finding.status), style=COLOURS[str(finding.status)]),
            finding.summary,
            "" if finding.drafts is None else f"{finding.drafts.accepted} / {finding.drafts.rejected}",
        )
        for finding in report.findings
    ]
    yield table("Audit", ("check", "result", "found", "drafts accepted / rejected"), rows, whole=1)
    for finding in report.findings:
        yield from (f"{finding.check}: {example}" for example in finding.examples)
    if report.drafts is not None and report.drafts.departed:
        share = report.drafts.departed / report.drafts.accepted
        yield (
            f"Verification was lossy: of {report.drafts.accepted} accepted draft tokens, about "
            f"{report.drafts.departed:.0f} ({share:.1%}) would have been rejected by lossless verification."
        )
    verdict = "passed" if report.passed else "FAILED" if report.failed else "proves nothing yet"
    yield Text(f"The audit {verdict}.", style="bold")


def _plot(report: Report, figure: Any) -> None:
    rows = [(each.check, each.drafts) for each in reversed(report.findings) if each.drafts is not None]
    figure.set_size_inches(9, 0.8 + 0.35 * len(rows))
    axes = figure.subplots()
    names = [name for name, _ in rows]
    accepted = [drafts.accepted for _, drafts in rows]
    axes.barh(names, accepted, label="accepted", color="#2f6fde")
    axes.barh(names, [drafts.rejected for _, drafts in rows], left=accepted, label="rejected", color="#9aa5b1")
    axes.set_xlabel("draft tokens at work in the check")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))
