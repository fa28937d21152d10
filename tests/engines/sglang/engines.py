"""Engines of SGLang; see `tests.engines.engines`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.engines import engines


class Engine(engines.Engine):
    """An `Engine` of one configuration that runs functions of the tests, in its own process and in its scheduler's."""

    def inside(self, function: str | Callable[..., Any], /, **arguments: Any) -> Any:
        """Run ``function(scheduler, **arguments)`` in the scheduler's process, between two steps; else as `call`."""
        return self.call("inside.in_scheduler", function=self.name_of(function), arguments=arguments)

    @contextmanager
    def planted(self, *plants: Callable[..., Any], **arguments: Any) -> Iterator[None]:
        """Run functions that change the scheduler by `trees.put`, the first with arguments, and undo the changes."""
        try:
            for number, plant in enumerate(plants):
                self.inside(plant, **(arguments if number == 0 else {}))
            yield
        finally:
            assert self.inside("trees.restore") >= len(plants)
