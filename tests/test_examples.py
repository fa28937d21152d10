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
from tests.test_readme import block

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


RUN = """
import contextlib, io, json, sys
found = {}
for name, sources in json.load(sys.stdin).items():
    names, found[name] = {"__name__": "__main__"}, []
    for source in sources:
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            exec(source, names)
        found[name].append(shown.getvalue())
json.dump(found, sys.stdout)
"""
"""Runs programs one after the other in one process, as most of their time is the import of torch."""

CELLS = [
    cell
    for cell in json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]


@pytest.fixture(scope="module")
def printed() -> dict[str, list[str]]:
    """Return what the README's example, the quickstart and the cells of the notebook print."""
    _, *words = command("transformers_quickstart.py")
    quickstart = f"import sys\nsys.argv = {words}\n" + Path(words[0]).read_text(encoding="utf-8")
    programs = {
        "README": [block("python", "Engine(")],
        "quickstart": [quickstart],
        "notebook": ["".join(cell["source"]) for cell in CELLS],
    }
    no_deadline = {"SPECPLUG_CONFIG": '{"faults": {"host_deadline_ms": null}}'}  # a busy machine must not add steps
    environment = {**os.environ, **no_deadline, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(programs), capture_output=True, text=True, timeout=400,
        env=environment, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_the_readmes_example_prints_what_the_readme_shows(printed):
    assert printed["README"] == [block("text", "steps of the model")]


def test_the_quickstart_drafts(printed):
    assert re.search(r"\d+ tokens", printed["quickstart"][0])


def test_the_notebook_prints_what_is_stored_in_it(printed):
    stored = ["".join("".join(output["text"]) for output in cell["outputs"]) for cell in CELLS]
    assert printed["notebook"] == stored
    assert sum(map(bool, stored)) >= 5
