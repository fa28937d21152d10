"""Functions that run inside an engine's process and look at what specplug does there; see `inside`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engines.vllm.inside import drive, generate, metrics, runner


def drafting(llm: Any) -> Any:
    """Return the worker's `Drafting`, of an engine in one process."""
    return drafter(llm).drafting


def drafter(llm: Any) -> Any:
    """Return the drafter of either runner, of an engine in one process."""
    return getattr(runner(llm), "speculator", None) or runner(llm).drafter


def snapshot(llm: Any) -> dict[str, Any]:
    """Return the counts so far: "total", "by_source", "faults"."""
    return drafting(llm).stage.metrics.snapshot().as_dict()


def counted(llm: Any, call: str = "generate", **arguments: Any) -> dict[str, Any]:
    """Run `generate` or `drive`; return its "result" and, as `snapshot` does, what was counted meanwhile.

    "accepted_by_vllm" is vLLM's own count of accepted draft tokens, padding included.
    """
    stage, accepted = drafting(llm).stage, "vllm:spec_decode_num_accepted_tokens"
    before, theirs = stage.metrics.snapshot(), metrics(llm)[accepted]
    result = {"generate": generate, "drive": drive}[call](llm, **arguments)
    counts = (stage.metrics.snapshot() - before).as_dict()
    return {"result": result, "accepted_by_vllm": metrics(llm)[accepted] - theirs, **counts}


def watched(llm: Any, requests: list[dict[str, Any]], aborts: dict[str, int] | None = None) -> dict[str, Any]:
    """Run `inside.drive`, and record what `Drafting` receives and what it drafts.

    Returns:
        What `drive` returns, the counts of `snapshot` meanwhile, and further
        "events": (kind, request id, slot, generation) in order;
        "rows": by request id, per step "length", "emitted", "sampled", "proposed", "after_stop", "slot", "generation";
        "wrong": (request id, length) of rows whose tokens are not those of the request's final text.
    """
    with Watch(llm) as watch:
        found = counted(llm, "drive", requests=requests, aborts=aborts)
    result = found.pop("result")
    given = {request["id"]: request["prompt"] for request in requests}
    finals = {name: [*given[name], *output["token_ids"]] for name, output in result["outputs"].items()}
    wrong = [
        (name, len(text))
        for name, text in watch.texts
        if name in finals and any(a != b for a, b in zip(text, finals[name], strict=False))
    ]
    return {**result, **found, "events": watch.events, "rows": watch.rows, "wrong": wrong}


@contextmanager
def stage_takes_steps(llm: Any) -> Iterator[None]:
    """Let the draft stage itself take all steps, whose calls can be noted, instead of compiled functions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting(llm).stage, "has_observers", True)
        patch.setattr(drafter(llm), "_steps", None)
        if hasattr(drafter(llm), "_on_device"):
            patch.setattr(drafter(llm)._on_device, "steps", None)
        yield


class Watch:
    """Notes what passes through an engine's `Drafting` while the context lasts."""

    def __init__(self, llm: Any) -> None:
        self._drafting, self._all_steps = drafting(llm), stage_takes_steps(llm)
        self.events: list[tuple[str, str, int, int]] = []
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.texts: list[tuple[str, list[int]]] = []

    def __enter__(self) -> Watch:
        stage = self._drafting.stage
        step, on_event, observe = self._drafting.step, stage.on_event, stage.observe
        verdicts: list[Any] = []

        def noting_observe(batch: Any, outcome: Any) -> Any:
            verdicts[:] = [observe(batch, outcome)]
            return verdicts[0]

        def noting_step(batch: Any, outcome: Any, caps: Any) -> Any:
            draft = step(batch, outcome, caps)
            self._note(batch, draft, verdicts[0])
            return draft

        def noting_on_event(event: Any) -> None:
            if hasattr(event, "request"):
                name = plain_name(event.request.request_id)
                self.events.append((event.kind.value, name, event.slot, event.generation))
            on_event(event)

        self._all_steps.__enter__()
        self._drafting.step, stage.on_event, stage.observe = noting_step, noting_on_event, noting_observe
        return self

    def __exit__(self, *_: object) -> None:
        del self._drafting.step, self._drafting.stage.on_event, self._drafting.stage.observe
        self._all_steps.__exit__(None, None, None)

    def _note(self, batch: Any, draft: Any, verdict: Any) -> None:
        columns = {
            "length": batch.lengths,
            "emitted": verdict.emitted,
            "accepted": verdict.accepted,
            "sampled": batch.sampled,
            "proposed": draft.lengths,
            "after_stop": verdict.after_stop,
            "slot": batch.slots,
            "generation": batch.generations,
        }
        lists = {name: column.tolist() for name, column in columns.items()}
        for row, request_id in enumerate(batch.request_ids):
            name = plain_name(request_id)
            self.rows.setdefault(name, []).append({column: values[row] for column, values in lists.items()})
            self.texts.append((name, batch.tokens[batch.rows[row], : batch.lengths[row]].tolist()))


def plain_name(request_id: str) -> str:
    """Return the id that a test gave; vLLM appends to it."""
    return request_id.rpartition("-")[0] or request_id
