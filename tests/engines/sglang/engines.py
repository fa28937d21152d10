"""Engines of SGLang; see `tests.engines.engines`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.engines import engines


class Engine(engines.Engine):
    """An `Engine` of one configuration that runs functions of the tests, in its own process and in its scheduler's."""

    def inside(self, function: str | Callable[..., Any], /, **arguments: Any) -> Any:
        """Run ``function(scheduler, **arguments)`` in the scheduler's process, between two steps; else as `call`."""
        return self.call("inside.in_scheduler", function=self.name_of(function), arguments=arguments)
