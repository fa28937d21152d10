"""The tables of seams hold what the adapters hook, override and call, and private names.  Needs no engine."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import specplug_sglang.seams
import specplug_vllm.seams

ROOT = Path(__file__).parents[2]
NOT_THE_ENGINES = {"_replace", "parsed"}  # of named tuples, and of our own parser
TABLES = {"vllm": specplug_vllm.seams, "sglang": specplug_sglang.seams}


@functools.cache
def trees(engine: str) -> dict[str, ast.Module]:
    """Return an adapter's files, parsed."""
    folder = ROOT / "adapters" / f"specplug_{engine}"
    files = (path for path in folder.rglob("*.py") if path.name != "seams.py")
    return {str(path.relative_to(folder)): ast.parse(path.read_text()) for path in files}


def relied_on(engine: str, tree: ast.Module) -> Iterator[str]:
    """Yield the functions that a file imports from the engine, those that it hooks or overrides, and private names."""
    ours = set(calls_of_our_methods(engine, tree))
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == engine:
                yield from (alias.name for alias in node.names if alias.name.islower() and "_" in alias.name)
            case ast.Call(func=ast.Name(id="hook"), args=[_, ast.Constant(value=str(name)), _]):
                yield name
            case ast.Constant(value=str(path)) if path.startswith(f"{engine}.") and " " not in path:
                yield path.rpartition(".")[2]
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                if name != "__init__" and node not in ours:
                    yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith(("__", "_specplug")):
                yield name


def calls_of_our_methods(engine: str, tree: ast.Module) -> Iterator[ast.Attribute]:
    """Yield the attributes of `super()` that are methods of a class of the adapter, the only base of a file's class."""
    classes = [node for each in trees(engine).values() for node in each.body if isinstance(node, ast.ClassDef)]
    methods = {it.name: {each.name for each in it.body if isinstance(each, ast.FunctionDef)} for it in classes}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        match node.bases:
            case [ast.Name(id=base)] if base in methods:
                own = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
                yield from (each for each in own if is_super(each.value) and each.attr in methods[base])


def is_super(node: ast.expr) -> bool:
    """Return whether a node is a call of `super`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


@pytest.mark.parametrize("engine", TABLES)
def test_what_an_adapter_relies_on_is_in_its_table(engine):
    listed = {name for seam in TABLES[engine].SEAMS for name in (*seam.name.split("."), *seam.holds)}
    listed |= {part for seam in TABLES[engine].SEAMS for part in seam.module.split(".")}
    for file, tree in trees(engine).items():
        if file != "doctor.py":  # whose process reports what it raises
            assert set(relied_on(engine, tree)) <= listed | NOT_THE_ENGINES, file


@pytest.mark.parametrize("engine", TABLES)
def test_every_part_of_the_adapter_has_its_seams_looked_at_and_optional_ones_say_what_is_off(engine):
    module = TABLES[engine]
    parts = {part for seam in module.SEAMS for part in seam.where}
    assert {part for tree in trees(engine).values() for part in looked_at(tree)} == parts
    assert module.OPTIONAL.keys() < parts
    assert all(module.OPTIONAL.values())


def looked_at(tree: ast.Module) -> Iterator[str]:
    """Yield the parts of the adapter that a file has looked at, by name or in a loop over names."""
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=ast.Tuple(elts=elements)) if "seams.require" in ast.unparse(node):
                yield from (str(element.value) for element in elements if isinstance(element, ast.Constant))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="seams"), attr="require" | "moved" | "available"),
                args=[ast.Constant(value=str(name))],
            ):
                yield name
