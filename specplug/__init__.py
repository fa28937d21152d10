"""specplug: one speculative-decoding plug-in layer for LLM engines.

Public names are imported on first use, so that ``import specplug`` costs nothing in engine processes that only
discover plug-ins.  The file `__init__.pyi` says where each is, here and to type checkers.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOME = {name.name: line.module for line in _STUB.body if isinstance(line, ast.ImportFrom) for name in line.names}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specplug' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


class _MovedRooms:
    """An import finder that says where the modules of former versions are now."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        parts = fullname.split(".")
        if parts[0] == "specplug" and (place := _MOVED.get(".".join(parts[1:]))):
            raise ModuleNotFoundError(f"{fullname} is now {place}", name=fullname)


_MOVED = {room: f"specplug.tools.{room}" for room in ("audit", "bench", "cli", "client", "demo", "forecast", "replay")}
_MOVED |= dict.fromkeys(("pipeline", "runtime"), "in specplug.steps")
_MOVED |= {"trim": "specplug.steps.trim", "types.verdict": "specplug.types.step"}
sys.meta_path.insert(0, _MovedRooms)  # first, as Python takes a folder that was left behind for a package


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
