"""The wheel holds what the repository has, its entry points agree with the folders, and it works alone."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from specplug_transformers.runner import VERSIONS
from tests.manifests import required

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PLUGIN_FOLDERS = ("proposers", "policies", "adapters")
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    "SPECPLUG_CONFIG": '{"faults": {"host_deadline_ms": null}}',  # what is drafted must not depend on a busy machine
}


def run(*command: str | Path, **kwargs) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=900, env=ENVIRONMENT, **kwargs
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(project: Path, target: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, project)
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(archives) -> Path:
    (found,) = archives.glob("*.whl")
    return found


def pip(environment: Path, *words: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--python", environment / "python", *words)


@pytest.fixture(scope="module")
def empty_environment(wheel, tmp_path_factory) -> Path:
    """A fresh virtual environment into which only the wheel was installed; it finds what that asks for, and no more.

    What it asks for is linked from this environment: pip would unpack torch again, and Python compile it.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    for name in required("specplug", "transformers") - {"specplug"}:
        try:
            files = importlib.metadata.distribution(name).files or ()
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system or version
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            place = files[0].locate().parents[len(files[0].parts) - 1] / top
            if place.exists() and not (site_packages / top).exists():
                (site_packages / top).symlink_to(place)
    pip(folder / "bin", "install", "-q", "--no-deps", wheel)
    return folder / "bin"


def plugin_packages() -> dict[str, Path]:
    found = [p.parent for folder in PLUGIN_FOLDERS for p in (ROOT / folder).glob("*/__init__.py")]
    return {path.name: path for path in found}


def test_every_plugin_folder_is_packaged_and_has_an_entry_point():
    listed = {Path(p).name for p in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert listed == {"specplug", *plugin_packages()}
    modules = {value.partition(".")[0] for value in PYPROJECT["project"]["entry-points"]["specplug"].values()}
    assert modules == listed


def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    packages = {"specplug": ROOT / "specplug", **plugin_packages()}
    expected = {
        f"{name}/{path.relative_to(folder)}"
        for name, folder in packages.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in names if ".dist-info/" not in name}
    assert held == expected
    assert not {name.partition("/")[0] for name in names} & {*PLUGIN_FOLDERS, "tests", "examples", "benchmarks"}
    assert any(name.startswith("specplug/tools/demo/models/tiny/model.safetensors") for name in names)


def test_dependencies_are_ranges():
    requirements = PYPROJECT["project"]["dependencies"]
    assert not [r for r in requirements if "==" in r or "<" in r]


def test_the_extra_installs_the_supported_transformers():
    (major, oldest) = VERSIONS.oldest
    (_, newest) = VERSIONS.newest
    extra = PYPROJECT["project"]["optional-dependencies"]["transformers"]
    assert extra[0] == f"transformers>={major}.{oldest},<{major}.{newest + 1}"


def test_the_wheel_alone_lists_and_runs_the_demo(empty_environment, tmp_path):
    listed = json.loads(run(empty_environment / "specplug", "list", "--json", cwd=tmp_path))
    assert listed["errors"] == []
    assert {"ngram", "fixed", "reference", "transformers"} <= {plugin["name"] for plugin in listed["plugins"]}
    # One function stands for all that are compiled, which takes a minute, and the demo has a proposer without them.
    compared = (
        "import numpy; from specplug.corpus.sorting import _is_below; print(_is_below(numpy.arange(4), 2, 3, 0, 1))"
    )
    assert run(empty_environment / "python", "-c", compared, cwd=tmp_path) == "True\n"
    command = (empty_environment / "specplug", "demo", "--tasks", "1", "--max-tokens", "40", "--json")
    command += ("--proposer", "ngram-reference")
    shown = json.loads(run(*command, cwd=tmp_path))
    assert shown["rows"][-1]["kind"] == "all"
    assert shown["rows"][-1]["identical"] == shown["rows"][-1]["tasks"] == 4


@pytest.mark.slow  # packages that are installed and draft are in tests/tools/cli/test_new.py
def test_a_third_party_package_is_found_used_and_gone_again(empty_environment, tmp_path):
    run(empty_environment / "specplug", "new", "proposer", "parrot", "--path", tmp_path / "parrot")
    third_party = build_wheel(tmp_path / "parrot", tmp_path)
    pip(empty_environment, "install", "-q", "--no-deps", third_party)
    listed = json.loads(run(empty_environment / "specplug", "list", "--kind", "proposer", "--json"))
    (parrot,) = [plugin for plugin in listed["plugins"] if plugin["name"] == "parrot"]
    assert (parrot["package"], parrot["version"]) == ("specplug-parrot", "0.1.0")
    command = ("generate", "tiny", "a a a a a a a a", "--proposer", "parrot", "--max-tokens", "20", "--json")
    answer = json.loads(run(empty_environment / "specplug", *command))
    assert answer["statistics"]["drafted"] > 0
    pip(empty_environment, "uninstall", "-q", "-y", "specplug-parrot")
    gone = subprocess.run([empty_environment / "specplug", *command], capture_output=True, text=True, env=ENVIRONMENT)
    assert gone.returncode == 2
    assert "'parrot'" in gone.stderr
    assert "Known: crosstok, hybrid, ngram" in gone.stderr
