"""Command line.  `main` is the console script `specplug`; torch is imported only by commands that need it."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit: 0, 1 when a check failed, 2 for a mistake in the command or the settings."""
    from specplug.tools.cli.app import app

    app(prog_name="specplug")
