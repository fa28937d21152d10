"""Drivers of the proposer `ngram`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specplug.testing.driver import Driver
from specplug.testing.wrappers import StagedProposer
from tests.proposers.ngram_tools import Make, spec


@pytest.fixture
def make() -> Iterator[Make]:
    """Make drivers, with the proposer's own settings as keyword arguments, and close them in the end."""
    drivers: list[Driver] = []

    def made(*, staged: bool = False, max_length: int = 256, rank: int = 0, **options: object) -> Driver:
        driver = Driver(spec(), options, vocab_size=128, max_length=max_length, rank=rank)
        if staged:
            driver.proposer = StagedProposer(driver.proposer, driver.spec, driver.context)
        drivers.append(driver)
        return driver

    yield made
    for driver in drivers:
        driver.close()
