"""Errors of specplug's that end a process: one message, without a traceback unless it is requested."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from specplug.errors import SettingsError
from specplug.operator.startup import show_message_only

show_message_only()
show_message_only()
try:
    raise SettingsError("adapter: wrong")
except SettingsError as error:
    match sys.argv[1]:
        case "own":
            raise
        case "wrapped":
            raise ValueError("as the engine's users know it") from error
raise KeyError("of somebody else's")
"""


def ends(how: str, **variables: str) -> str:
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


@pytest.mark.parametrize("how", ["own", "wrapped"])
def test_specplugs_own_errors_are_one_message(how):
    assert ends(how) == "error: adapter: wrong\n"


def test_others_keep_their_traceback():
    stated = ends("other")
    assert stated.startswith("Traceback")
    assert stated.endswith('KeyError: "of somebody else\'s"\n')


def test_a_traceback_is_there_for_whoever_debugs():
    assert ends("own", SPECPLUG_DEBUG="1").startswith("Traceback")
