"""Sampled output with specplug has the target's distribution, for chains and trees, with the test plug-in's sampling.

The temperature is 1; see `tests.engines.toy` for the distribution.  Planted mistakes in verification are found.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sgl_kernel.sampling import tree_speculative_sampling_target_only

from specplug_sglang.verification.acceptance import departed
from tests.engines import toy
from tests.engines.sglang import inside, trees
from tests.engines.sglang.engines import Engine

KINDS = {
    "chains, overlapped": {"topk": 1, "overlap": True},
    "trees, overlapped": {"topk": 3, "overlap": True},
    "trees, sync": {"topk": 3, "overlap": False},
}
DRAFT_LENGTH = 6
ANSWERS = 128  # of `toy.PAIRS` pairs each


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("toy")
    toy.model().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def small(engine: Callable[..., Engine], saved: str) -> Callable[..., Engine]:
    """Make an engine on the toy model."""

    def make(algorithm: str | None = None, **kwargs: Any) -> Engine:
        given = {"model_path": saved, "skip_tokenizer_init": True, "context_length": 64, "max_running_requests": 64}
        return engine(algorithm, name="toy", **{"draft_length": 4, "topk": 3, **given, **kwargs})

    return make


def sample(
    engine: Engine, answers: int = ANSWERS, distribution: torch.Tensor | None = None, **params: Any
) -> tuple[float, int, int]:
    """Return the p-value of the answers' pairs of tokens, and how many drafts were proposed and accepted."""
    requested = {"temperature": 1.0, "max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True, **params}
    found = engine.call(inside.generate, prompts=[toy.PROMPT] * answers, params=requested)
    counts = [
        sum(answer["meta"].get(f"spec_num_{kind}_drafts", 0) for answer in found) for kind in ("proposed", "correct")
    ]
    return toy.p_value([answer["token_ids"] for answer in found], distribution), *counts


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of draft and its scheduling.  Tests of one kind run together, so that engines start once."""
    return str(request.param)


def likely(kind: str) -> list[list[int]]:
    """Return the drafts after each token: the likeliest one, or in trees the three likeliest, one of them twice.

    Those are the tokens whose acceptance decides the distribution.
    """
    ranked = toy.distribution().argsort(dim=-1, descending=True).tolist()
    return [[row[0]] if kind.startswith("chains") else [row[1], row[0], row[1], row[2]] for row in ranked]


@pytest.fixture(scope="session")
def ours(kind: str, small: Callable[..., Engine]) -> Engine:
    """An engine on the toy model."""
    settings = {
        "proposer": "branches",
        "policy": "ladder",
        "options": {"ladder": {"draft_lengths": [DRAFT_LENGTH]}, "branches": {"after": likely(kind)}},
        "faults": {"host_deadline_ms": None},
    }
    return small("SPECPLUG", draft_length=DRAFT_LENGTH, sampling=True, settings=settings, **KINDS[kind])


def test_drafts_are_verified_by_the_distribution(ours, kind):
    with ours.planted(trees.watch):
        p, proposed, accepted = sample(ours)
    seen = ours.inside(trees.seen)
    assert p > 1e-4
    assert 200 < accepted < proposed - 200
    deepest = max(count - 1 for step in seen for count in step["kept"])
    assert deepest == (DRAFT_LENGTH if kind.startswith("chains") else 2)


def test_tokens_are_drawn_where_sglangs_verification_takes_the_likeliest(ours):
    """As on CPUs, XPUs and HIP, for which SGLang has no kernels that sample."""
    with ours.planted(trees.verify_as_without_kernels):
        p, proposed, accepted = sample(ours, ANSWERS // 2)
    assert p > 1e-4
    assert 100 < accepted < proposed - 100


def test_of_equal_siblings_one_is_verified(ours, kind):
    """SGLang's kernel on GPUs, unlike the stand-in, would take the sum of their probabilities for that of the token."""
    with ours.planted(trees.watch):
        sample(ours, 2)
    seen = ours.inside(trees.seen)
    hung = [
        [(parent, token) for parent, token in zip(parents, tokens, strict=True) if parent >= 0]
        for step in seen
        for tokens, parents in zip(step["tokens"], step["parents"], strict=True)
    ]
    assert all(len(set(row)) == len(row) for row in hung)
    assert len(hung[0]) == (
        DRAFT_LENGTH if kind.startswith("chains") else DRAFT_LENGTH - 1
    )  # as wide as it may be, but one


def test_another_draft_length_at_every_step(ours):
    draft_lengths = [0, 6, 1, 3, 0, 2]
    with ours.planted(trees.plan, trees.watch, draft_lengths=draft_lengths):
        p, _, accepted = sample(ours)
    seen = ours.inside(trees.seen)
    assert p > 1e-4
    assert accepted > 200
    found = {len(step["tokens"][0]) - 1 for step in seen}
    assert found >= set(draft_lengths)
    assert max(found) == max(draft_lengths)  # others are of steps whose rows all have room for fewer


def test_top_k_and_top_p(ours):
    """Answers follow the distribution over kept tokens; any other token gives p = 0."""
    for params, distribution in toy.filtered():
        assert sample(ours, distribution=distribution, **params)[0] > 1e-4


def test_greedy_requests_beside_sampled_ones(ours):
    """Each request follows its own distribution."""
    lengths = {"max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True}
    params = [{**lengths, "temperature": float(index % 2)} for index in range(2 * ANSWERS)]
    found = ours.call(inside.generate, prompts=[toy.PROMPT] * len(params), params=params)
    answers = [answer["token_ids"] for answer in found]
    likeliest, text = toy.distribution().argmax(-1), [toy.PROMPT[-1]]
    for _ in range(2 * toy.PAIRS):
        text.append(int(likeliest[text[-1]]))
    assert {tuple(answer) for answer in answers[::2]} == {tuple(text[1:])}
    assert toy.p_value(answers[1::2]) > 1e-4


def test_a_mistake_is_found_out(ours):
    """The same test at half the size detects it."""
    with ours.planted(trees.accept_lightly):
        p, _, accepted = sample(ours, ANSWERS // 2)
    assert accepted > 0
    assert p < 1e-6


def lossy(scheduler: Any, thresholds: dict[str, float]) -> dict[str, Any]:
    """Set SGLang's thresholds as its own route does; return the status."""
    from sglang.srt.managers.io_struct import SetInternalStateReq

    from specplug_sglang.status import scheduler_status

    if thresholds:
        assert scheduler.internal_state.set_internal_state(SetInternalStateReq(server_args=thresholds)).updated
    return scheduler_status(scheduler)


@pytest.mark.parametrize("kind", ["chains, overlapped"], indirect=True, scope="session")
def test_sglangs_own_lossy_acceptance_is_labelled_and_its_departure_counted(ours, kind):
    before = ours.inside(lossy, thresholds={})
    assert before["lossy"] is None
    try:
        ours.inside(lossy, thresholds={"speculative_accept_threshold_single": 0.1})
        p, _, accepted = sample(ours)
        after = ours.inside(lossy, thresholds={})
    finally:
        ours.inside(lossy, thresholds={"speculative_accept_threshold_single": 1.0})
    assert p < 1e-6
    assert after["lossy"] == "--speculative-accept-threshold-single 0.1"
    counted, earlier = (status["workers"][0]["metrics"]["lossy"] for status in (after, before))
    assert counted["accepted"] - earlier["accepted"] >= accepted
    departed = counted["departed"] - earlier["departed"]
    assert 0.1 < departed / accepted < 0.9
    assert sample(ours)[0] > 1e-4


@pytest.mark.parametrize(("single", "acc"), [(1.0, 1.0), (0.3, 1.0), (1.0, 0.5), (0.3, 0.5)])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.4, 0.8, 1.0])
def test_the_departure_of_lossy_acceptance_is_how_much_more_often_a_draft_is_accepted(single, acc, chance):
    """One draft token at every number of a fine grid, by the rule that SGLang's options state."""
    rows = 1000
    coins = (torch.arange(rows) + 0.5) / rows
    probs = torch.tensor([1 - chance, chance]).expand(rows, 2, 2)
    candidates = torch.tensor([[0, 1]]).expand(rows, 2)
    accept_index = torch.full((rows, 2), -1, dtype=torch.int32)
    accept_token_num = torch.zeros(rows, dtype=torch.int32)
    tree_speculative_sampling_target_only(
        predicts=torch.zeros(rows * 2, dtype=torch.int32),
        accept_index=accept_index,
        accept_token_num=accept_token_num,
        candidates=candidates,
        retrive_index=torch.arange(rows * 2).view(rows, 2),
        retrive_next_token=torch.tensor([[1, -1]]).expand(rows, 2),
        retrive_next_sibling=torch.full((rows, 2), -1),
        uniform_samples=torch.stack([coins, coins], 1),
        uniform_samples_for_final_sampling=torch.full((rows,), 0.5),
        target_probs=probs,
        draft_probs=torch.zeros_like(probs),
        threshold_single=single,
        threshold_acc=acc,
        deterministic=True,
    )
    accepted = accept_token_num.double().mean().item()
    assert accepted == pytest.approx(1.0 if chance >= single else min(1.0, chance / acc), abs=1e-3)
    found = departed(probs, candidates, accept_index, accept_token_num, single=single, acc=acc)
    assert found.double().mean().item() == pytest.approx(accepted - chance, abs=1e-3)
