"""Repeated: the launches of a step, made again in the next one with the engine's tensors of that step.

While a batch stays as it is, a step differs from the one before only in tensors that the engine allocates anew.  To
make the launches again takes a third of the host's time of a whole step, which arranges some 150 arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from specplug.launching import Launch, Number

Inputs = Sequence[Tensor | None]
Change = Callable[[Inputs, int], Any]
"""Returns an argument of a later step, from that step's inputs and number."""


Result = TypeVar("Result")


class Repeated(Generic[Result]):
    """Launches that later steps make again.

    Args:
        key: what must be equal in those steps.
        launches: of a step.
        inputs: tensors of that step which are others in later ones; None for those that there are not.
        result: what the step returned.
    """

    def __init__(self, key: object, launches: Sequence[Launch], inputs: Inputs, result: Result) -> None:
        self.result = result
        self._key, self._launches, self._inputs = key, launches, inputs
        self._again: list[tuple[Callable[..., None], list[Any], list[tuple[int, Change]]]] | None = None
        self._layouts: list[object] = []

    def fits(self, key: object, inputs: Inputs) -> bool:
        """Return whether a step launches the same: its key is equal, and its inputs have the same types and shapes."""
        if key != self._key:
            return False
        if self._again is None:
            self._arrange()
        for place, tensor in enumerate(inputs):
            if tensor is not self._inputs[place] and _layout(tensor) != self._layouts[place]:
                return False
        return bool(self._again)

    def launch(self, inputs: Inputs, number: int) -> None:
        """Launch again with the inputs and the number of another step, which `fits`."""
        for launch, arguments, changes in self._again or ():
            for place, change in changes:
                arguments[place] = change(inputs, number)
            launch(*arguments)

    def _arrange(self) -> None:
        """Find the inputs among the arguments; without one of them the step did more than launch, and nothing fits."""
        places = {id(tensor): place for place, tensor in enumerate(self._inputs) if tensor is not None}
        is_whole = len(places) == sum(tensor is not None for tensor in self._inputs)
        is_whole = is_whole and places.keys() <= {
            id(it) for _, arguments in self._launches for it in _tensors(arguments)
        }
        self._layouts = [_layout(tensor) for tensor in self._inputs]
        self._again = [
            (launch, list(arguments), _changes(arguments, places)) for launch, arguments in self._launches if is_whole
        ]


def _layout(tensor: Tensor | None) -> object:
    return None if tensor is None else (tensor.dtype, tensor.shape, tensor.stride())


def _tensors(arguments: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among arguments and their records."""
    found = list[Tensor]()
    for argument in arguments:
        if isinstance(argument, Tensor):
            found.append(argument)
        elif isinstance(argument, tuple):
            found += _tensors(argument)
    return found


def _changes(arguments: Sequence[Any], places: dict[int, int]) -> list[tuple[int, Change]]:
    """Return the places of arguments that differ from step to step, and how they change."""
    found = [(place, _change(argument, places)) for place, argument in enumerate(arguments)]
    return [(place, change) for place, change in found if change is not None]


def _change(argument: Any, places: dict[int, int]) -> Change | None:
    if isinstance(argument, Number):
        return lambda inputs, number: number
    if isinstance(argument, Tensor):
        place = places.get(id(argument))
        return None if place is None else lambda inputs, number: inputs[place]
    if not isinstance(argument, tuple):
        return None
    changes, values = _changes(argument, places), list(argument)
    make: Any = type(argument)._make if hasattr(argument, "_make") else tuple

    def change(inputs: Inputs, number: int) -> Any:
        for place, of_entry in changes:
            values[place] = of_entry(inputs, number)
        return make(values)

    return change if changes else None
