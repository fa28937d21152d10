"""Groups of options: a command's parameter whose type is a dataclass stands for an option for each of its fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer that takes the options of its groups in their places, and makes the groups of them."""
    parameters = signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    flat: list[Parameter] = []
    for each in parameters:
        flat += _options(groups[each.name]) if each.name in groups else [each]
    run.__signature__ = Signature([each.replace(kind=Parameter.KEYWORD_ONLY) for each in flat])  # type: ignore[attr-defined]
    return run


def _options(group: Any) -> list[Parameter]:
    """Return the fields of a group as parameters of a command."""
    hints = get_type_hints(group, include_extras=True)
    defaults = {each.name: Parameter.empty if each.default is MISSING else each.default for each in fields(group)}
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in defaults.items()
    ]
