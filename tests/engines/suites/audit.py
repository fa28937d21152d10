"""`specplug audit` on a real engine: the real thing passes, and planted mistakes fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from specplug.audit.sampled import Sampled
from specplug.audit.texts import Greedy
from tests.engines.auditing import audit, statuses
from tests.engines.suites.served import Served


class AuditSuite:
    """Attributes:
    settings, how: of the audited engine, and of the control.
    sampling: further arguments of an engine that samples, if it is another one.
    mistakes: functions that plant one each.
    """

    settings: ClassVar[dict[str, Any]]
    how: ClassVar[dict[str, Any]] = {}
    sampling: ClassVar[dict[str, Any]] = {}
    mistakes: ClassVar[tuple[Callable[..., Any], ...]]

    def plant(self, served: Served, mistake: Callable[..., Any] | None) -> None:
        """Plant a mistake in the engine, or take it back."""
        raise NotImplementedError

    @pytest.fixture
    def audited(self, start: Callable[..., Served]) -> Served:
        return start(self.settings, name="audited", **self.how)

    @pytest.fixture
    def control(self, start: Callable[..., Served]) -> Served:
        return start(None, name="control", **self.how)

    def test_the_real_thing_passes(self, audited, control):
        report = audit(audited, control)
        assert report.passed, report
        assert report.drafts is not None
        assert report.drafts.accepted > 100
        assert report.drafts.rejected > 20

    def test_it_samples_by_the_controls_distribution(self, start, control):
        report = audit(start(self.settings, name="audited", **self.how, **self.sampling), control, Sampled(60))
        assert report.passed, report

    def test_a_mistake_fails(self, audited, control):
        for mistake in self.mistakes:
            self.plant(audited, mistake)
            try:
                report = audit(audited, control, Greedy())
            finally:
                self.plant(audited, None)
            assert statuses(report) == {"greedy": "failed"}, mistake
            assert report.findings[0].examples
