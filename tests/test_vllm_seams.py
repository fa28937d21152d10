"""The table of vLLM's seams: how it is compared, and that it holds every name that the adapter uses.  Needs no vLLM."""

from __future__ import annotations

import argparse
import ast
import dis
import functools
import importlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from specplug.seams.probe import _method_codes, _stored, imported, problems
from specplug.seams.seam import Seam
from specplug.seams.seam import seam as a_seam
from specplug.seams.sources import Sources, moved_in
from specplug_vllm import seams
from specplug_vllm.seams_table import SEAMS

ROOT = Path(__file__).parents[1]
ADAPTER = ROOT / "adapters" / "specplug_vllm"
PROBES = {path.name for path in ADAPTER.glob("seam*.py")}

ENGINE = {
    "__init__.py": "from .parts import *\n",
    "parts.py": """
        import functools
        from dataclasses import dataclass

        LIMIT = 3

        class Base:
            shared: int = 0

            def __init__(self, size, *, eager=False):
                self.size = size
                self.left, self.right = 1, 2

            def inherited(self, a, b): ...

        class Plain: ...

        @dataclass
        class Row:
            name: str
            length: int = 0

        @dataclass(slots=True)
        class Packed:
            name: str

        def function(a, b, *rest, c=1, **others): ...
    """,
    "runner.py": """
        import functools

        from engine.parts import Base, function as renamed

        if LIMIT := 2:
            def conditional(x): ...
        else:
            def conditional(y): ...

        try:
            import nothing
        except ImportError:
            nothing = None

        def wrapping(original):
            @functools.wraps(original)
            def wrapped(*args, **kwargs): ...
            return wrapped

        class Runner(Base):
            kind = "plain"

            def __init__(self):
                super().__init__(1)
                self._draft = None

            def late(self):
                self.made_late: int = 1
                other = self
                print(self.only_read)

            @property
            def width(self): return 1

            @staticmethod
            def static(a, b): ...

            @classmethod
            def made(cls, a, b): ...

            @wrapping
            def wrapped(self, a): ...
    """,
}

HOLDS = [
    a_seam("engine:function", "v1", takes="a b", named="c others rest"),
    a_seam("engine.runner:Runner.__init__", "v1"),
    a_seam("engine:Base", "v1", holds="shared size left right inherited __init__"),
    a_seam("engine.parts", "v1", holds="LIMIT Base function Row"),
    a_seam("engine.parts:Row", "v1", holds="name length __dict__"),
    a_seam("engine.parts:Packed", "v1", holds="name"),
    a_seam("engine.parts:Base.__init__", "v1", takes="size", named="eager"),
    a_seam("engine.runner:renamed", "v1", takes="a b"),
    a_seam("engine.runner", "v1", holds="conditional nothing renamed Runner"),
    a_seam("engine.runner:Runner", "v1", holds="_draft made_late kind width size left shared inherited __dict__"),
    a_seam("engine.runner:Runner.inherited", "v1", takes="a b"),
    a_seam("engine.runner:Runner.static", "v1", takes="a b"),
    a_seam("engine.runner:Runner.made", "v1", takes="a b"),
    a_seam("engine.runner:Runner.wrapped", "v1", takes="a"),
]
MOVED = [
    (a_seam("engine:absent", "v1"), ["engine:absent is gone"]),
    (a_seam("engine.absent:x", "v1"), ["engine.absent:x is gone"]),
    (a_seam("engine:Base.absent", "v1"), ["engine:Base.absent is gone"]),
    (a_seam("engine.parts:Plain.__init__", "v1"), ["engine.parts:Plain.__init__ is gone"]),
    (a_seam("engine:LIMIT.absent", "v1"), ["engine:LIMIT.absent is gone"]),
    (a_seam("engine.runner:Runner", "v1", holds="only_read kind"), ["engine.runner:Runner no longer has 'only_read'"]),
    (a_seam("engine.parts", "v1", holds="absent"), ["engine.parts no longer has 'absent'"]),
    (a_seam("engine.parts:Packed", "v1", holds="__dict__"), ["engine.parts:Packed no longer has '__dict__'"]),
    (
        a_seam("engine:function", "v1", takes="b", named="d"),
        [
            "engine:function no longer begins with (b): found (a, b, rest, c, others)",
            "engine:function no longer takes 'd': found (a, b, rest, c, others)",
        ],
    ),
    (
        a_seam("engine.runner:Runner.made", "v1", takes="cls"),
        ["engine.runner:Runner.made no longer begins with (cls): found (a, b)"],
    ),
    (a_seam("engine:LIMIT", "v1", takes="a"), ["engine:LIMIT is no longer a function"]),
]


@pytest.fixture
def engine(tmp_path, monkeypatch) -> Iterator[Path]:
    """A small engine's sources, that can also be imported."""
    folder = tmp_path / "engine"
    folder.mkdir()
    for name, text in ENGINE.items():
        indented = text.startswith("\n        ")
        lines = (line[8:] if indented else line for line in text.splitlines())
        (folder / name).write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "engine"]:
        del sys.modules[name]


@pytest.mark.parametrize("seam", HOLDS, ids=str)
def test_both_probes_find_what_is_there(engine, seam: Seam):
    assert list(problems(seam, Sources(engine).find)) == []
    assert list(problems(seam, imported)) == []


@pytest.mark.parametrize(("seam", "expected"), MOVED, ids=lambda value: str(value) if isinstance(value, Seam) else "")
def test_both_probes_say_the_same_of_what_is_not(engine, seam: Seam, expected: list[str]):
    assert list(problems(seam, Sources(engine).find)) == expected
    assert list(problems(seam, imported)) == expected


def test_a_hook_of_ours_does_not_hide_what_it_wraps(engine, monkeypatch):
    parts = importlib.import_module("engine.parts")
    original = parts.Base.inherited
    monkeypatch.setattr(parts.Base, "inherited", functools.wraps(original)(lambda *args, **kwargs: None))
    assert list(problems(a_seam("engine.parts:Base.inherited", "v1", takes="a b"), imported)) == []


@pytest.mark.parametrize("cls", [argparse.ArgumentParser, logging.Logger, dis.Bytecode, ast.NodeVisitor, Path])
def test_assigned_attributes_are_those_that_dis_finds(cls: type):
    codes = _method_codes(cls)
    assert codes
    for code in codes:
        assert _stored(code) == {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}


def test_attributes_with_large_numbers_are_found():
    names: dict = {}
    exec("def many(self):\n" + "".join(f"    self.a{n} = {n}\n" for n in range(700)), names)
    assert _stored(names["many"].__code__) == {f"a{n}" for n in range(700)}


def test_seams_that_a_version_does_not_have_are_left_out(engine):
    gone = a_seam("engine:absent", "v1")
    assert moved_in(engine, (0, 31), [gone, replace(gone, since=(0, 32)), replace(gone, until=(0, 30))]) == [
        "engine:absent is gone"
    ]


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.32.0", (0, 32)), ("0.33.1rc2.dev4+g12ab", (0, 33)), ("1.0", (1, 0)), ("dev", None), ("x.y", None), ("", None)],
)
def test_versions_are_read(text: str, version):
    assert seams.parse(text) == version


def test_no_row_says_nothing_twice():
    said: dict[tuple[str, str], Seam] = {}
    for seam in SEAMS:
        assert seam.where, f"{seam} is used by nobody"
        for name in (*seam.holds, *seam.takes, *seam.named):
            for where in seam.where:
                assert said.setdefault((f"{seam} {name}", where), seam) is seam, f"{seam} lists {name!r} twice"


def adapter() -> dict[str, ast.Module]:
    return {path.name: ast.parse(path.read_text()) for path in sorted(ADAPTER.rglob("*.py")) if path.name not in PROBES}


def covered(module: str, name: str) -> bool:
    """Whether a row is about a module's name, or a part of it."""
    return any(
        seam.module == module and (name == "" or f"{seam.name}.".startswith(f"{name}.") or name in seam.holds)
        for seam in SEAMS
    )


def test_every_import_from_vllm_is_in_the_table():
    lacking = []
    for file, tree in adapter().items():
        for node in ast.walk(tree):
            found: list[tuple[str, str]] = []
            if isinstance(node, ast.Import):
                found = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found = [(node.module or "", alias.name) for alias in node.names]
            for module, name in found:
                if module.partition(".")[0] == "vllm" and not (
                    covered(module, name) or covered(f"{module}.{name}", "")
                ):
                    lacking.append(f"{file}:{node.lineno}: {module}:{name}")
    assert not lacking, "\n".join(lacking)


def aliases(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """What of vLLM's a file's names stand for: (module, name in it), the latter empty for a module."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.asname or a.name: (a.name, "") for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            for a in node.names:
                module = f"{node.module}.{a.name}"
                is_module = any(seam.module == module for seam in SEAMS)
                found[a.asname or a.name] = (module, "") if is_module else (node.module or "", a.name)
    return {alias: place for alias, place in found.items() if place[0].partition(".")[0] == "vllm"}


def test_every_name_taken_from_a_module_or_class_of_vllm_is_in_the_table():
    lacking = []
    for file, tree in adapter().items():
        known = aliases(tree)
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id=alias), attr=name) if alias in known and "specplug" not in name:
                    module, inside = known[alias]
                    if inside.islower():  # an object: what it holds stands with its class
                        continue
                    held = any(name in s.holds for s in SEAMS if (s.module, s.name) == (module, inside))
                    if not held and not covered(module, f"{inside}.{name}".lstrip(".")):
                        lacking.append(f"{file}:{node.lineno}: {module}:{inside}.{name}")
    assert not lacking, "\n".join(lacking)


def test_every_method_of_vllms_that_ours_override_and_call_is_in_the_table():
    listed = {name for seam in SEAMS for name in (*seam.holds, *seam.name.split("."))}
    lacking = []
    for file, tree in adapter().items():
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if name != "__init__":
                    if name not in listed:
                        lacking.append(f"{file}:{node.lineno}: {name}")
    assert not lacking, "\n".join(lacking)


GROUPS = {"vllm.general_plugins", "vllm.endpoint_plugins", "vllm.stat_logger_plugins"}


def test_every_module_of_vllm_that_is_named_in_text_is_in_the_table():
    lacking = [
        f"{file}:{node.lineno}: {node.value}"
        for file, tree in adapter().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("vllm.")
        if " " not in node.value and node.value not in GROUPS and not covered(node.value, "")
    ]
    assert not lacking, "\n".join(lacking)


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield every name that a module gives to something of its own.  Hooks, inside functions, borrow vLLM's names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield inner.name
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Module(body=body):
                yield from assigned(body)
        if isinstance(node, ast.ClassDef):
            yield from assigned(node.body)


def assigned(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from (n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


OURS = """
_specplug _specplug_intake specplug_control specplug_engine specplug_keys specplug_status
"""
PYTHONS = """
body digest f_locals origin parent parse_known_args returncode util value
"""
TORCHS = "Module load_weights"
FASTAPIS = "add_api_route headers include_router"
OTHERS = "model_dump model_json_schema"  # of pydantic


def known_elsewhere() -> set[str]:
    """Names of attributes that are not vLLM's: our own, Python's, and those of libraries that the adapter imports."""
    known = {*OURS.split(), *PYTHONS.split(), *TORCHS.split(), *FASTAPIS.split(), *OTHERS.split()}
    for path in (*ROOT.glob("specplug/**/*.py"), *ADAPTER.glob("*.py")):
        known |= set(defined(ast.parse(path.read_text())))
    for thing in (str, bytes, list, dict, set, tuple, int, float, type, BaseException, torch.Tensor, np.ndarray):
        known |= set(dir(thing))
    for tree in adapter().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in ("vllm", "specplug"):
                known |= names_of(node.module or "", [alias.name for alias in node.names])
            elif isinstance(node, ast.Import):
                known |= {
                    name
                    for alias in node.names
                    if alias.name.partition(".")[0] != "vllm"
                    for name in names_of(alias.name)
                }
    return known


def names_of(module: str, names: list[str] | None = None) -> set[str]:
    try:
        found = importlib.import_module(module)
    except ImportError:  # only where vLLM is
        return set(names or ())
    things = [found] if names is None else [getattr(found, name) for name in names if hasattr(found, name)]
    return {*(names or ()), *(name for thing in things for name in dir(thing))}


def used(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name):
                yield name, node.lineno
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=name), *_]):
                yield name, node.lineno


def test_every_attribute_that_can_only_be_vllms_is_in_the_table():
    listed = {name for seam in SEAMS for name in (*seam.holds, *seam.takes, *seam.named, *seam.name.split("."))}
    known = known_elsewhere() | listed
    lacking = sorted(
        f"{file}:{line}: {name}" for file, tree in adapter().items() for name, line in used(tree) if name not in known
    )
    assert not lacking, "\n".join(lacking)


def test_the_list_of_attributes_would_notice_a_new_one():
    (name,) = {name for name, _ in used(ast.parse("runner._never_heard_of_it = 1"))}
    listed = {name for seam in SEAMS for name in (*seam.holds, *seam.takes, *seam.named, *seam.name.split("."))}
    assert name not in known_elsewhere() | listed
