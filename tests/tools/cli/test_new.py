"""`specplug new`: packages that install, list, pass their own tests, draft and replay; and names that are refused."""

from __future__ import annotations

import json
import os
import re
import shlex
import site
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import numpy as np
import pytest

from tests.testing.clauses import PAGE, code_block
from tests.tools.cli import tools

NAMES = {"proposer": "parrot", "policy": "frugal", "verifier": "agree"}
SCRIPTS = {
    "pytest": "import pytest; raise SystemExit(pytest.main())",
    "pip": "from pip._internal.cli.main import main; raise SystemExit(main())",
}
SHORT = {"replay": "--limit 1 --workloads structured --tokenizer tiny --json", "generate": "--json", "list": "--json"}
"""What keeps a command of a README short, or lets its output be read."""

RUN = """
import json, os, sys
from typer.testing import CliRunner
from specplug.tools.cli.app import app
found = []
for folder, variables, words in json.loads(sys.argv[1]):
    os.chdir(folder)
    done = CliRunner().invoke(app, words, env=variables)
    found.append([done.exit_code, done.stdout, done.output])
print(json.dumps(found))
"""
"""Runs commands in one process, as most of their time is the import of torch."""

NO_DEADLINE = {"host_deadline_ms": None}
"""Drafts of a busy machine, too."""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a package of every kind."""
    folder = tmp_path_factory.mktemp("made")
    for kind, name in NAMES.items():
        tools.invoke("new", kind, name, "--path", folder / f"specplug-{name}", code=0)
    return folder


class Shell:
    """A shell in a virtual environment that finds this one's packages."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder)
        (site_packages,) = folder.glob("lib/python*/site-packages")
        base = "".join(f"site.addsitedir({place!r}); " for place in site.getsitepackages())
        (site_packages / "base.pth").write_text(f"import site; {base}\n")
        for name, code in SCRIPTS.items():
            (folder / "bin" / name).write_text(f"#!{folder / 'bin' / 'python'}\n{code}\n")
            (folder / "bin" / name).chmod(0o755)
        place = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        alone = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}  # 0 is "no"
        self.env = {**os.environ, **alone, "PATH": place}

    def run(self, command: str | list[str], folder: Path) -> str:
        given = {"cwd": folder, "env": self.env, "timeout": 300, "shell": isinstance(command, str)}
        done = subprocess.run(command, capture_output=True, text=True, **given)  # type: ignore[call-overload]
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def specplug(self, folder: Path, commands: list[tuple[dict[str, str], list[str]]]) -> list[str]:
        """Return the output of commands, all of which must end with code 0."""
        lines = [(str(folder), variables, words) for variables, words in commands]
        found = json.loads(self.run(["python", "-c", RUN, json.dumps(lines)], folder))
        for (_, words), (code, _, shown) in zip(commands, found, strict=True):
            assert code == 0, f"{words}\n{shown}"
        return [stdout for _, stdout, _ in found]


@pytest.fixture(scope="module")
def shell(made, tmp_path_factory) -> Shell:
    """A shell in an environment in which all of them are installed, by one run of the READMEs' first command."""
    shell = Shell(tmp_path_factory.mktemp("environment"))
    (first,) = {commands(package)[0] for package in made.iterdir()}
    assert first == 'pip install -e ".[test]"'
    shell.run(
        ["pip", "install", *(word for name in NAMES.values() for word in ("-e", f"./specplug-{name}[test]"))], made
    )
    return shell


def commands(package: Path) -> list[str]:
    """Return the commands of a package's README."""
    return (package / "README.md").read_text().split("```sh\n")[1].split("\n```")[0].splitlines()


def specplug_commands(package: Path) -> list[tuple[dict[str, str], list[str]]]:
    """Return those of specplug's, each with the variables that are set for it."""
    found = []
    chosen: dict[str, object] = {"faults": NO_DEADLINE}
    for line in commands(package)[2:]:
        first, *words = shlex.split(line)
        if first == "export":
            chosen |= json.loads(words[0].partition("=")[2])
        else:
            found.append(({"SPECPLUG_CONFIG": json.dumps(chosen)}, words))
    return found


def test_they_run_by_their_readmes_alone_and_together(made, shell):
    """Every command of specplug's in a README runs, those that take long on less; all plug-ins draft together."""
    own = [each for name in NAMES.values() for each in specplug_commands(made / f"specplug-{name}")]
    own = [(variables, [*words, *SHORT[words[0]].split()]) for variables, words in own if words[0] in SHORT]
    (parrots,) = (words for _, words in own if words[0] == "generate" and "parrot" in words)
    both = {"SPECPLUG_CONFIG": json.dumps({"verifier": "agree", "faults": NO_DEADLINE})}
    alone = ["replay", "--proposer", "parrot", "--batch", "1", "--policy", "frugal"]
    ran = [
        *own,
        ({}, ["list", "--json"]),
        (both, [*parrots, "--policy", "frugal"]),
        (both, [*alone, *SHORT["replay"].split()]),
    ]
    *found, listed, generated, replayed = map(json.loads, shell.specplug(made, ran))
    assert [words[0] for _, words in own] == ["generate", "replay", "generate", "replay", "generate"]
    assert all(each["statistics"]["identical"] for each in found if "statistics" in each)
    assert listed["errors"] == []
    plugins = {(each["kind"], each["name"], each["package"]) for each in listed["plugins"]}
    assert {(kind, name, f"specplug-{name}") for kind, name in NAMES.items()} <= plugins
    assert generated["statistics"]["identical"]
    assert generated["statistics"]["accepted_by_source"]["parrot"] > 10
    assert generated["statistics"]["faults"] == {}
    assert replayed["runs"][0]["pooled"]["tau"] > 1.5


def test_they_pass_their_conformance_kits(made, shell):
    """One process runs the tests of all."""
    assert {commands(package)[1] for package in made.iterdir()} == {"pytest"}
    (passed,) = re.findall(r"(\d+) passed", shell.run("pytest -p no:cacheprovider specplug-*", made))
    assert int(passed) > 40  # the others are skipped: clauses of what these plug-ins do not declare


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["last token", "last two tokens"])
def test_the_documented_figures_are_those_of_the_shipped_traces(made, shell, rule, tmp_path):
    """They hold where mistral_common gives the tokenizer, as in this project's environment."""
    module, row = made / "specplug-parrot" / "specplug_parrot.py", PAGE.split(f"| {rule} |")[1].split("|\n")[0]
    original = module.read_text()
    if rule == "last two tokens":
        module.write_text(changed(original))
    try:
        words = ["replay", "--proposer", "parrot", "--batch", "1", "--json"]
        (shown,) = shell.specplug(tmp_path, [({"SPECPLUG_CONFIG": json.dumps({"faults": NO_DEADLINE})}, words)])
        (run,) = json.loads(shown)["runs"]
    finally:
        module.write_text(original)
    found = [*run["workloads"].values(), run["pooled"]]
    assert [f"{each['tau']:.2f}" for each in found] == [cell.strip() for cell in row.split("|")]


@pytest.mark.slow
def test_what_takes_long_in_a_readme_runs_as_it_stands(made, shell):
    own = [each for name in NAMES.values() for each in specplug_commands(made / f"specplug-{name}")]
    long = [each for each in own if each[1][0] in ("replay", "audit")]
    assert [words[0] for _, words in long] == ["replay", "replay", "audit"]
    shell.specplug(made, long)


def test_the_documentation_shows_what_is_made(made):
    for name in ("parrot", "frugal"):
        assert f"```python\n{(made / f'specplug-{name}' / f'specplug_{name}.py').read_text()}```" in PAGE


def changed(module: str) -> str:
    """Return the module with the change that the page proposes."""
    return re.sub(r" +earlier = .*\n", code_block("tokens[:-2]"), module)


def test_the_documented_change_drafts_what_followed_the_last_two_tokens(made):
    module, names = (made / "specplug-parrot" / "specplug_parrot.py").read_text(), {}
    exec(changed(module), names)
    parrot = names["Parrot"](None)
    for text, expected in (
        ([5], []),
        ([5, 6], []),
        ([5, 5, 5], [5]),
        ([1, 2, 9, 3, 2, 1, 2], [9, 3]),
        ([1, 2, 3, 2], []),
    ):
        assert list(parrot.draft(np.array(text, np.int32), 2, None).token_ids) == expected


def test_a_package_is_free_of_lint_by_ruffs_own_rules(made):
    """Its types are checked in place, as part of specplug."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True)  # where specplug is a library
    assert done.returncode == 0, done.stdout


def test_a_workflow_runs_the_commands_of_the_readme(made):
    for package in made.iterdir():
        workflow = (package / ".github" / "workflows" / "test.yml").read_text()
        assert re.findall(r"- run: (.*)", workflow)[1:] == commands(package)[:2]


def test_a_name_takes_the_form_that_each_place_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = tools.stated("new", "policy", "by-night_2")
    assert (found["folder"], found["commands"][0]) == ("specplug-by-night-2", "cd specplug-by-night-2")
    assert found["commands"][1:] == commands(Path("specplug-by-night-2"))
    assert {"specplug_by_night_2.py", "test_by_night_2.py", "pyproject.toml"} < set(found["files"])
    assert set(found["files"]) == {str(f.relative_to(found["folder"])) for f in Path().rglob("*") if f.is_file()}
    project = tomllib.loads(Path("specplug-by-night-2/pyproject.toml").read_text())["project"]
    assert project["name"] == "specplug-by-night-2"
    assert project["entry-points"]["specplug"] == {"by-night_2": "specplug_by_night_2"}
    module = Path("specplug-by-night-2/specplug_by_night_2.py").read_text()
    assert 'name="by-night_2", factory="specplug_by_night_2:ByNight2"' in module
    assert not re.search("example", "".join(file.read_text() for file in Path().rglob("*.*") if file.is_file()), re.I)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("propser", "parrot", "'propser' is not made. Did you mean 'proposer'?"),
        ("proposer", "My Parrot", "not a name for a plug-in; found 'My Parrot'; expected small letters"),
        ("proposer", "parrot--2", "not a name"),
        ("proposer", "2parrot", "not a name"),
        ("policy", "a+b", "not a name"),
        ("proposer", "none", "not a name"),
        ("verifier", "true", "not a name"),  # the class would be called True
        ("proposer", "ngram", "the name is taken; found proposer 'ngram' of specplug 0.1.0 (entry point 'ngram')"),
        ("proposer", "engine", "the name is taken; found proposer 'engine' of the engine's own drafter"),
        ("verifier", "ngram", "the name is taken; found an installed module 'specplug_ngram'"),
    ],
)
def test_a_name_that_cannot_be_is_refused(kind, name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in " ".join(tools.invoke("new", kind, name, code=2).output.split())
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        shown = " ".join(tools.invoke("new", "proposer", "parrot", "--path", place, code=2).output.split())
        assert "the folder exists" in shown
        assert "which is not an empty folder. Name another with --path" in shown
    shown = tools.invoke("new", "proposer", "parrot", "--path", tmp_path / "notes.txt" / "inside", code=2).output
    assert "cannot write the package" in shown
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
