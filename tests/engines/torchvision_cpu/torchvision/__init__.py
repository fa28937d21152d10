"""Test only: the names that SGLang and transformers import from torchvision.  Text needs no more of it.

The real one would have to be the build that fits torch's, which package indexes do not offer for every CPU build.
"""

from typing import Any

__version__ = "0.28.0"


class Missing:
    """Stands for something of torchvision; using it raises."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self._name}: the tests have no torchvision")

    def __getattr__(self, name: str) -> "Missing":
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")


def missing_of(module: str) -> Any:
    """Return a module's ``__getattr__``, to which every name is missing."""

    def __getattr__(name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{module}.{name}")

    return __getattr__


from torchvision import io, transforms  # noqa: E402

__all__ = ["io", "transforms"]
