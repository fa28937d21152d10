"""Downloaded sources of other versions, and moved seams, planted in sources and in an imported engine."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specplug.seams.probe import imported, problems
from specplug.seams.seam import Seam
from specplug.seams.sources import Sources

CACHE = Path(__file__).parents[2] / ".cache"


def sources_of(package: str, version: str) -> Path:
    """Return a folder with the .py files of an engine's other version, downloaded once."""
    folder = CACHE / f"{package}-{version}"
    if not folder.is_dir():
        wheels = CACHE / "wheels"
        command = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        done = subprocess.run(
            [*command, "--dest", str(wheels), f"{package}=={version}"], capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, f"cannot download the sources to compare with:\n{done.stderr}"
        (wheel,) = wheels.glob(f"{package.replace('-', '_')}-{version}-*.whl")
        unpacked = folder.with_suffix(".part")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if name.endswith(".py")])
        unpacked.rename(folder)
        wheel.unlink()
    return folder


class Planted(Sources):
    """Sources in which definitions of some names are called otherwise, while the context is open.

    Parsing takes most of the time, so sources share their trees, and names are changed in these and back.
    """

    def __init__(self, root: Path, names: set[str]) -> None:
        super().__init__(root)
        self._names = names
        self._changed: list[tuple[ast.AST, str, Any]] = []

    def __enter__(self) -> Planted:
        return self

    def __exit__(self, *_: object) -> None:
        for node, field, value in self._changed:
            setattr(node, field, value)

    def parse(self, file: Path) -> ast.Module:
        tree, places = parsed(file)
        for name in self._names:
            for node, field in places.get(name, ()):
                self._changed.append((node, field, getattr(node, field)))
                setattr(node, field, f"{name}_moved")
        return tree


@functools.lru_cache(maxsize=64)
def parsed(file: Path) -> tuple[ast.Module, dict[str, list[tuple[ast.AST, str]]]]:
    """Return a file's tree, and by name the nodes that define it, with their field that holds it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    places: dict[str, list[tuple[ast.AST, str]]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                field = "name"
            case ast.arg(arg=name):
                field = "arg"
            case ast.Attribute(attr=name, ctx=ast.Store()):
                field = "attr"
            case ast.Name(id=name, ctx=ast.Store()):
                field = "id"
            case ast.alias(name=original, asname=asname):
                name, field = asname or original, "asname"
            case _:
                continue
        places.setdefault(name, []).append((node, field))
    return tree, places


def parts(seam: Seam) -> set[str]:
    """The names that a row lists beside its own; that instances take further attributes has no name to move."""
    return {*seam.takes, *seam.named, *seam.holds} - {"__dict__"}


def assert_named(seam: Seam, names: set[str], stated: list[str]) -> None:
    assert all(line.startswith(f"{seam} ") for line in stated)
    for name in names & {*seam.named, *seam.holds}:
        assert any(f"'{name}'" in line for line in stated), f"{name} is not named in {stated}"
    if names & {*seam.takes}:
        assert any("no longer begins with" in line for line in stated), stated


def assert_named_in_sources(seam: Seam, root: Path) -> None:
    """Move a row's symbol, and then all that it lists, in sources; every one has to be named."""
    if seam.name:
        last = seam.name.rpartition(".")[2]
        with Planted(root, {last}) as sources:
            assert list(problems(seam, sources.find)) == [f"{seam} is gone"]
    with Planted(root, parts(seam)) as sources:
        stated = list(problems(seam, sources.find)) if parts(seam) else []
    assert_named(seam, parts(seam), stated)


def assert_named_in_process(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move what a row lists, one after the other, and then its symbol, in this process; each has to be named."""
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
