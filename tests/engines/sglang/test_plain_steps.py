"""Steps without drafts are SGLang's own decoding: in what is counted, and in graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_exact import (
    EDIT,
    LOOP,
    LOOPING,
    varied,
)

PROMPTS = [list(prompt) for prompt in prompts()]
SOMETIMES = [0, 0, 3, 0, 8]
"""Draft lengths of successive steps."""


@pytest.fixture(scope="session")
def laddered(engine: Callable[..., Engine]) -> Engine:
    """The overlapped engine of `test_exact`."""
    return varied(engine, overlap=True)


@pytest.mark.parametrize("draft_lengths", [[0], SOMETIMES], ids=["never", "sometimes"])
def test_tokens_are_counted_once(draft_lengths, laddered):
    """The counts cover what clients saw, and the tokens after a request's end, in steps with and without drafts."""
    assert laddered.call(inside.flush)
    before = laddered.inside(watching.counts)["total"]
    with laddered.planted(trees.plan, trees.watch, draft_lengths=draft_lengths):
        answers = laddered.call(inside.generate, prompts=PROMPTS)
        laddered.call(watching.settled)
        steps = laddered.inside(trees.seen)
        after = laddered.inside(watching.counts)["total"]
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
    with laddered.planted(trees.plan, trees.watch, draft_lengths=[8]):
        laddered.inside(trees.skip_drafts, steps=length - 1)
        laddered.inside(watching.hold_back, count=2)
        before = laddered.inside(watching.counts)["total"]
        answers = laddered.call(inside.generate, prompts=[EDIT, LOOP], params=params)
        laddered.call(watching.settled)
        steps = laddered.inside(trees.seen)
        after = laddered.inside(watching.counts)["total"]
    assert [len(answer["token_ids"]) for answer in answers] == [length, 40]
    assert [len(step["tokens"][0]) - 1 for step in steps][: length - 1] == [0] * (length - 1)
    overshoot = steps[length - 1]
    assert len(overshoot["tokens"][0]) > 1, "it drafts"
    assert len(overshoot["requests"]) == 2, "with the request that has ended"
    assert after["emitted"] - before["emitted"] == length + 40


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
