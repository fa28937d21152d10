"""specplug beside an engine: installing it changes nothing, and the environment is the one that its files name."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from packaging.requirements import Requirement

import specplug
from tests.engines.launch import ROOT


class EnvironmentSuite:
    """Attributes:
    files: of requirements, in `.ci/environments`.
    """

    files: ClassVar[tuple[str, ...]]

    def test_the_environment_holds_what_its_files_name(self):
        texts = [(ROOT / ".ci" / "environments" / name).read_text() for name in self.files]
        lines = [line for text in texts for line in text.splitlines() if line and not line.startswith("#")]
        assert lines
        for requirement in map(Requirement, lines):
            version = importlib.metadata.version(requirement.name)
            assert requirement.specifier.contains(version, prereleases=True), requirement

    def test_installing_specplug_changes_nothing_else(self, tmp_path: Path):
        report = tmp_path / "report.json"
        how = ("--dry-run", "--no-index", "--no-build-isolation", "--quiet", "--report", str(report))
        done = subprocess.run([sys.executable, "-m", "pip", "install", *how, str(ROOT)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        planned = [item["metadata"]["name"] for item in json.loads(report.read_text())["install"]]
        assert planned == ["specplug"]

    def test_specplug_is_the_one_in_this_repository(self):
        assert ROOT in Path(specplug.__file__ or "").parents
