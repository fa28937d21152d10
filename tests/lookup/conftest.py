"""The two forms of the lookup that examples are of."""

from __future__ import annotations

from types import ModuleType

import pytest

from specplug.lookup import compiled, plain


@pytest.fixture(params=[plain, compiled], ids=["plain", "compiled"])
def form(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = request.param
    return found
