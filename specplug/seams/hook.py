"""Hooks on functions of an engine that it offers no plug-in interface for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def hook(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Let a function of a class or module be called as ``around(original, *args, **kwargs)``.

    `around` is a function of a module; a second call with the same one changes nothing.
    """
    original = getattr(owner, name)
    before, mark = getattr(original, "_specplug", ()), f"{around.__module__}.{around.__qualname__}"
    if mark in before:
        return

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    hooked._specplug = (*before, mark)  # type: ignore[attr-defined]
    is_static = inspect.isclass(owner) and isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(hooked) if is_static else hooked)
