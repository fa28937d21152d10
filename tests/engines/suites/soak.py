"""A short soak of an engine's server of `ServerSuite`: inherit `SoakSuite` and name the target."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from tests.engines.plain import greedy, prompts
from tests.engines.server import Server
from tests.soak.run import Soak, answers, with_wrong_token
from tests.soak.targets import TARGETS
from tests.soak.traffic import Traffic
from tests.soak.truth import SCHEMAS, Prompt, Truth, is_sure

REQUESTS = 150
MINUTES = 1.0


class SoakSuite:
    """The engine's tests give the fixtures `server`, with `suites.server.SETTINGS`, and `baseline`, without specplug.

    Attributes:
        name: of the target.
        proposers: that requests name, besides the server's own.
        tokens: most tokens of an answer.
    """

    name: ClassVar[str]
    proposers: ClassVar[tuple[str, ...]] = ("oracle", "raises", "garbage")
    tokens: ClassVar[int] = 24

    def truth(self, baseline: Server) -> Truth:
        """Return prompts with the plain model's answers, and structured ones with the engine's own."""
        plain = [Prompt(tokens, tuple(greedy(tokens, self.tokens)["token_ids"])) for tokens in prompts()[:12]]
        sure = tuple(prompt for prompt in plain if is_sure(prompt))
        assert len(sure) > 8
        bound = [Prompt(tokens, schema=SCHEMAS[0]) for tokens in prompts()[:2]]
        control = asyncio.run(answers(baseline.url, TARGETS[self.name], [(prompt, 32) for prompt in bound]))
        structured = (Prompt(one.token_ids, found, one.schema) for one, found in zip(bound, control, strict=True))
        return Truth(sure, sure[:2], tuple(structured), sure[:1], 4)

    def test_mixed_requests_and_faults(self, server: Server, baseline: Server):
        """Then one known answer is altered, and that is found."""
        truth = self.truth(baseline)
        for given, count, wrong in ((truth, REQUESTS, False), (with_wrong_token(truth), 40, True)):
            traffic = Traffic(given, 5, self.proposers)
            process = server.running()
            soak = Soak(TARGETS[self.name], server.url, process.session, process.log, truth, traffic, pause=0.3)
            report = asyncio.run(soak.run(count, MINUTES))
            assert sum(report.judge.kinds.values()) == count
            assert (report.judge.wrong > 0) == wrong, report.failures
            assert wrong or report.failures == [], report.failures
            assert wrong or len(report.faults) >= 2
