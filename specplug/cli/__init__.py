"""The command line.  `main` is the console script `specplug`; nothing here imports torch before a command needs it."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit: 0, 1 when a check failed, 2 for a mistake in the command or the settings."""
    from specplug.cli.app import app

    app(prog_name="specplug")
