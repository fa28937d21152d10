"""The seams in the vLLM that is installed and in another version, and what is said when one has moved."""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import vllm

from specplug.errors import EngineError
from specplug.seams.support import MARK
from specplug_vllm import seams
from specplug_vllm.seams import OPTIONAL, SEAMS, VERSIONS
from specplug_vllm.startup import engine_config
from specplug_vllm.worker import hooks, status
from tests.engines.launch import ROOT

OTHER = "0.33.0"
"""The version that is imported from its wheel, without compiled code, beside the libraries of the installed one."""

PARTS = {part for seam in SEAMS for part in seam.where}


@pytest.fixture
def other_sources() -> Path:
    """The .py files of another vLLM version, downloaded once."""
    folder = ROOT / ".cache" / f"vllm-{OTHER}"
    if not folder.is_dir():
        wheels = ROOT / ".cache" / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--dest", str(wheels), f"vllm=={OTHER}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, f"cannot download the version to compare with:\n{done.stderr}"
        (wheel,) = wheels.glob(f"vllm-{OTHER}-*.whl")
        unpacked = folder.with_suffix(".part")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if name.endswith(".py")])
        unpacked.rename(folder)
        wheel.unlink()
    return folder


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Repeat in every test the checks that run once per process."""
    yield
    seams.require.cache_clear()
    seams.available.cache_clear()
    seams.support.warn_untested.cache_clear()


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_seam_holds_in_the_installed_vllm(part: str):
    assert seams.moved_seams(part) == []
    seams.require(part)


def test_every_seam_holds_in_another_version(other_sources):
    assert {VERSIONS.parse(vllm.__version__), VERSIONS.parse(OTHER)} == {VERSIONS.oldest, VERSIONS.newest}
    script = (
        "import vllm; from specplug_vllm import seams; "
        "print(vllm.__version__, seams.ranks_agree_to_skip_drafts()); seams.support.report()"
    )
    path = os.pathsep.join([str(other_sources), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": path, "VLLM_PLUGINS": ""}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, env=given)
    assert f"{OTHER} True\n" in done.stdout, done.stderr
    (reported,) = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    found = json.loads(reported)
    assert (found["moved"], found["off"]) == ([], [])
    assert found["seams"] > 80


# -- start-up --------------------------------------------------------------------------------------------------------


def test_a_moved_seam_stops_with_its_name_the_version_found_and_those_supported(monkeypatch):
    from vllm.v1.core.sched.scheduler import Scheduler

    monkeypatch.delattr(Scheduler, "make_spec_decoding_stats")
    with pytest.raises(EngineError) as raised:
        seams.require("scheduler")
    message = str(raised.value)
    assert "vllm.v1.core.sched.scheduler:Scheduler.make_spec_decoding_stats is gone" in message
    assert f"vLLM {vllm.__version__}" in message
    assert "vLLM 0.32 to 0.33" in message
    seams.require("config")  # parts that do not use it go on


def test_later_versions_do_without_the_list_of_methods_that_schedule_asynchronously(monkeypatch):
    module = importlib.import_module("vllm.config.vllm")
    monkeypatch.delattr(module, "NgramGPUTypes")
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    seams.require("config")
    with engine_config._async_allowed(wanted=True):
        assert not hasattr(module, "NgramGPUTypes")
    seams.require.cache_clear()
    monkeypatch.setattr(vllm, "__version__", "0.32.0")
    with pytest.raises(EngineError, match="NgramGPUTypes is gone"):
        seams.require("config")


def test_what_serves_comfort_alone_is_off_with_one_warning_where_it_has_moved(monkeypatch, caplog):
    from vllm.v1.engine.core_client import EngineCoreClient
    from vllm.v1.worker.gpu_worker import Worker

    monkeypatch.delattr(EngineCoreClient, "make_async_mp_client")
    monkeypatch.delattr(Worker, "finish_weight_update")
    with caplog.at_level(logging.WARNING, logger="specplug"):
        status.export_metrics()  # which would hook the first
        hooks.install_events(SimpleNamespace(), None)
        hooks.install_events(SimpleNamespace(), None)
    stated = [record.getMessage() for record in caplog.records if record.name == "specplug"]
    assert len(stated) == 2
    assert "EngineCoreClient.make_async_mp_client is gone" in stated[0]
    assert stated[0].endswith(f"The server runs; off: {OPTIONAL['metrics']}")
    assert stated[1].endswith(f"The server runs; off: {OPTIONAL['events']}")
    for where in PARTS - OPTIONAL.keys():
        seams.require(where)
