"""The settings of the policy `batch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from specplug.settings.policies import CostOptions


class BatchOptions(CostOptions):
    """A limit on draft tokens, and the size of a step up to which tokens are free while no step was measured."""

    removed: ClassVar[Mapping[str, str]] = {
        "overhead": "the costs of steps are measured at start",
        "margin": "a step verifies what yields most, by any margin",
    }

    token_budget: int | None = Field(
        default=None, ge=0, description="draft tokens that the whole batch may verify per step; None is no limit"
    )
