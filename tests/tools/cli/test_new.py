"""`specplug new`: packages that install, list, pass their own tests, draft and replay; and names that are refused."""

from __future__ import annotations

import json
import os
import re
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
    "specplug": "from specplug.tools.cli import main; main()",
    "pytest": "import pytest; raise SystemExit(pytest.main())",
    "pip": "from pip._internal.cli.main import main; raise SystemExit(main())",
}
REPLAYED = "--limit 1 --workloads structured --tokenizer tiny --json"


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
        no_index = {
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }  # 0 is "no"
        no_deadline = {"SPECPLUG_CONFIG": '{"faults": {"host_deadline_ms": null}}'}  # drafts of a busy machine, too
        self.env = {**os.environ, **no_index, **no_deadline, "PATH": place}

    def run(self, command: str, folder: Path, **env: str) -> str:
        given = {"cwd": folder, "env": {**self.env, **env}, "timeout": 300}
        done = subprocess.run(command, shell=True, capture_output=True, text=True, **given)  # type: ignore[call-overload]
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def shell(made, tmp_path_factory) -> Shell:
    """A shell in an environment in which all of them are installed."""
    shell = Shell(tmp_path_factory.mktemp("environment"))
    for package in sorted(made.iterdir()):
        shell.run(commands(package)[0], package)
    return shell


def commands(package: Path) -> list[str]:
    """Return the commands of a package's README."""
    return (package / "README.md").read_text().split("```sh\n")[1].split("\n```")[0].splitlines()


def test_they_are_listed(made, shell):
    listed = json.loads(shell.run("specplug list --json", made))
    assert listed["errors"] == []
    found = {(each["kind"], each["name"], each["package"]) for each in listed["plugins"]}
    assert {(kind, name, f"specplug-{name}") for kind, name in NAMES.items()} <= found


def test_they_pass_their_conformance_kits(made, shell):
    """One process runs the tests of all, since most of its time is the import of torch."""
    assert commands(made / "specplug-parrot")[1] == "pytest"
    (passed,) = re.findall(r"(\d+) passed", shell.run("pytest -p no:cacheprovider specplug-*", made))
    assert int(passed) > 50  # the others are skipped: clauses of what these plug-ins do not declare


def test_they_draft_together_and_leave_the_text_as_it_is(made, shell):
    chosen = json.dumps({"verifier": "agree", "faults": {"host_deadline_ms": None}})
    (command,) = (each for each in commands(made / "specplug-parrot") if each.startswith("specplug generate"))
    found = json.loads(shell.run(f"{command} --policy frugal --json", made, SPECPLUG_CONFIG=chosen))["statistics"]
    assert found["identical"]
    assert found["accepted_by_source"]["parrot"] > 10
    assert found["faults"] == {}


def test_they_replay(made, shell):
    *_, command = commands(made / "specplug-parrot")
    alone = command.replace(" --proposer ngram", "")
    (run,) = json.loads(shell.run(f"{alone} --policy frugal {REPLAYED}", made))["runs"]
    assert run["pooled"]["tau"] > 1.5


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["last token", "last two tokens"])
def test_the_documented_figures_are_those_of_the_shipped_traces(made, shell, rule, tmp_path):
    """They hold where mistral_common gives the tokenizer, as in this project's environment."""
    module, row = made / "specplug-parrot" / "specplug_parrot.py", PAGE.split(f"| {rule} |")[1].split("|\n")[0]
    original = module.read_text()
    if rule == "last two tokens":
        module.write_text(changed(original))
    try:
        (run,) = json.loads(shell.run("specplug replay --proposer parrot --batch 1 --json", tmp_path))["runs"]
    finally:
        module.write_text(original)
    found = [*run["workloads"].values(), run["pooled"]]
    assert [f"{each['tau']:.2f}" for each in found] == [cell.strip() for cell in row.split("|")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), NAMES.items())
def test_every_command_of_a_readme_runs(made, shell, kind, name):
    assert kind in (made / f"specplug-{name}" / "README.md").read_text()
    shell.run("\n".join(["set -e", *commands(made / f"specplug-{name}")]), made / f"specplug-{name}")


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
