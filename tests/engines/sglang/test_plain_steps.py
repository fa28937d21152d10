"""Steps without drafts are SGLang's own decoding: in what they emit, in what is counted, and in what they cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.engines.launches import most
from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_exact import (
    DRAFTED,
    EDIT,
    GRAMMARS,
    LOOP,
    LOOPING,
    PLAIN,
    SERVED,
    Requested,
    ask,
    assert_same,
)
from tests.engines.sglang.watching import TIGHT
from tests.engines.suites.lifecycle import UNENDING, assert_right, requested_for
from tests.pipeline.test_no_sync import Watch

PROMPTS = [list(prompt) for prompt in prompts()]
PATTERN = [0, 0, 3, 0, 8]
"""Draft lengths of successive steps."""
AFTER = 4
"""The most operations of a step without drafts after the target's forward."""

SETTINGS = {
    "proposer": "ngram",
    "policy": "ladder",
    "options": {"ladder": {"draft_lengths": [0]}, "ngram": {"min_n": 1}},
    "faults": {"host_deadline_ms": None},
}


def environment(**settings: Any) -> dict[str, str]:
    return {"SPECPLUG_CONFIG": json.dumps({**SETTINGS, **settings})}


@pytest.fixture(scope="session")
def laddered(engine: Callable[..., Engine]) -> Engine:
    """An engine that plans no drafts, unless a test plans others; see `trees.plan`."""
    return engine("SPECPLUG", environment=environment(), **SERVED, name="specplug, ladder")


@pytest.fixture(scope="session")
def undrafted(engine: Callable[..., Engine]) -> Engine:
    """SGLang without speculation."""
    return engine(**SERVED, name="plain overlapped")


@contextmanager
def planned(engine: Engine, draft_lengths: list[int], *plants: Callable[..., Any]) -> Iterator[None]:
    engine.inside(trees.plan, draft_lengths=draft_lengths)
    try:
        for plant in plants:
            engine.inside(plant)
        yield
    finally:
        engine.inside(trees.restore)


# -- text ------------------------------------------------------------------------------------------------------------

BATCHES: dict[str, dict[str, Requested]] = {"features": {**PLAIN, **DRAFTED}, "grammars": GRAMMARS}


@pytest.mark.parametrize("batch", BATCHES)
def test_features_as_without_speculation(batch, laddered, undrafted):
    """Penalties, processors, biases, grammars, and log probabilities of each."""
    expected = ask(undrafted, BATCHES[batch])
    with planned(laddered, PATTERN):
        found = ask(laddered, BATCHES[batch])
    for name in BATCHES[batch]:
        assert_same(expected[name], found[name])
    assert sum(answer["meta"]["spec_num_correct_drafts"] for answer in found.values()) > 0


@pytest.mark.parametrize("kind", ["overlap"], indirect=True)
def test_retracted_between_steps_of_both_kinds(start):
    settings = {"proposer": "recorder", "policy": "ladder", "options": LADDER}
    tight = start(settings, name="tight, ladder", **TIGHT)
    tight.engine.inside(watching.retract_often, every=7)
    try:
        found = tight.recorded(requested_for("both", UNENDING, 60))
    finally:
        tight.engine.inside(watching.retract_often, every=0)
    assert_right(found, "both", UNENDING, 60)
    assert sum(output["meta"]["num_retractions"] for output in found["outputs"].values()) > 1
    assert found["counts"]["total"]["accepted"] > 0


LADDER = {"ladder": {"draft_lengths": PATTERN}}


# -- counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft_lengths", [[0], PATTERN], ids=["never", "sometimes"])
def test_tokens_are_counted_once(draft_lengths, laddered):
    """The counts cover what clients saw, and the tokens after a request's end, in steps with and without drafts."""
    assert laddered.call(inside.flush)
    before = laddered.inside(trees.counts)["total"]
    with planned(laddered, draft_lengths, trees.watch):
        answers = laddered.call(inside.generate, prompts=PROMPTS)
        laddered.call(watching.settled)
        steps = laddered.inside(trees.seen)
        after = laddered.inside(trees.counts)["total"]
    assert_greedy(PROMPTS, [greedy(tuple(prompt)) for prompt in PROMPTS], answers)
    spent = {name: after[name] - before[name] for name in ("target_steps", "emitted", "after_stop", "accepted")}
    assert spent["emitted"] == sum(len(answer["token_ids"]) for answer in answers)
    assert spent["after_stop"] > 0  # overlapped, an end is known a step late
    assert spent["emitted"] == spent["target_steps"] + spent["accepted"]
    rows = [count for step in steps for count in step["kept"]]
    assert spent["emitted"] + spent["after_stop"] == len(PROMPTS) + sum(rows)
    assert spent["target_steps"] < len(PROMPTS) + len(rows)  # some ran once more after their end
    assert (spent["accepted"] > 0) is (draft_lengths != [0])


def test_an_end_without_drafts_is_seen_by_the_drafts_that_follow(laddered):
    """The host launches these steps before it knows the end, and proposers must not learn from tokens after it."""
    answer = greedy(tuple(EDIT))["token_ids"]
    length = next(place for place in range(4, 40) if answer[place] not in answer[:place]) + 1
    params = [{"stop_token_ids": [answer[length - 1]]}, LOOPING]  # SGLang expects ends by length
    with planned(laddered, [8], trees.watch):
        laddered.inside(draft_after, steps=length - 1)
        laddered.inside(watching.hold_back, count=2)
        before = laddered.inside(trees.counts)["total"]
        answers = laddered.call(inside.generate, prompts=[EDIT, LOOP], params=params)
        laddered.call(watching.settled)
        steps = laddered.inside(trees.seen)
        after = laddered.inside(trees.counts)["total"]
    assert [len(answer["token_ids"]) for answer in answers] == [length, 40]
    assert [len(step["tokens"][0]) - 1 for step in steps][: length - 1] == [0] * (length - 1)
    overshoot = steps[length - 1]
    assert len(overshoot["tokens"][0]) > 1, "it drafts"
    assert len(overshoot["requests"]) == 2, "with the request that has ended"
    assert after["emitted"] - before["emitted"] == length + 40


def draft_after(scheduler: Any, steps: int) -> None:
    """Plan no drafts for some steps."""
    drafting, left = scheduler.draft_worker.drafting, [0] * steps

    def plan(reqs: Any) -> int:
        planned: int = original(reqs)
        return left.pop() if left else planned

    original = trees.put(drafting, "plan", plan)


# -- cost ------------------------------------------------------------------------------------------------------------


def test_operations_of_a_step_without_drafts(laddered):
    laddered.inside(count_operations)
    try:
        laddered.call(inside.generate, prompts=PROMPTS[:6], params={"ignore_eos": True})
    finally:
        steps, faults = laddered.inside(counted_operations)
    assert len(steps) > 30
    assert faults == []
    assert max(before for before, _ in steps) <= most("SGLang", "without drafts")
    assert max(after for _, after in steps) <= AFTER
    assert min(before for before, _ in steps) > 0


class Launches(Watch):
    """Counts operations that launch something: all but views."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        counted = self.count
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.is_view:
            self.count = counted
        return result


STEPS: list[tuple[int, int]] = []
FAULTS: list[str] = []


def count_operations(scheduler: Any) -> None:
    """Count, until `counted_operations`, the operations of each decoding step before and after the target's forward."""
    worker, target = scheduler.draft_worker, scheduler.draft_worker.target_worker
    seen: dict[str, int] = {}

    def decode(batch: Any, on_publish: Any) -> Any:
        with Launches() as watch:
            seen["watch"] = watch
            result = original(batch, None)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        STEPS.append((seen["before"], watch.count - seen["after"]))
        FAULTS.extend(watch.found)
        return result

    def forward(batch: Any, **given: Any) -> Any:
        watch = seen.get("watch")
        if watch is None or not batch.forward_mode.is_decode():
            return forward_original(batch, **given)
        seen["before"] = watch.count
        with torch.utils._python_dispatch._disable_current_modes():
            result = forward_original(batch, **given)
        seen["after"] = watch.count
        return result

    STEPS.clear()
    FAULTS.clear()
    original = trees.put(worker, "_decode", decode)
    forward_original = trees.put(target, "forward_batch_generation", forward)


def counted_operations(scheduler: Any) -> tuple[list[tuple[int, int]], list[str]]:
    """Return the counts by step, and what would have waited."""
    trees.restore(scheduler)
    return list(STEPS), list(FAULTS)


# -- graphs ----------------------------------------------------------------------------------------------------------


def test_graphs_of_decoding_are_built_as_without_speculation(laddered):
    """With a backend of its own, whose workspace is the engine's; the engine captures its own for small batches."""
    found = laddered.inside(build_decoding)
    assert found == {
        "algorithm": "NONE",
        "settings": [None, None, None, None],
        "given": ["attn_backend"],
        "the engine's own": {"captured": [1, 2], "rows of logits": 2 * 9},
        "captured": [1, 2, 4],
        "workspaces": [False],
        "its own backend": True,
        "its own graphs": True,
        "restored": True,
        "counted": True,
    }


def build_decoding(scheduler: Any) -> dict[str, Any]:
    """Build decoding for an engine that captures graphs, and step into it."""
    from sglang.srt.runtime_context import get_exec, get_spec

    from specplug_sglang.verification.draft_lengths import DECODING, DraftLengths

    worker = scheduler.draft_worker
    runner, found = worker.model_runner, {}
    names = ("algorithm", "num_draft_tokens", "num_steps", "eagle_topk")

    def settings() -> list[Any]:
        return [getattr(get_spec(), f"speculative_{name}") for name in names]

    class Graphs:
        def __init__(self, model_runner: Any, **given: Any) -> None:
            found["algorithm"] = model_runner.spec_algorithm.name
            found["settings"], found["given"] = settings(), list(given)
            found["captured"] = config.decode.bs
            self.backend = given["attn_backend"]

    def backend(init_new_workspace: bool = False) -> Any:
        found.setdefault("workspaces", []).append(init_new_workspace)
        return get_backend(init_new_workspace)

    engines_own, config = object.__new__(Graphs), get_exec().graph.cuda_graph_config
    default, config.decode.bs = config.decode.bs, [1, 2, 4, 8]
    before = settings(), runner.spec_algorithm, runner.attn_backend
    trees.put(runner, "decode_cuda_graph_runner", engines_own)
    get_backend = trees.put(runner, "_get_attention_backend", backend)
    try:
        lengths = DraftLengths(runner, worker.speculative_num_draft_tokens)
        nodes = {DECODING: 3, worker.speculative_num_draft_tokens: 2}
        lengths.limit_engine(nodes)
        found["the engine's own"] = {"captured": config.decode.bs, "rows of logits": runner.max_decode_logits_rows()}
        lengths.prepare(nodes)
        with lengths.using(DECODING):
            graphs = runner.decode_cuda_graph_runner
            found["its own graphs"] = graphs is not engines_own
            found["its own backend"] = runner.attn_backend is graphs.backend is not before[2]
        now = settings(), runner.spec_algorithm, runner.attn_backend
        found["restored"] = (
            now == before
            and config.decode.bs == [1, 2, 4, 8]
            and runner.decode_cuda_graph_runner is engines_own
            and "max_decode_logits_rows" not in vars(runner)
        )
        found["counted"] = lengths.seconds > 0 and lengths.backends() == [graphs.backend]
    finally:
        trees.restore(scheduler)
        config.decode.bs = default
    return found
