"""The compatibility matrix names tests that exist, and its page has its rows."""

from __future__ import annotations

import ast

import pytest

from tests import compatibility
from tests.compatibility import FEATURES, PAGE, PROPOSERS, ROOT, VERSIONS, cells, evidence, missing_cells, render


@pytest.mark.parametrize(("row", "engine", "cell"), cells())
def test_a_cells_tests_exist(row, engine, cell):
    file, _, name = evidence(engine, cell).partition("::")
    assert (ROOT / file).is_file(), f"{row}, {engine}: {file} is gone"
    names = {
        node.name
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    wanted = name.partition("[")[0].partition("::")[0]  # a test of a suite is its class's
    assert not wanted or any(known.startswith(wanted) for known in names), f"{row}, {engine}: {wanted} is gone"


def test_the_page_has_all_rows():
    page = PAGE.read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")]
    versions = {path.stem.replace("-", " ") for path in VERSIONS.glob("*.txt")}
    assert set(rows) - {"feature", "proposer", "version", "---", "vLLM 0.33"} == {*FEATURES, *PROPOSERS, *versions}


def test_what_did_not_run_is_noticed():
    suite = "tests/transformers"
    ours = [evidence(engine, cell) for _, engine, cell in cells() if compatibility.SUITES[engine] == suite]
    assert missing_cells(suite, ours, []) == []
    assert missing_cells(suite, ours[1:], ours[:1]) == []
    gone = [name for name in ours if "test_seeds" not in name]
    assert missing_cells(suite, gone, []) == ["seeds, transformers: test_seeds.py::"]


def test_a_slow_test_is_shown_as_one():
    records = {suite: {"passed": [], "slow": []} for suite in compatibility.SUITES.values()}
    records["tests/transformers"]["passed"] = ["tests/transformers/test_seeds.py::test_x"]
    line = next(line for line in render(records, {}).splitlines() if line.startswith("| seeds"))
    assert "| [tested](../tests/transformers/test_seeds.py) |" in line
    assert "[tested, slow](../tests/engines/sglang/test_sampling.py)" in line


REPORT = """<testsuites><testsuite errors="0" failures="{failures}" skipped="1" tests="3" time="90.0">
<properties/>
</testsuite></testsuites>"""


def test_older_versions_are_shown_as_they_ran(tmp_path):
    names = [path.stem for path in VERSIONS.glob("*.txt")]
    for name in names:
        (tmp_path / f"{name}.xml").write_text(REPORT.format(failures=0))
    shown = "2 passed, 1 skipped in 1.5 minutes"
    assert compatibility.older(tmp_path) == dict.fromkeys(sorted(names), shown)
    (tmp_path / f"{names[0]}.xml").write_text(REPORT.format(failures=1))
    with pytest.raises(SystemExit, match="1 of 3 tests failed"):
        compatibility.older(tmp_path)
    (tmp_path / f"{names[0]}.xml").unlink()
    with pytest.raises(SystemExit, match="run make test-versions first"):
        compatibility.older(tmp_path)
