"""The files for contributors stay true: what they name exists, and GitHub, pre-commit and CFF can read them."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer.main
import yaml

from specplug.tools.cli.app import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
FINDINGS = sorted((ROOT / "findings").glob("*.sh"))
NAMES = ("CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", ".pre-commit-config.yaml")
FILES = [*(ROOT / name for name in NAMES), *TEMPLATES]
PAGES = pytest.mark.parametrize("page", FILES, ids=lambda page: page.name)


def code(page: Path) -> list[str]:
    """Return what stands in backticks."""
    return re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))


@PAGES
def test_commands_exist(page):
    targets = re.findall(r"^([a-z-]+)(?: [a-z-]+)?:", MAKEFILE, re.MULTILINE)
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for text in code(page):
        if text.startswith("make "):
            assert text.split()[1] in targets, text
        if text.startswith("specplug "):
            assert text.split()[1] in commands, text


@PAGES
def test_paths_exist(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    named = [word for word in code(page) if re.fullmatch(r"[\w.]+(/[\w.]+)+", word) and not word.startswith(".venv")]
    assert [path for path in (*links, *named) if not (ROOT / path).exists()] == []


@PAGES
def test_nothing_is_made_up(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"https?://|\w@\w", text)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda page: page.name)
def test_issue_templates_are_forms(template):
    """These are the keys and types of https://docs.github.com, Syntax for issue forms."""
    form = yaml.safe_load(template.read_text(encoding="utf-8"))
    assert form.keys() <= {"name", "description", "title", "labels", "body"}
    assert form["name"]
    assert form["description"]
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(set(ids)) == len(ids) > 0
    for part in form["body"]:
        attributes = part["attributes"]
        assert part["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert attributes["value" if part["type"] == "markdown" else "label"]
        assert all(isinstance(option, str) for option in attributes.get("options", []))
        assert ("options" in attributes) == (part["type"] in {"dropdown", "checkboxes"})


def test_bug_reports_ask_for_doctor():
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8"))
    (doctor,) = [part for part in form["body"] if "specplug doctor --json" in part["attributes"].get("label", "")]
    assert doctor["validations"]["required"]


def test_the_hooks_run_what_make_lint_runs():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repo,) = config["repos"]
    recipe = MAKEFILE.split("\nlint:")[1].split("\n\n")[0].splitlines()[1:]
    assert [hook["entry"] for hook in repo["hooks"]] == [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe]


def test_the_scheduled_workflow_runs_the_standing_test_of_every_engine():
    """GitHub's names of https://docs.github.com, Workflow syntax; YAML 1.1 reads the key `on` as true."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "newest-engines.yml").read_text(encoding="utf-8"))
    assert workflow.keys() == {"name", True, "permissions", "jobs"}
    assert workflow[True].keys() == {"schedule", "workflow_dispatch"}
    assert all(len(each["cron"].split()) == 5 for each in workflow[True]["schedule"])
    (job,) = workflow["jobs"].values()
    engines = job["strategy"]["matrix"]["engine"]
    assert sorted(engines) == sorted(re.search(r"^NEWEST := (.*)$", MAKEFILE, re.MULTILINE)[1].split())
    assert job["steps"][-1] == {"run": "make test-newest-${{ matrix.engine }}"}
    for engine in engines:
        planned = subprocess.run(
            ["make", "--dry-run", f"test-newest-{engine}"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        (tested,) = [line.split() for line in planned.splitlines() if "-m pytest" in line]
        files = [word for word in tested if word.endswith(".py")]
        assert files
        assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= cited.keys()  # the other keys that the format requires
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] in PROJECT["license"].split(" AND ")


@pytest.mark.parametrize("script", FINDINGS, ids=lambda path: path.stem)
def test_a_finding_is_a_small_script_of_pinned_packages(script):
    """Nothing runs it here: it installs packages from the index, into a folder that it removes."""
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    lines = text.splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert len(lines) <= 60
    introduction, rest = text.split("\nset -euo pipefail\n")
    assert re.search(r"# One would expect: .*# What happens: .*# Seen with \S+ \d", introduction, re.DOTALL)
    assert "work=$(mktemp -d)\ntrap 'rm -rf \"$work\"' EXIT\n" in rest
    [installed] = re.findall(r"/pip\" install (.+)", rest)
    packages = [word for word in installed.split() if not word.startswith("--")]
    assert [word for word in packages if not re.fullmatch(r'"[\w-]+==[\w.]+"', word)] == [] != packages
    assert "specplug" not in text


def test_every_finding_is_listed():
    page = (ROOT / "findings" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)\.sh` \|", page, re.MULTILINE) == [script.stem for script in FINDINGS]
