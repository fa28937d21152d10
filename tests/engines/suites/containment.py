"""A plug-in that raises, drafts nonsense or hangs costs its drafts: the text is right and the engine lives on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.suites.served import Served

GIVEN = prompts()[:12]
BROKEN = ["raises", "raises-device", "garbage", "garbage-device", "slow"]
SETTINGS = {
    "proposer": "ngram",
    "extra_proposers": BROKEN,
    "policy": "fixed",
    "faults": {"host_deadline_ms": 100.0, "max_consecutive": 3, "cooldown_steps": 4},
    "options": {
        "raises": {"call": "propose", "every": 2, "hostile": True},
        "raises-device": {"call": "on_event", "hostile": True},
        "slow": {"seconds": 0.4, "every": 8},
    },
}
NOTHING_WORKS = {"proposer": "raises-device", "policy": "fixed", "faults": {"cooldown_steps": 2}}


class ContainmentSuite:
    """Attributes:
    how: what launches the engine whose only proposer raises.
    """

    how: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(scope="class")
    def broken(self, start: Callable[..., Served]) -> Served:
        return start(SETTINGS, name="broken")

    def test_every_request_gets_its_text(self, broken):
        """Rows of all the broken proposers in one batch, twice: what is switched off comes back and fails again."""
        names = [None, *BROKEN]
        params = [{} if name is None else {"specplug": {"proposer": name}} for name in names] * 2
        faults: dict[tuple[str, str], int] = {}
        for _ in range(2):
            found = broken.counted(GIVEN, params)
            assert_greedy(GIVEN, [greedy(prompt) for prompt in GIVEN], found["answers"])
            assert found["by_source"]["ngram/own text"]["accepted"] > 0, "the sound one is not disturbed"
            for name, kinds in found["faults"].items():
                for fault, count in kinds.items():
                    faults[name, fault] = faults.get((name, fault), 0) + count
        expected = [("raises", "raised"), ("raises-device", "raised"), ("garbage", "malformed"), ("slow", "late")]
        assert all(faults[fault] > 0 for fault in expected), faults
        assert not {name for name, _ in faults} & {"ngram", "policy fixed"}

    def test_the_only_proposer_raises(self, start):
        found = start(NOTHING_WORKS, name="nothing works", **self.how).counted(GIVEN[:6])
        assert_greedy(GIVEN[:6], [greedy(prompt) for prompt in GIVEN[:6]], found["answers"])
        assert found["faults"]["raises-device"]["raised"] > 0
        assert found["faults"]["raises-device"]["switched off"] > 0
        assert found["total"]["proposed"] == 0
