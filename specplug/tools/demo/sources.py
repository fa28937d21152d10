"""Python files and their documentation from the standard library on this machine.

The SHA-1 of a file's relative name decides whether it is *held out*.  The split depends on the name
alone, so it is the same on every machine and for every Python version: a file that the shipped models
were trained on is held out nowhere.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

Split = Literal["train", "held-out"]

HELD_OUT_ONE_IN = 10
MIN_BYTES = 500
MAX_BYTES = 300_000
SKIPPED_FOLDERS = frozenset({"__pycache__", "encodings", "idle_test", "pydoc_data", "site-packages", "test", "tests"})

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class SourceFile:
    """One file: its name relative to the library's root, with forward slashes, and its text."""

    name: str
    text: str

    @property
    def module(self) -> str:
        """The dotted module name, e.g. `http.client` for `http/client.py`."""
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass(frozen=True)
class DocumentedDefinition:
    """A documented module, class or function; paragraphs have their line breaks removed."""

    name: str
    kind: Literal["module", "class", "function"]
    line: int
    arguments: int
    paragraphs: tuple[str, ...]


def library_root() -> Path:
    """Return the folder that holds Python's standard library on this machine."""
    return Path(sysconfig.get_paths()["stdlib"])


def is_held_out(name: str) -> bool:
    """Return whether the file of this relative name (forward slashes) is excluded from training."""
    return int(hashlib.sha1(name.encode()).hexdigest(), 16) % HELD_OUT_ONE_IN == 0


@lru_cache(maxsize=4)
def source_files(split: Split, root: Path | None = None) -> tuple[SourceFile, ...]:
    """Return the readable library files of one split, sorted by name.

    Test folders, installed packages, tables of encodings, files that are not UTF-8, and very small or very large files
    are skipped.  An unknown split raises ValueError, and a folder without a usable file FileNotFoundError.
    """
    if split not in ("train", "held-out"):
        raise ValueError(f"split is {split!r}; expected 'train' or 'held-out'")
    folder = library_root() if root is None else root
    held_out = split == "held-out"
    files = tuple(file for file in _walk(folder) if is_held_out(file.name) == held_out)
    if not files:
        raise FileNotFoundError(f"no Python source files of the {split} split under {folder}")
    return files


def _walk(root: Path) -> Iterator[SourceFile]:
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS.intersection(relative.parts):
            continue
        try:
            if MIN_BYTES <= path.stat().st_size <= MAX_BYTES:
                yield SourceFile(relative.as_posix(), path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue


@lru_cache(maxsize=2048)
def definitions(file: SourceFile) -> tuple[DocumentedDefinition, ...]:
    """Return the file's documented definitions in order of appearance; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(file.text)
    except (SyntaxError, ValueError):
        return ()
    found = (_definition(node, file) for node in ast.walk(tree) if isinstance(node, _Documented))
    return tuple(sorted((d for d in found if d is not None), key=lambda d: (d.line, d.name)))


def _definition(node: _Documented, file: SourceFile) -> DocumentedDefinition | None:
    paragraphs = _paragraphs(ast.get_docstring(node) or "")
    if not paragraphs:
        return None
    if isinstance(node, ast.Module):
        return DocumentedDefinition(file.module, "module", 1, 0, paragraphs)
    if isinstance(node, ast.ClassDef):
        return DocumentedDefinition(node.name, "class", node.lineno, 0, paragraphs)
    count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
    return DocumentedDefinition(node.name, "function", node.lineno, count, paragraphs)


def _paragraphs(docstring: str) -> tuple[str, ...]:
    """Split a docstring at blank lines into single lines of plain text, dropping tables and code."""
    parts = (part for part in re.split(r"\n\s*\n", docstring) if not re.search(r">>>|\n +\S", part))
    lines = (" ".join(part.split()) for part in parts)
    return tuple(line for line in lines if line.isascii() and line[:1].isalpha())
