"""Counts of steps of every draft length; those without drafts are SGLang's own decoding, in graphs, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.launch import FEATURES
from tests.engines.suites.features import EDIT, LOOP

PROMPTS = [list(prompt) for prompt in prompts()]
SOMETIMES = [0, 0, 3, 0, 8]
"""Draft lengths of successive steps."""


VARIED = {
    "proposer": "ngram",
    "policy": "ladder",
    "options": {"ladder": {"draft_lengths": [0, 0, 3, 0, 8]}, "ngram": {"min_n": 1}},
    "faults": {"host_deadline_ms": None},
}
"""Settings with another draft length at each step, and steps without drafts."""
LOOPING = {"ignore_eos": True}


@pytest.fixture(scope="session")
def varied(engine: Callable[..., Engine]) -> Callable[..., Engine]:
    """Make an engine with `VARIED`: ``varied(overlap=True)``."""
    return lambda **how: engine("SPECPLUG", settings=VARIED, **FEATURES, name="varied", **how)


@pytest.fixture(scope="session")
def laddered(varied: Callable[..., Engine]) -> Engine:
    return varied(overlap=True)


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


# -- counts of requests -----------------------------------------------------------------------------------------------

DRAWN: dict[str, tuple[int, int]] = {}


def count_drafts(scheduler: Any) -> None:
    """Count, by request id, its decoding steps and the tokens that were verified, until `counted`."""
    drafting = scheduler.draft_worker.drafting

    def launched(reqs: Any, draft_length: int, result: Any) -> None:
        for req, verified in zip(reqs, result.cap_lens.tolist(), strict=True):
            steps, tokens = DRAWN.get(req.rid, (0, 0))
            DRAWN[req.rid] = (steps + 1, tokens + verified - 1)
        original(reqs, draft_length, result)

    DRAWN.clear()
    original = trees.put(drafting, "add_launched", launched)


def counted(scheduler: Any) -> dict[str, tuple[int, int]]:
    """Return by request id how many steps it saw and how many draft tokens were verified for it."""
    return dict(DRAWN)


@pytest.mark.parametrize("overlap", [pytest.param(False, marks=pytest.mark.slow), True], ids=["sync", "overlap"])
def test_answers_count_the_drafts_that_were_verified(overlap, varied):
    """But not those of the step that overlapped scheduling runs after a request's end."""
    served, params = varied(overlap=overlap), [LOOPING, {}, {"frequency_penalty": 1.5}]
    with served.planted(count_drafts):
        found = served.call(
            inside.generate, prompts=[LOOP, EDIT, LOOP], params=params, rid=["loop", "edit", "penalised"]
        )
        counts = served.inside(counted)
    for name, answer in zip(("loop", "edit", "penalised"), found, strict=True):
        meta, (steps, tokens) = answer["meta"], counts[name]
        assert 0 <= steps - meta["spec_verify_ct"] <= 1
        assert 0 <= tokens - meta["spec_num_proposed_drafts"] <= 8 * (steps - meta["spec_verify_ct"])
        assert meta["spec_num_correct_drafts"] <= meta["spec_num_proposed_drafts"]
        assert meta["spec_num_proposed_drafts"] > 0 or name == "penalised"
        expected = meta["spec_num_correct_drafts"] / max(meta["spec_num_proposed_drafts"], 1)
        assert meta["spec_accept_rate"] == pytest.approx(expected)


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
