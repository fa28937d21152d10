"""Repeated: the launches of a step, made again in the next one with the engine's tensors of that step.

While a batch stays as it is, a step differs from the one before only in tensors that the engine allocates anew.  To
make the launches again takes a third of the host's time of a whole step, which arranges some 150 arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from specplug.launching import Launch, Number
from specplug.steps.device_step import DeviceStep

Inputs = Sequence[Tensor | None]
Change = Callable[[Inputs, int], Any]
"""Returns an argument of a later step, from that step's inputs and number."""


class Repeated:
    """Launches that later steps make again.

    Args:
        key: what must be equal in those steps.
        launches: of a step.
        inputs: tensors of that step which are others in later ones; None for those that there are not.
        step: the step itself.
    """

    def __init__(self, key: object, launches: Sequence[Launch], inputs: Inputs, step: DeviceStep) -> None:
        self.step = step
        self._key = key
        self._launches = launches
        self._inputs = inputs
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
        is_whole = is_whole and places.keys() <= {id(it) for each in self._launches for it in _tensors(each.arguments)}
        self._layouts = [_layout(tensor) for tensor in self._inputs]
        self._again = []
        for function, arguments, takes_addresses in self._launches if is_whole else ():
            values, changes = _arranged(arguments, places, takes_addresses=takes_addresses)
            self._again.append((function, values, changes))


def _value_of(tensor: Tensor, *, takes_addresses: bool) -> Callable[[Tensor], Any]:
    """Return what turns tensors like this one into an argument.

    Triton takes an address in a tensor's place, and then need not ask the driver where the memory is.  Of pinned memory
    of the host the driver may know another address.
    """
    return Tensor.data_ptr if takes_addresses and not tensor.is_pinned() else _itself


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _layout(tensor: Tensor | None) -> object:
    return None if tensor is None else (tensor.dtype, tensor.shape, tensor.stride(), tensor.device)


def _tensors(arguments: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among arguments and their records."""
    found = list[Tensor]()
    for argument in arguments:
        if isinstance(argument, Tensor):
            found.append(argument)
        elif isinstance(argument, tuple):
            found += _tensors(argument)
    return found


def _arranged(
    arguments: Sequence[Any], places: dict[int, int], *, takes_addresses: bool
) -> tuple[list[Any], list[tuple[int, Change]]]:
    """Return the values of arguments, and the places of those that differ from step to step, with how they change."""
    values = list[Any]()
    changes = list[tuple[int, Change]]()
    for place, argument in enumerate(arguments):
        change: Change | None = None
        if isinstance(argument, Number):
            change = _number
        elif isinstance(argument, Tensor):
            value = _value_of(argument, takes_addresses=takes_addresses)
            change = _input(places[id(argument)], value) if id(argument) in places else None
            argument = value(argument)
        elif isinstance(argument, tuple):
            argument, change = _record(argument, places, takes_addresses=takes_addresses)
        values.append(argument)
        if change is not None:
            changes.append((place, change))
    return values, changes


def _number(inputs: Inputs, number: int) -> int:
    return number


def _input(place: int, value: Callable[[Tensor], Any]) -> Change:
    def change(inputs: Inputs, number: int) -> Any:
        tensor = inputs[place]
        return None if tensor is None else value(tensor)

    return change


def _record(
    record: tuple[Any, ...], places: dict[int, int], *, takes_addresses: bool
) -> tuple[tuple[Any, ...], Change | None]:
    """Return a record with the values of its entries, and how it changes."""
    values, changes = _arranged(record, places, takes_addresses=takes_addresses)
    make: Any = type(record)._make if hasattr(record, "_make") else tuple

    def change(inputs: Inputs, number: int) -> Any:
        for place, of_entry in changes:
            values[place] = of_entry(inputs, number)
        return make(values)

    return make(values), change if changes else None
