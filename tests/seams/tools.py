"""Scan of an adapter's code for its uses of the engine, and those missing from the adapter's table of seams.

Needs no engine: everything is read from the adapter's sources.
"""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from specplug.seams.seam import Seam

ROOT = Path(__file__).parents[2]


def duplicates(seams: Sequence[Seam]) -> list[str]:
    """Return the rows that no part of the adapter uses, or that repeat another row for the same part."""
    stated: dict[tuple[str, str], Seam] = {}
    found = [f"{seam} is used by nobody" for seam in seams if not seam.where]
    for seam in seams:
        for name in (*seam.holds, *seam.takes, *seam.named):
            for where in seam.where:
                if stated.setdefault((f"{seam} {name}", where), seam) is not seam:
                    found.append(f"{seam} lists {name!r} twice")
    return found


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter's sources beside its table.

    Attributes:
        engine: the engine's package.
        folder: the adapter's package folder; its module `seams` is left out.
        seams: its table.
        groups: entry-point groups, which are named in strings as modules are.
        elsewhere: attributes that are neither the engine's nor defined where `known` looks.
    """

    engine: str
    folder: Path
    seams: Sequence[Seam]
    groups: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()

    @functools.cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Return the adapter's files, parsed."""
        files = (path for path in sorted(self.folder.rglob("*.py")) if path.name != "seams.py")
        return {str(path.relative_to(self.folder)): ast.parse(path.read_text()) for path in files}

    def is_engines(self, module: str) -> bool:
        """Return whether a module is the engine's."""
        return module.partition(".")[0] == self.engine

    def covered(self, module: str, name: str) -> bool:
        """Return whether a row is about a module's name, or a part of it."""
        owner, _, last = name.rpartition(".")
        return any(
            name == "" or f"{seam.name}.".startswith(f"{name}.") or (seam.name == owner and last in seam.holds)
            for seam in self.seams
            if seam.module == module
        )

    def covers_path(self, path: str) -> bool:
        """Return whether a row is about a dotted path: a module, or a name in one."""
        parts = path.split(".")
        return any(self.covered(".".join(parts[:n]), ".".join(parts[n:])) for n in range(1, len(parts) + 1))

    def imports_lacking(self) -> list[str]:
        """Return the imports from the engine that are not in the table."""
        lacking = []
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                found: list[tuple[str, str]] = []
                if isinstance(node, ast.Import):
                    found = [(alias.name, "") for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    found = [(node.module or "", alias.name) for alias in node.names]
                for module, name in found:
                    if self.is_engines(module) and not (
                        self.covered(module, name) or self.covered(f"{module}.{name}", "")
                    ):
                        lacking.append(f"{file}:{node.lineno}: {module}:{name}")
        return lacking

    def aliases(self, tree: ast.Module) -> dict[str, tuple[str, str]]:
        """Return what of the engine a file's names stand for: (module, name in it), the latter empty for a module."""
        found = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {a.asname or a.name: (a.name, "") for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                for a in node.names:
                    module = f"{node.module}.{a.name}"
                    is_module = any(seam.module == module for seam in self.seams)
                    found[a.asname or a.name] = (module, "") if is_module else (node.module or "", a.name)
        return {alias: place for alias, place in found.items() if self.is_engines(place[0])}

    def names_lacking(self) -> list[str]:
        """Return the names taken from a module or class of the engine that are not in the table."""
        lacking = []
        for file, tree in self.trees.items():
            known = self.aliases(tree)
            for node in ast.walk(tree):
                match node:
                    case ast.Attribute(value=ast.Name(id=alias), attr=name) if alias in known:
                        module, inside = known[alias]
                        if inside.islower() or "specplug" in name:  # an object: what it holds stands with its class
                            continue
                        held = any(name in s.holds for s in self.seams if (s.module, s.name) == (module, inside))
                        if not held and not self.covered(module, f"{inside}.{name}".lstrip(".")):
                            lacking.append(f"{file}:{node.lineno}: {module}:{inside}.{name}")
        return lacking

    def supers_lacking(self) -> list[str]:
        """Return the engine's methods that ours override and call and that are not in the table."""
        return [
            f"{file}:{node.lineno}: {node.attr}"
            for file, tree in self.trees.items()
            for cls in ast.walk(tree)
            if isinstance(cls, ast.ClassDef) and not inherits_ours_alone(cls, tree)
            for node in ast.walk(cls)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call)
            if isinstance(node.value.func, ast.Name) and node.value.func.id == "super"
            if node.attr != "__init__" and node.attr not in self.listed
        ]

    def paths_lacking(self) -> list[str]:
        """Return what of the engine is named in strings and is not in the table."""
        return [
            f"{file}:{line}: {text}"
            for file, tree in self.trees.items()
            for text, line in texts(tree)
            if text.startswith(f"{self.engine}.") and " " not in text
            if text not in self.groups and not self.covers_path(text)
        ]

    def attributes_lacking(self) -> list[str]:
        """Return the attributes that can only be the engine's and are not in the table."""
        known = self.known | self.listed
        return sorted(
            f"{file}:{line}: {name}"
            for file, tree in self.trees.items()
            for name, line in used(tree)
            if name not in known
        )

    @functools.cached_property
    def listed(self) -> set[str]:
        """Every name in the table."""
        return {name for s in self.seams for name in (*s.holds, *s.takes, *s.named, *s.name.split("."))}

    @functools.cached_property
    def known(self) -> set[str]:
        """Names of attributes that are not the engine's: our own, Python's, and those of imported libraries."""
        known = set(self.elsewhere)
        for path in (*ROOT.glob("specplug/**/*.py"), *self.folder.rglob("*.py")):
            known |= set(defined(ast.parse(path.read_text())))
        for thing in (str, bytes, list, dict, set, tuple, int, float, type, BaseException, torch.Tensor, np.ndarray):
            known |= set(dir(thing))
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom):
                    if not self.is_engines(node.module or "") and (node.module or "").partition(".")[0] != "specplug":
                        known |= names_of(node.module or "", [alias.name for alias in node.names])
                elif isinstance(node, ast.Import):
                    for alias in node.names:
                        if not self.is_engines(alias.name):
                            known |= names_of(alias.name)
        return known


def inherits_ours_alone(cls: ast.ClassDef, tree: ast.Module) -> bool:
    """Return whether all bases of a class come from specplug."""
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "specplug"
        for alias in node.names
    }
    names = [next(n.id for n in ast.walk(base) if isinstance(n, ast.Name)) for base in cls.bases]
    return bool(names) and set(names) <= ours


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield every name that a module gives to something of its own.  Hooks, inside functions, borrow the engine's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield inner.name
            yield from assigned(node.body)
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def assigned(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements assign where they stand."""
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from (n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def names_of(module: str, names: list[str] | None = None) -> set[str]:
    """Return the attributes of a library's module, or of some of its names."""
    try:
        found = importlib.import_module(module)
    except ImportError:  # only where the engine is
        return set(names or ())
    things = [found] if names is None else [getattr(found, name) for name in names if hasattr(found, name)]
    return {*(names or ()), *(name for thing in things for name in dir(thing))}


def texts(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the strings of a module, with their lines; and those that are put together of names for strings."""
    everywhere = names_for_strings(tree.body)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno
    for function in functions:
        named = everywhere | names_for_strings(function.body)
        for node in ast.walk(function):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    [part.value] if isinstance(part, ast.Constant) else named.get(ast.unparse(part.value), [])
                    for part in node.values
                ]
                yield from (("".join(chosen), node.lineno) for chosen in itertools.product(*parts))


def names_for_strings(body: list[ast.stmt]) -> dict[str, list[str]]:
    """Return the strings that statements give a name to: one by assigning it, several by going through them."""
    found: dict[str, list[str]] = {}
    keys: dict[str, list[ast.expr]] = {}
    for node in itertools.chain.from_iterable(map(ast.walk, body)):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                found.setdefault(name, []).append(text)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=elements)):
                keys[name] = [each for each in elements if each is not None]
    for node in itertools.chain.from_iterable(map(ast.walk, body)):
        match node:
            case ast.For(target=ast.Name(id=name), iter=ast.Tuple(elts=elements) | ast.List(elts=elements)):
                found.setdefault(name, []).extend(strings(elements))
            case ast.For(
                target=ast.Tuple(elts=[ast.Name(id=name), _]),
                iter=ast.Call(func=ast.Attribute(value=ast.Name(id=mapping), attr="items")),
            ):
                found.setdefault(name, []).extend(strings(keys.get(mapping, [])))
    return found


def strings(elements: list[ast.expr]) -> list[str]:
    return [each.value for each in elements if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def used(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the attributes that a module reads or sets, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name):
                yield name, node.lineno
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr" | "hook"), args=[_, ast.Constant(value=name), *_]
            ):
                yield name, node.lineno
