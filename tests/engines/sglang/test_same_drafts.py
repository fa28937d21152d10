"""A third party's proposer drafts in SGLang as it does elsewhere; see `tests.engines.same_drafts`."""

from __future__ import annotations

from typing import Any

from specplug.trace import read_trace
from tests.engines import same_drafts
from tests.engines.sglang import inside


def faults(scheduler: Any) -> dict[str, Any]:
    """Return what went wrong."""
    return scheduler.draft_worker.drafting.stage.metrics.snapshot().as_dict()["faults"]


def test_drafts_are_the_same(engine, tmp_path):
    path, given = tmp_path / "trace.jsonl", same_drafts.requested()
    settings = {**same_drafts.SETTINGS, "trace": {"path": str(path)}}
    parrot = engine(
        "SPECPLUG",
        draft_length=same_drafts.DRAFT_LENGTH,
        settings=settings,
        name="example",
    )
    assert parrot.inside(inside.facts)["overlap"]
    params = {"max_new_tokens": same_drafts.MAX_TOKENS}
    answers = parrot.call(inside.generate, prompts=list(given.values()), params=params, rid=list(given))
    assert parrot.inside(faults) == {}
    same_drafts.assert_answers({name: own["token_ids"] for name, own in zip(given, answers, strict=True)})
    same_drafts.assert_trace([*read_trace(path)])
