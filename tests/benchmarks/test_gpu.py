"""The benchmark for GPUs, as a dry run on the CPU: the same code, with references instead of kernels."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile

import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.device import Cpu, Timing
from benchmarks.gpu.draft_model import DRAFTS
from benchmarks.gpu.packages import make_importable


def test_a_dry_run_compares_and_measures_everything(tmp_path, capsys):
    path = tmp_path / "gpu.json"
    sizes = ["--cases", "8", "--batches", "3", "--steps", "2", "--minutes", "0"]
    assert main(["--device", "cpu", "--out", str(tmp_path), *sizes]) == 0
    report, shown = json.loads(path.read_text()), capsys.readouterr().out
    assert report["wrong"] == []
    assert min(report["correctness"]["compared"].values()) >= 8
    assert [(case["draft"], case["batch"]) for case in report["model"]["cases"]] == [(name, 3) for name in DRAFTS]
    assert all(len(times) == 2 for case in report["model"]["cases"] for times in case["device_us"].values())
    names = {"ngram", "no proposer"}
    assert [case["draft_length"] for case in report["drafting"]["cases"]] == [7, 15]
    assert all(case["arms"].keys() == names for case in report["drafting"]["cases"])
    for arm in [arm for case in report["drafting"]["cases"] for arm in case["arms"].values()]:
        assert len(arm["device_us"]) == len(arm["host_us"]) == 2
        assert arm["device_waited"] == 0
        assert arm["tokens_per_step"] >= 1
    assert [case["draft_length"] for case in report["bubble"]["cases"]] == [7, 15]
    for case in report["bubble"]["cases"]:
        assert case["tokens_per_step"]["no drafts"] == 1
        assert case["tokens_per_step"]["ngram"] > 1
    assert report["texts"] == {"decoded": 4167, "finished": 839, "responses": 2}
    assert "ngram / no proposer" in shown
    assert "Everything that was compared is equal." in shown
    assert "CPU (dry run)" in shown
    assert shown.endswith((tmp_path / "gpu.txt").read_text())


def test_no_ratio_is_shown_of_a_wrong_run_and_a_part_that_raises_does_not_stop_the_others(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("benchmarks.gpu.correctness.check", lambda *_: 1 / 0)
    monkeypatch.setattr("benchmarks.gpu.drafting.unlike", lambda *_: ["planted"])
    sizes = ["--parts", "correctness", "drafting", "--batches", "1", "--steps", "1", "--minutes", "0"]
    assert main(["--device", "cpu", "--out", str(tmp_path), *sizes]) == 1
    report, shown = json.loads((tmp_path / "gpu.json").read_text()), capsys.readouterr().out
    assert report["wrong"][0] == "correctness: raised ZeroDivisionError: division by zero"
    assert len(report["drafting"]["cases"]) == 2
    assert "WRONG: drafting: 7 tokens, batch 1, context 64: planted" in shown
    assert "not shown" in shown


@pytest.mark.parametrize(("num_late", "found"), [(0, 300.0), (2, 300.0), (1000, None)])
def test_time_that_the_device_waits_for_the_host_is_not_its_own(num_late, found):
    timings = iter([Timing(4000.0, 4000.0, False)] * num_late + [Timing(300.0, 4000.0, True)])

    class Late(Cpu):
        def time(self, step):
            return next(timings)

    assert Late().valid_time(lambda: None) == found


def test_what_is_missing_comes_from_wheels(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu.packages.NEEDED", ("numpy", "planted_module"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    target = tmp_path / "packages"
    with pytest.raises(SystemExit, match="missing: planted_module"):
        make_importable(tmp_path, target)
    with zipfile.ZipFile(tmp_path / "planted_package-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("planted_module.py", "VALUE = 3")
        wheel.writestr("planted_package-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: planted-package\n")
    assert make_importable(tmp_path, target) == ["planted_package-1.0-py3-none-any.whl"]
    assert importlib.import_module("planted_module").VALUE == 3
    assert make_importable(tmp_path, target) == [], "it is there now"
