"""Test only: the names that SGLang and xgrammar import from Triton.  Its kernels can be defined, not launched.

Every module and attribute exists: names in capitals are classes, others modules, which may be called as decorators.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any, NoReturn

__version__ = "3.9.0"


class Thing:
    """A stand-in for a class of Triton's that takes any arguments and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


class Kernel:
    """A function that Triton would compile."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.__name__ = fn, getattr(fn, "__name__", "kernel")

    def __getitem__(self, grid: Any) -> "Kernel":
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{self.__name__}: the tests have no Triton to launch a kernel with")


def jit(*args: Any, **kwargs: Any) -> Any:
    """Decorate, with or without arguments."""
    if len(args) == 1 and not kwargs and callable(args[0]):
        return args[0] if isinstance(args[0], Kernel) else Kernel(args[0])
    return jit


autotune = heuristics = jit


class Config(Thing):
    """Settings of `autotune`, which SGLang reads back."""

    def __init__(self, kwargs: Any, num_warps: int = 4, num_stages: int = 2, **others: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages


class Module(types.ModuleType):
    """A module of Triton's; see above."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        return made(self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return jit(*args, **kwargs)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below ``triton``."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.startswith("triton."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return sys.modules.get(spec.name) or Module(spec.name)

    def exec_module(self, module: Any) -> None: ...


def made(module: Any, name: str) -> Any:
    """Return what a module has under a name, made now and kept."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name[0].isupper():
        base = Exception if name.endswith(("Error", "OutOfResources")) else Thing
        found: Any = type(name, (base,), {"__module__": module.__name__})
    else:
        full = f"{module.__name__}.{name}"
        found = sys.modules.setdefault(full, Module(full))
    setattr(module, name, found)
    return found


def __getattr__(name: str) -> Any:
    return made(sys.modules[__name__], name)


def cdiv(x: int, y: int) -> int:
    """Return x / y, rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of 2 that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


sys.meta_path.insert(0, Finder())

from triton import language  # noqa: E402


class constexpr(Thing):
    """A constant, which SGLang makes at import."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


language.constexpr = constexpr  # type: ignore[attr-defined]
