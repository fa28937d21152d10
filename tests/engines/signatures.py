"""What an engine's process has compiled: of numba's functions their signatures, and of Triton's kernels what Triton
compiles them for, at their launches.

A host shares the kernels that its nursery has loaded, whether or not the engine's own warm-up would load them.  With
the variable `COLD` it forgets them first.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

COLD = "SPECPLUG_TEST_COLD"

_FIELDS = re.compile(r"(?<=Type)\(\(.*?\)\)\)(?=,|\))")

_compiled: list[tuple[str, Any, Any]] = []
"""Of what numba has compiled or loaded: its name and signature, the function, and the code."""

_launched: set[str] = set()


def watch() -> None:
    """Note from now on what is compiled; call this before kernels are."""
    from numba.core.ccallback import CFunc
    from numba.core.dispatcher import Dispatcher

    add = Dispatcher.add_overload
    compile_it = CFunc.compile

    def adding(self: Any, code: Any) -> None:
        _note(self.py_func, code.signature.args, self, code)
        add(self, code)

    def compiling(self: Any) -> None:
        compile_it(self)
        _note(self._pyfunc, (), self, self)

    Dispatcher.add_overload = adding
    CFunc.compile = compiling


def _note(function: Any, arguments: Any, owner: Any, code: Any) -> None:
    _compiled.append((f"{_name(function)}({', '.join(map(str, arguments))})", owner, code))


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def forget() -> None:
    """Forget all compiled functions, as if the process were new, and note Triton's kernels at their launches.

    The code itself stays: its addresses are used.
    """
    for _, owner, _ in _compiled:
        if hasattr(owner, "_reset_overloads"):
            owner._reset_overloads()
    _forgotten.extend(_compiled)
    _compiled.clear()
    _watch_launches()


_forgotten: list[Any] = []


def _watch_launches() -> None:
    """Note the launches of kernels, or of what takes their place on a CPU without Triton's interpreter."""
    if "sglang" in sys.modules:
        from specplug_sglang.verification import trees

        _wrap(trees, "verification", "append")
    if os.environ.get("TRITON_INTERPRET") == "1":
        from triton.runtime.interpreter import InterpretedFunction

        run = InterpretedFunction.run

        def running(self: Any, *args: Any, **kwargs: Any) -> Any:
            constants = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
            _launched.add(_launch(self.fn, args, constants))
            return run(self, *args, **kwargs)

        InterpretedFunction.run = running


def _wrap(module: Any, *names: str) -> None:
    for name in names:
        setattr(module, name, _noting(getattr(module, name)))


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*args: Any) -> Any:
        _launched.add(_launch(function, args, {}))
        return function(*args)

    return noting


def _launch(function: Any, args: Any, kwargs: dict[str, Any]) -> str:
    """Return a launch's key: the types of its arguments, which are not specialised for, and its constants."""
    return f"{_name(function)}({', '.join(map(_type_of, args))}; {sorted(kwargs.items())})"


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
    if hasattr(value, "dtype"):
        return str(value.dtype)
    if isinstance(value, tuple):
        return f"({', '.join(map(_type_of, value))})"
    tensors = [getattr(value, name, None) for name in ("lengths", "parents", "tokens")]
    return type(value).__name__ + _type_of(tuple(tensors))


def seen(_engine: Any) -> list[str]:
    """Return what is compiled for, of specplug and its plug-ins: for each function or kernel its name and types."""
    names = {name for name, *_ in _compiled} | _launched
    return sorted(name for name in names if name.startswith(("specplug", "numba.experimental.structref")))


def since(_engine: Any, before: list[str]) -> list[str]:
    """Return what was not seen `before`, without the fields of records."""
    return [_FIELDS.sub("", name) for name in seen(_engine) if name not in before]
