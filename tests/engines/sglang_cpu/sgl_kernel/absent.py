"""Functions that SGLang imports and never calls in the tests."""

from typing import Any, NoReturn


def absent(name: str) -> Any:
    """Return a function that raises when it is called."""

    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name}: the tests run nothing in SGLang that calls this")

    function.__name__ = name
    return function
