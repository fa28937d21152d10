"""Build a release, and check it as its users meet it.

    python .ci/release.py FOLDER [STEP ...]

The steps are `build`, `install`, `engines`, `bill` and `notes`; without any, all run in this order, as in
`make release`.  FOLDER gets the wheel, the source distribution, a bill of materials, checksums and the release notes.
Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PINS = ROOT / ".ci" / "environments"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
REQUIREMENTS = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["transformers"]]
UNWANTED = {"tests", "benchmarks", "examples", "docs", ".ci", ".git", ".github", ".coverage"}
"""Files and folders of the checkout that neither archive may hold; what `specplug new` copies may be named so."""

CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPECPLUG_CONFIG")}
"""The environment of every command: nothing in it leads to the checkout."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return a command's standard output; if it fails, stop with what it printed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=CLEAN, cwd=cwd)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Tools:
    """Modules of an interpreter that `.ci/environments/release.txt` lists."""

    def __init__(self, python: str | Path) -> None:
        self._python = python

    def __call__(self, module: str, *arguments: str | Path) -> str:
        """Run a module and return its standard output."""
        return run(self._python, "-m", module, *arguments)

    def plan(self, python: str | Path, *arguments: str | Path) -> dict[str, dict[str, Any]]:
        """Return the metadata of what pip would install for an interpreter, by name; nothing is installed."""
        with tempfile.NamedTemporaryFile() as report:  # what pip prints is for the reader of an error
            self("pip", "--python", python, "install", "--dry-run", "--report", report.name, *arguments)
            planned = json.load(report)["install"]
        return {item["metadata"]["name"].lower(): item["metadata"] for item in planned}


# -- what is supported -------------------------------------------------------------------------------------------------


def pythons() -> list[str]:
    """Return the supported versions of Python, oldest first, as the classifiers name them."""
    found = [line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if ":: Python :: 3." in line]
    return sorted(found, key=lambda version: int(version.partition(".")[2]))


def interpreter(version: str) -> str | None:
    """Return the path of a version of Python that runs here, or None."""
    if (name := shutil.which(f"python{version}")) is None:
        return None
    shown = subprocess.run([name, "-c", "import sys, venv; print(sys.executable)"], capture_output=True, text=True)
    return shown.stdout.strip() or None  # a version manager's command may be there without the version


def lowest(requirements: Iterable[str]) -> list[str]:
    """Return each requirement pinned to its lower bound, extras included."""
    parsed = [Requirement(line) for line in requirements]
    return [f"{each.name}=={bound.version}" for each in parsed for bound in each.specifier if bound.operator == ">="]


def engines() -> list[tuple[str, str]]:
    """Return each engine's oldest supported version with the oldest Python, and its newest with the newest."""
    from specplug_sglang.seams import VERSIONS as SGLANG
    from specplug_vllm.seams import VERSIONS as VLLM

    ends = {"oldest": pythons()[0], "newest": pythons()[-1]}
    return [
        (f"{versions.engine.lower()}=={'.'.join(map(str, getattr(versions, end)))}.*", python)
        for versions in (VLLM, SGLANG)
        for end, python in ends.items()
    ]


# -- the steps ---------------------------------------------------------------------------------------------------------


def archives(folder: Path) -> tuple[Path, Path]:
    """Return this version's wheel and source distribution."""
    found = folder / f"specplug-{VERSION}-py3-none-any.whl", folder / f"specplug-{VERSION}.tar.gz"
    if missing := [path.name for path in found if not path.is_file()]:
        raise SystemExit(f"{folder}: no {' and no '.join(missing)}; run the step `build` first")
    return found


def build(tools: Tools, folder: Path) -> None:
    """Build the source distribution, and the wheel from it, and check both."""
    for old in folder.glob("specplug-*"):
        old.unlink()
    tools("build", "--outdir", folder, ROOT)
    both = archives(folder)
    tools("twine", "check", "--strict", *both)
    for archive in both:
        if wrong := complaints(members(archive)):
            raise SystemExit(f"{archive.name}: {'; '.join(wrong)}")
        print(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB, {len(members(archive))} files")


def members(archive: Path) -> dict[str, bytes]:
    """Return the files of a wheel or source distribution, by their names below the outermost folder of the latter."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as source:
        files = {each.name.partition("/")[2]: source.extractfile(each) for each in source if each.isfile()}
        return {name: file.read() for name, file in files.items() if file}


def complaints(found: dict[str, bytes]) -> list[str]:
    """Return what an archive's files have too much, and what they lack."""
    caches = {name for name in found if "__pycache__" in name or name.endswith(".pyc")}
    wrong = [f"{name} is in it" for name in found if name in caches or name.partition("/")[0] in UNWANTED]
    info = f"specplug-{VERSION}.dist-info/"
    is_wheel = any(name.startswith(info) for name in found)
    patterns = [f"{info}licenses/{pattern}" if is_wheel else pattern for pattern in PROJECT["license-files"]]
    wrong += [f"no {pattern}" for pattern in patterns if not fnmatch.filter(found, pattern)]
    if is_wheel:
        points = found.get(f"{info}entry_points.txt", b"").decode()
        named = {"console_scripts": PROJECT["scripts"], **PROJECT["entry-points"]}
        lines = [f"{key} = {value}" for group in named.values() for key, value in group.items()]
        wrong += [f"no entry point {line}" for line in lines if line not in points.splitlines()]
    return wrong


def install(tools: Tools, folder: Path) -> None:
    """Install the wheel with everything at its oldest, the source distribution with the newest, and run both."""
    wheel, source = archives(folder)
    core = [line for line in (PINS / "core.txt").read_text().splitlines() if re.match(r"(torch|transformers)==", line)]
    for version, archive, pins in ((pythons()[0], wheel, lowest(REQUIREMENTS)), (pythons()[-1], source, core)):
        if (python := interpreter(version)) is None:
            print(f"Python {version}: NOT CHECKED, as it is not on this machine")
            continue
        with tempfile.TemporaryDirectory() as name:
            environment = Path(name) / "environment"
            run(python, "-m", "venv", "--without-pip", environment)
            target = ("--python", environment / "bin" / "python")
            print(f"Python {version}, {archive.name}: installing, with {', '.join(pins)}", flush=True)
            tools("pip", *target, "install", "--quiet", "--no-compile", f"{archive}[transformers]", *pins)
            smoke(environment / "bin" / "specplug", Path(name))
            print(f"Python {version}, {archive.name}: version, doctor and generate run")


def smoke(specplug: Path, folder: Path) -> None:
    """Run an installed specplug in a folder without the checkout."""
    shown = run(specplug, "--version", cwd=folder)
    assert VERSION in shown.split(), shown
    report = json.loads(run(specplug, "doctor", "--json", cwd=folder))
    assert report["ok"], report
    answer = json.loads(run(specplug, "generate", "tiny", "a b a b a b", "--max-tokens", "16", "--json", cwd=folder))
    assert answer["statistics"]["target_steps"] > 0, answer


def engines_keep(tools: Tools, folder: Path) -> None:
    """Let pip plan the wheel beside engines: in this checkout's environments, and beside what each version requires."""
    wheel, _ = archives(folder)
    for python in sorted(ROOT.glob(".venv-*/bin/python")):
        changed = tools.plan(python, wheel).keys() - {"specplug"}
        if changed:
            raise SystemExit(f"{python.parent.parent.name}: specplug would install {', '.join(sorted(changed))}")
        print(f"{python.parent.parent.name}: nothing but specplug would be installed", flush=True)
    for engine, version in engines():
        if (python := interpreter(version)) is None:
            print(f"{engine}, Python {version}: NOT CHECKED, as it is not on this machine")
            continue
        (found,) = tools.plan(python, "--ignore-installed", "--no-deps", engine).values()
        theirs = required(found["requires_dist"], version)
        with tempfile.NamedTemporaryFile("w") as constraints:
            print(*theirs, sep="\n", file=constraints, flush=True)
            ours = tools.plan(python, "--ignore-installed", "--constraint", constraints.name, wheel)
        shown = ", ".join(f"{name} {ours[name]['version']}" for name in ("torch", "numba", "pydantic"))
        print(f"{found['name']} {found['version']}, Python {version}: all {len(theirs)} requirements hold with {shown}")


def required(requirements: Iterable[str], python: str) -> list[str]:
    """Return the requirements of a version of Python as constraints: without markers, extras, and those of extras."""
    parsed = [Requirement(line) for line in requirements]
    marked = {"extra": "", "python_version": python, "python_full_version": f"{python}.0"}
    return [f"{each.name}{each.specifier}" for each in parsed if not each.marker or each.marker.evaluate(marked)]


def bill(tools: Tools, folder: Path) -> None:
    """Write a bill of materials in CycloneDX's format: specplug, and the newest version of each of its requirements.

    Beside it stand the checksums of the archives and of the bill, as `sha256sum --check` reads them.
    """
    wheel, source = archives(folder)
    target = folder / f"specplug-{VERSION}.cdx.json"
    planned = tools.plan(sys.executable, "--ignore-installed", wheel)
    pins = sorted(f"{name}=={found['version']}" for name, found in planned.items() if name != "specplug")
    with tempfile.NamedTemporaryFile("w") as requirements:
        print(*pins, sep="\n", file=requirements, flush=True)
        about = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library")
        tools("cyclonedx_py", "requirements", requirements.name, *about, "--output-reproducible", "-o", target)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in (wheel, source, target)]
    (folder / "SHA256SUMS").write_text("".join(sums))
    print(f"{target.name}: specplug and {len(pins)} packages that it requires")


def notes(tools: Tools, folder: Path) -> None:
    """Write the release notes."""
    text = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), VERSION)
    (folder / "notes.md").write_text(text, encoding="utf-8")
    print(f"{folder / 'notes.md'}: {len(text.split())} words")


def section(changelog: str, version: str) -> str:
    """Return a version's section without its heading; links into the repository lead nowhere else, so their text."""
    found = re.search(rf"^## {re.escape(version)}\b([^\n]*)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[2].strip():
        raise SystemExit(f"CHANGELOG.md: nothing under '## {version}', the version in pyproject.toml")
    if "unreleased" in found[1]:
        print(f"CHANGELOG.md: {version} is headed{found[1]}; give it its date before you publish")
    return re.sub(r"\[([^]]+)\]\((?!\w+:)[^)]+\)", r"\1", found[2]).strip() + "\n"


STEPS = {"build": build, "install": install, "engines": engines_keep, "bill": bill, "notes": notes}


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    given = parser.parse_args()
    if unknown := set(given.steps) - STEPS.keys():
        parser.error(f"unknown steps: {', '.join(sorted(unknown))}; known: {', '.join(STEPS)}")
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=True)
        tools = Tools(Path(name) / "bin" / "python")
        tools("pip", "install", "--quiet", "--requirement", PINS / "release.txt")
        for step in given.steps or STEPS:
            STEPS[step](tools, given.folder.resolve())


if __name__ == "__main__":
    main()
