"""specplug beside vLLM: installing it changes nothing there, and the environment is the one that its files name."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.engines.vllm.launch import ROOT

REQUIREMENTS = [
    line
    for name in ("vllm.txt", "vllm-nodeps.txt")
    for line in (ROOT / ".ci" / "environments" / name).read_text().splitlines()
    if line and not line.startswith("#")
]


def test_installing_specplug_changes_nothing_else(tmp_path):
    report = tmp_path / "report.json"
    how = ("--dry-run", "--no-index", "--no-build-isolation", "--quiet", "--report", str(report))
    done = subprocess.run([sys.executable, "-m", "pip", "install", *how, str(ROOT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    planned = [item["metadata"]["name"] for item in json.loads(report.read_text())["install"]]
    assert planned == ["specplug"]


@pytest.mark.parametrize("line", REQUIREMENTS)
def test_the_environment_holds_what_its_files_name(line):
    requirement = Requirement(line)
    assert requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)


def test_specplug_is_the_one_in_this_repository():
    import specplug
    import specplug_vllm

    for module in (specplug, specplug_vllm):
        assert ROOT in Path(module.__file__).parents
