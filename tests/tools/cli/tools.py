"""Runs of the command line."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from specplug.tools.cli.app import app


def invoke(*arguments: object, code: int | None = None, **more: Any) -> Result:
    """Run a command, which must end with the exit code if one is given."""
    result = CliRunner().invoke(app, [*map(str, arguments)], **more)
    assert code in (None, result.exit_code), result.output
    return result


def stated(*arguments: object, code: int = 0, **more: Any) -> Any:
    """Return a command's JSON output."""
    return json.loads(invoke(*arguments, "--json", code=code, **more).stdout)
