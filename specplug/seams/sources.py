"""Comparison of seams with an engine's sources without importing them: another version's, or a slow installed one's."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

from specplug.seams.probe import problems
from specplug.seams.seam import Seam, Version

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def moved_in(root: Path, version: Version, seams: Iterable[Seam]) -> list[str]:
    """Return the problems of the seams in an engine's sources.

    Args:
        root: the folder that holds the engine's package folder.
        version: the sources' version; seams that do not apply to it are skipped.
        seams: the seams to check.
    """
    sources = Sources(root)
    return [line for seam in seams if seam.applies(version) for line in problems(seam, sources.find)]


class Sources:
    """Modules below a folder, parsed on first use."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parsed: dict[str, Source | None] = {}

    def module(self, name: str) -> Source | None:
        """Return a parsed module, or None if there is no such file."""
        if name not in self._parsed:
            path = self._root.joinpath(*name.split("."))
            files = (path.with_suffix(".py"), path / "__init__.py")
            file = next((file for file in files if file.is_file()), None)
            self._parsed[name] = None if file is None else Source(self.parse(file), file, name, self)
        return self._parsed[name]

    def parse(self, file: Path) -> ast.Module:
        """Return a file's syntax tree."""
        return ast.parse(file.read_text(encoding="utf-8"))

    def find(self, module: str, name: str) -> Source | None:
        """Find a symbol; "" is the module itself."""
        found = self.module(module)
        for part in name.split(".") if name else ():
            found = None if found is None else found.member(part)
        return found


class Source:
    """A module, class, function or value.

    Args:
        node: its syntax tree.
        file, module, sources: where it is defined.
        scope: the module or class that defines it; None for a module.
    """

    def __init__(
        self, node: ast.Module | ast.stmt, file: Path, module: str, sources: Sources, scope: Source | None = None
    ) -> None:
        self._node, self._scope = node, scope
        self._place = file, module, sources
        self._names: dict[str, ast.stmt] = {}
        self._statements = list(_flat(node.body)) if isinstance(node, ast.Module | ast.ClassDef) else []
        for statement in self._statements:
            for bound in _bound(statement):
                is_made_anew = isinstance(self._names.get(bound), ast.ClassDef) and isinstance(statement, ast.Assign)
                if not is_made_anew:  # from a class of the same name, which has more information
                    self._names[bound] = statement

    def parameters(self) -> list[str] | None:
        """See `Symbol.parameters`."""
        if not isinstance(self._node, _Function):
            return None
        args = self._node.args
        named = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
        is_static = any(ast.unparse(decorator) == "staticmethod" for decorator in self._node.decorator_list)
        takes_self = self._scope is not None and isinstance(self._scope._node, ast.ClassDef) and not is_static
        return [arg.arg for arg in named if arg is not None][1 if takes_self else 0 :]

    def holds(self, name: str) -> bool:
        """See `Symbol.holds`."""
        if name == "__dict__":
            return all(not cls._has_slots() for cls in self._line())
        if isinstance(self._node, ast.ClassDef):
            return any(name in cls._attributes for cls in self._line())
        return name in self._names or self.member(name) is not None

    def member(self, name: str) -> Source | None:
        """Return the definition of a name, following imports within the engine and bases."""
        for scope in self._line():
            statement = scope._names.get(name)
            if statement is not None and not (isinstance(statement, ast.ImportFrom) and scope._is_module):
                return Source(statement, *scope._place, scope)
            if isinstance(statement, ast.ImportFrom):
                original = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
                origin = scope._place[2].module(scope._origin(statement))
                return Source(statement, *scope._place, scope) if origin is None else origin.member(original)
        return self._of_package(name) if self._is_module else None

    @property
    def _is_module(self) -> bool:
        return isinstance(self._node, ast.Module)

    def _of_package(self, name: str) -> Source | None:
        """Return what ``import *`` brings into a module, or a module of a package."""
        _, module, sources = self._place
        for statement in self._statements:
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                found = sources.find(self._origin(statement), name)
                if found is not None:
                    return found
        return sources.module(f"{module}.{name}")

    def _origin(self, statement: ast.ImportFrom) -> str:
        """Return the module that a statement of this one imports from."""
        if not statement.level:
            return statement.module or ""
        file, module, _ = self._place
        package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
        base = package[: len(package) - statement.level + 1]
        return ".".join([*base, *filter(None, [statement.module])])

    def _line(self) -> Iterator[Source]:
        """Yield this and, of a class, those of its bases that belong to the engine."""
        yield self
        for base in self._node.bases if isinstance(self._node, ast.ClassDef) else ():
            found = self._scope.member(base.id) if self._scope is not None and isinstance(base, ast.Name) else None
            if found is not None and isinstance(found._node, ast.ClassDef):
                yield from found._line()

    @functools.cached_property
    def _attributes(self) -> frozenset[str]:
        """The names that a class and its methods assign."""
        methods = (statement for statement in self._statements if isinstance(statement, _Function))
        return frozenset(self._names) | {name for method in methods for name in _assigned_to_self(method)}

    def _has_slots(self) -> bool:
        decorators = self._node.decorator_list if isinstance(self._node, ast.ClassDef) else []
        given = [keyword for call in decorators if isinstance(call, ast.Call) for keyword in call.keywords]
        return "__slots__" in self._names or any(k.arg == "slots" and ast.unparse(k.value) == "True" for k in given)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, including those below `if` and `try`."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _flat([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handlers = [inner for handler in statement.handlers for inner in handler.body]
            yield from _flat([*handlers, *statement.body, *statement.orelse, *statement.finalbody])


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds in its own scope."""
    if isinstance(statement, _Function | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):  # not the owner of an attribute
                yield node.id


def _assigned_to_self(method: _Function) -> Iterator[str]:
    owner = next((arg.arg for arg in (*method.args.posonlyargs, *method.args.args)), None)
    for node in ast.walk(method):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Store()) if name == owner:
                yield attribute
