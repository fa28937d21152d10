"""Every example is run by a test, those without a server here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.examples import EXAMPLES, command, commands

ROOT = Path(__file__).parents[1]
TESTS = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("name", sorted(commands()))
def test_an_example_that_readers_can_run_is_run_by_a_test(name):
    engine, _, rest = name.partition("_")
    if engine in ("vllm", "sglang"):  # the servers' examples have one suite
        assert re.search(rf'(run|command)\((f"{{self.engine}}_{rest}|"{name})"', TESTS)
    else:
        assert re.search(rf'(run|command)\("{name}"|parametrize\(.*"{name}"', TESTS)


def test_every_example_that_is_a_program_says_its_command():
    programs = {
        file.name for file in EXAMPLES.glob("*.py") if "sys.argv" in (text := file.read_text()) or "main()" in text
    }
    assert programs <= set(commands())


def test_the_quickstart_drafts():
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command("transformers_quickstart.py"), capture_output=True, text=True, timeout=400, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ tokens", done.stdout)


RUN = """
import contextlib, io, json, sys
names, texts = {}, []
for source in json.load(sys.stdin):
    texts.append(io.StringIO())
    with contextlib.redirect_stdout(texts[-1]):
        exec(source, names)
json.dump([text.getvalue() for text in texts], sys.stdout)
"""


def test_the_notebook_prints_what_is_stored_in_it():
    """Its cells run in one process, as in a kernel, which would bring 86 MB of packages."""
    stated = json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    cells = [cell for cell in stated if cell["cell_type"] == "code"]
    sources = json.dumps(["".join(cell["source"]) for cell in cells])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, input=sources, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    stored = ["".join("".join(output["text"]) for output in cell["outputs"]) for cell in cells]
    assert json.loads(done.stdout) == stored
    assert sum(map(bool, stored)) >= 5
