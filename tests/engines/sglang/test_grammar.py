"""Grammars on SGLang; see `tests.engines.suites.grammar`."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

from specplug.grammar import drafts
from tests.engines.matchers import REGEX, schema
from tests.engines.sglang import trees
from tests.engines.sglang.launch import FEATURES
from tests.engines.suites.features import LOOP
from tests.engines.suites.grammar import GrammarSuite, of
from tests.engines.suites.served import Served


@functools.cache
def compact() -> str:
    """Return the schema as SGLang's engine compiles it when no whitespace is allowed."""
    import xgrammar

    return str(xgrammar.Grammar.from_json_schema(schema(), any_whitespace=False))


class TestGrammar(GrammarSuite):
    slow, how, plain = ("sync",), FEATURES, FEATURES
    matcher: ClassVar[dict[str, Any]] = {}
    more: ClassVar[dict[str, Any]] = {
        "penalised": (LOOP, {"structured_outputs": {"regex": REGEX}, "frequency_penalty": 0.2})
    }

    @property
    def json(self) -> dict[str, Any]:  # type: ignore[override]
        return {"ebnf": compact()}

    def plant(self, served: Served, how: str, token: int) -> None:
        served.engine.inside(plant, how=how, token=token)

    def steps(self, served: Served) -> list[dict[str, Any]]:
        return served.engine.inside(seen)

    def test_penalised_requests_get_none_of_it(self, completed):
        assert not any(step["verified"] for step in of(completed, "penalised"))


# -- in the scheduler's process -------------------------------------------------------------------------------------

SEEN: list[dict[str, Any]] = []


def plant(scheduler: Any, how: str, token: int) -> None:
    """Begin to fill `SEEN`: of each step of decoding, per request, what was offered, verified, and became of it."""
    drafting = scheduler.draft_worker.drafting
    grammars, stage = drafting.drafts.grammars, drafting.stage
    newest: list[dict[str, Any]] = []

    def broken(*_: Any) -> Any:
        raise RuntimeError("planted")

    def complete(batch: Any, reqs: Any, draft: Any, *args: Any) -> Any:
        done = draft if how == "leave out" else original(batch, reqs, draft, *args)
        columns = zip(reqs, rows_of(done), done.confidence.tolist(), strict=True)
        newest[:] = [
            {
                "row": int(req.rid.rpartition("-")[2]),
                "before": list(req.output_ids),
                "verified": row,
                "levels": levels[: len(row)],
            }
            for req, row, levels in columns
        ]
        SEEN.extend(newest)
        return done

    def annotated(outcome: Any) -> Any:
        stated = reported(outcome)
        counted = zip(newest, outcome.accepted.tolist(), outcome.discarded().tolist(), strict=False)
        for row, accepted, is_discarded in counted:
            if not is_discarded:  # the request had ended before the step
                row["accepted"] = accepted
        newest.clear()
        return stated

    def propose(batch: Any, draft_length: int, caps: Any = None) -> Any:
        draft = proposed(batch, draft_length, caps)
        lengths = batch.limits(draft_length, caps).tolist()
        for row, constrained in enumerate(batch.grammar.tolist()):
            if constrained:
                draft.set_row(row, [token] * lengths[row], 0.9)
        return draft

    SEEN.clear()
    original, reported = trees.put(grammars, "of", complete), trees.put(grammars, "annotated", annotated)
    if how == "offer":
        proposed = trees.put(stage, "propose", propose)
    if how == "raise":
        trees.put(drafts, "complete", broken)


def rows_of(draft: Any) -> list[list[int]]:
    return [row[:length] for row, length in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)]


def seen(scheduler: Any) -> list[dict[str, Any]]:
    trees.restore(scheduler)
    return list(SEEN)
