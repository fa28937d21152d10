"""Typer application that assembles the commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specplug import __version__
from specplug.errors import SpecplugError
from specplug.tools.cli.audit import audit
from specplug.tools.cli.bench import bench
from specplug.tools.cli.corpus import corpus
from specplug.tools.cli.demo import demo
from specplug.tools.cli.doctor import doctor
from specplug.tools.cli.explain import explain
from specplug.tools.cli.generate import generate
from specplug.tools.cli.list import list_plugins
from specplug.tools.cli.new import new
from specplug.tools.cli.output import print_error
from specplug.tools.cli.plan import plan
from specplug.tools.cli.replay import replay
from specplug.tools.cli.watch import watch


class _Commands(TyperGroup):
    """Command group that turns specplug's own errors into one message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SpecplugError as error:
            if ctx.params["debug"]:
                raise
            print_error(str(error))
            raise typer.Exit(2) from None


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specplug {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich tables truncate option names on narrow terminals
)


@app.callback()
def specplug(
    debug: Annotated[bool, typer.Option("--debug", envvar="SPECPLUG_DEBUG", help="Show an error's traceback.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Speculative decoding as plug-ins: one proposer, every engine, the same output.

    Start with `specplug doctor` to check this machine, and `specplug list` to see the installed plug-ins.
    Every command has `--help`, and prints JSON with `--json`. Tables go to standard output, errors and progress to
    standard error. The exit code is 1 if a check failed or outputs that must be identical differ, and 2 for a mistake
    in the command, the settings or a request.
    """


app.command("list")(list_plugins)
app.command("doctor")(doctor)
app.command("generate")(generate)
app.command("demo")(demo)
app.command("replay")(replay)
app.command("bench")(bench)
app.command("audit")(audit)
app.command("plan")(plan)
app.command("new")(new)
app.command("explain")(explain)
app.command("watch")(watch)
app.add_typer(corpus, name="corpus")
