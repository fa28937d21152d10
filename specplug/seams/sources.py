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
        self._parsed: dict[str, ModuleSource | None] = {}

    def module(self, name: str) -> ModuleSource | None:
        """Return a parsed module, or None if there is no such file."""
        if name not in self._parsed:
            path = self._root.joinpath(*name.split("."))
            files = (path.with_suffix(".py"), path / "__init__.py")
            file = next((file for file in files if file.is_file()), None)
            self._parsed[name] = None if file is None else ModuleSource(self, name, file)
        return self._parsed[name]

    def parse(self, file: Path) -> ast.Module:
        """Return a file's syntax tree."""
        return ast.parse(file.read_text(encoding="utf-8"))

    def find(self, module: str, name: str) -> ModuleSource | ClassSource | Definition | None:
        """Find a symbol; "" is the module itself."""
        found: ModuleSource | ClassSource | Definition | None = self.module(module)
        for part in name.split(".") if name else ():
            found = found.member(part) if isinstance(found, ModuleSource | ClassSource) else None
        return found


class ModuleSource:
    """A module's top level, including conditional parts."""

    def __init__(self, sources: Sources, name: str, file: Path) -> None:
        self._sources, self._name = sources, name
        self._package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        self._names: dict[str, ast.stmt] = {}
        self._stars: list[str] = []
        for statement in _flat(sources.parse(file).body):
            for bound in _bound(statement):
                is_made_anew = isinstance(self._names.get(bound), ast.ClassDef) and isinstance(statement, ast.Assign)
                if not is_made_anew:  # from a class of the same name, which has more information
                    self._names[bound] = statement
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                self._stars.append(self._origin(statement))

    def parameters(self) -> list[str] | None:
        return None

    def holds(self, name: str) -> bool:
        return name in self._names or self.member(name) is not None

    def member(self, name: str) -> ModuleSource | ClassSource | Definition | None:
        """Return the definition of a name, following imports within the engine."""
        statement = self._names.get(name)
        if statement is None:
            for star in self._stars:
                if (found := self._sources.find(star, name)) is not None:
                    return found
            return self._sources.module(f"{self._name}.{name}")
        if isinstance(statement, ast.ClassDef):
            return ClassSource(self, statement)
        if isinstance(statement, ast.ImportFrom):
            original = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
            origin = self._sources.module(self._origin(statement))
            return Definition(statement) if origin is None else origin.member(original)
        return Definition(statement)

    def _origin(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        package = self._package.split(".")
        base = package[: len(package) - statement.level + 1]
        return ".".join([*base, *filter(None, [statement.module])])


class ClassSource:
    """A class and those of its bases that belong to the engine."""

    def __init__(self, module: ModuleSource, node: ast.ClassDef) -> None:
        self._module, self._node = module, node

    def parameters(self) -> list[str] | None:
        return None

    def member(self, name: str) -> Definition | None:
        """Return a method or class-level value, including inherited ones."""
        for cls in self._line():
            for statement in cls._node.body:
                if name in _bound(statement):
                    return Definition(statement, in_class=True)
        return None

    def holds(self, name: str) -> bool:
        if name == "__dict__":
            return all(not cls._has_slots() for cls in self._line())
        return any(name in cls._attributes for cls in self._line())

    def _line(self) -> Iterator[ClassSource]:
        yield self
        for base in self._node.bases:
            found = self._module.member(base.id) if isinstance(base, ast.Name) else None
            if isinstance(found, ClassSource):
                yield from found._line()

    @functools.cached_property
    def _attributes(self) -> frozenset[str]:
        own = {name for statement in self._node.body for name in _bound(statement)}
        methods = (statement for statement in self._node.body if isinstance(statement, _Function))
        return frozenset(own | {name for method in methods for name in _assigned_to_self(method)})

    def _has_slots(self) -> bool:
        wanted = (
            keyword for call in self._node.decorator_list if isinstance(call, ast.Call) for keyword in call.keywords
        )
        return "__slots__" in self._attributes or any(
            k.arg == "slots" and ast.unparse(k.value) == "True" for k in wanted
        )


class Definition:
    """A function, method or value."""

    def __init__(self, node: ast.stmt, in_class: bool = False) -> None:
        self._node, self._in_class = node, in_class

    def parameters(self) -> list[str] | None:
        if not isinstance(self._node, _Function):
            return None
        args = self._node.args
        named = [
            *args.posonlyargs,
            *args.args,
            *filter(None, [args.vararg]),
            *args.kwonlyargs,
            *filter(None, [args.kwarg]),
        ]
        static = any(ast.unparse(decorator) == "staticmethod" for decorator in self._node.decorator_list)
        return [arg.arg for arg in named][1 if self._in_class and not static else 0 :]

    def holds(self, name: str) -> bool:
        return False


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
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
        yield from (
            name.id for name in names if isinstance(name.ctx, ast.Store)
        )  # skips the owner in an assignment to an attribute


def _assigned_to_self(method: _Function) -> Iterator[str]:
    owner = next((arg.arg for arg in (*method.args.posonlyargs, *method.args.args)), None)
    for node in ast.walk(method):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Store()) if name == owner:
                yield attribute
