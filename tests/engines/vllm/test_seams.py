"""The seams in the vLLM that is installed, in the sources of another version, and what is said when one has moved."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import vllm

from specplug.errors import EngineError
from specplug.seams.probe import imported, problems
from specplug.seams.seam import Seam
from specplug.seams.sources import Sources, moved_in
from specplug_vllm import seams
from specplug_vllm.seams import DIFFERENCES, NEWEST, OLDEST, OPTIONAL, SEAMS, VERSIONS, Where
from specplug_vllm.startup import engine_config
from specplug_vllm.worker import hooks, status
from tests.engines.planted import assert_named_in_process, assert_named_in_sources, sources_of

INSTALLED = Path(vllm.__file__).parents[1]
VERSION = VERSIONS.parse(vllm.__version__)
OTHER = "0.33.0"
"""The version whose sources are downloaded: another one than the installed."""

HERE = [seam for seam in SEAMS if seam.applies(VERSION)]


@pytest.fixture(scope="session")
def other_sources() -> Path:
    """The .py files of another vLLM version."""
    return sources_of("vllm", OTHER)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Repeat in every test the checks that run once per process."""
    yield
    seams.require.cache_clear()
    seams.available.cache_clear()
    seams._has.cache_clear()
    seams._support.warn_untested.cache_clear()


def test_the_installed_version_is_supported_and_the_other_one_is_another():
    assert OLDEST <= VERSION <= NEWEST
    assert {VERSION, VERSIONS.parse(OTHER)} == {OLDEST, NEWEST}


@pytest.mark.parametrize("where", get_args(Where))
def test_every_seam_holds_in_the_installed_vllm(where: Where):
    assert seams.moved(where) == []
    seams.require(where)


def test_every_seam_holds_in_the_installed_vllms_sources():
    assert moved_in(INSTALLED, VERSION, SEAMS) == []


def test_every_seam_holds_in_another_versions_sources(other_sources):
    stated = ast.parse((other_sources / "vllm" / "_version.py").read_text())
    assert f"'{OTHER}'" in ast.unparse(stated)
    assert moved_in(other_sources, VERSIONS.parse(OTHER), SEAMS) == []


def test_what_only_some_versions_have_is_not_in_the_others(other_sources):
    sources = Sources(other_sources)
    for name, seam in DIFFERENCES.items():
        assert (list(problems(seam, sources.find)) == []) == seam.applies(VERSIONS.parse(OTHER)), name
        assert (list(problems(seam, imported)) == []) == seam.applies(VERSION), name


# -- planted: every row is moved, and must be named ------------------------------------------------------------------


@pytest.mark.parametrize("seam", HERE, ids=str)
def test_a_seam_that_moved_in_sources_is_named(seam: Seam):
    assert_named_in_sources(seam, INSTALLED)


@pytest.mark.parametrize("seam", HERE, ids=str)
def test_a_seam_that_moved_in_the_imported_vllm_is_named(seam: Seam, monkeypatch: pytest.MonkeyPatch):
    assert_named_in_process(seam, monkeypatch)


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


@pytest.mark.parametrize("version", ["0.34.0rc1", "1.0.0", "dev"])
def test_an_untested_vllm_is_served_with_one_warning(monkeypatch, caplog, version: str):
    monkeypatch.setattr(vllm, "__version__", version)
    with caplog.at_level(logging.WARNING, logger="specplug"):
        seams.require("scheduler")
        seams.require("config")
    (record,) = [record for record in caplog.records if record.name == "specplug"]
    assert f"not with {version}" in record.getMessage()


def test_later_versions_do_without_the_list_of_methods_that_schedule_asynchronously(monkeypatch):
    module = importlib.import_module("vllm.config.vllm")
    monkeypatch.delattr(module, "NgramGPUTypes")
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    seams.require("config")
    with engine_config._async_allowed(wanted=True):
        assert not hasattr(module, "NgramGPUTypes")
    seams.require.cache_clear()
    monkeypatch.setattr(vllm, "__version__", "0.32.0")
    with pytest.raises(EngineError, match="no longer has 'NgramGPUTypes'"):
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
    for where in set(get_args(Where)) - OPTIONAL.keys():
        seams.require(where)
