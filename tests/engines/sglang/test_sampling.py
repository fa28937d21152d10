"""Sampled output with specplug has the target's distribution, with the test plug-in's sampling as on a GPU.

Chains and trees of a proposer, and drafts of SGLang's own draft model that specplug plans or lookup extends, stand in
rows.  The temperature is 1; see `tests.engines.toy` for the distribution.  Planted mistakes in verification are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sgl_kernel.sampling import tree_speculative_sampling_target_only

from specplug.operator.status import counting_parts
from specplug_sglang.verification.acceptance import departed
from tests.engines import toy
from tests.engines.sglang import drafters, inside, trees
from tests.engines.sglang.engines import Engine

KINDS: dict[str, dict[str, Any]] = {
    "chains, overlapped": {"topk": 1, "overlap": True},
    "trees, overlapped": {"topk": 3, "overlap": True},
    "trees, sync": {"topk": 3, "overlap": False},
    "planned": {"settings": drafters.CHANGING},
    "extended": {"settings": drafters.EXTENDED},
}
PROPOSED = ("chains, overlapped", "trees, overlapped", "trees, sync")
DRAFT_LENGTH = 6
ANSWERS = 128  # of `toy.PAIRS` pairs each
Params = dict[str, Any]


def kinds(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def small(engine: Callable[..., Engine], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Engine]:
    """Make an engine on the toy model, which also drafts for itself."""
    path = tmp_path_factory.mktemp("toy")
    toy.model().save_pretrained(path)

    def make(algorithm: str | None = None, **kwargs: Any) -> Engine:
        given = {"model_path": str(path), "skip_tokenizer_init": True, "context_length": 64, "max_running_requests": 64}
        if algorithm == "STANDALONE":
            return drafters.drafted(engine, algorithm, Path(path), **{**given, **kwargs})
        return engine(algorithm, name="toy", **{**given, **kwargs})

    return make


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """What drafts, and the schedule.  Tests of one kind run together, so that engines start once."""
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
    if kind not in PROPOSED:
        return small("STANDALONE", sampling=True, **KINDS[kind])
    settings = {
        "proposer": "branches",
        "policy": "ladder",
        "options": {"ladder": {"draft_lengths": [DRAFT_LENGTH]}, "branches": {"after": likely(kind)}},
        "faults": {"host_deadline_ms": None},
    }
    return small("SPECPLUG", draft_length=DRAFT_LENGTH, sampling=True, settings=settings, **KINDS[kind])


def answered(engine: Engine, params: Sequence[Params]) -> tuple[list[list[int]], int, int]:
    """Return the answers to requests of one batch, and how many draft tokens were proposed and accepted."""
    found = engine.call(inside.generate, prompts=[toy.PROMPT] * len(params), params=list(params))
    metas = [answer["meta"] for answer in found]
    proposed, accepted = (
        sum(meta.get(f"spec_num_{kind}_drafts", 0) for meta in metas) for kind in ("proposed", "correct")
    )
    return [answer["token_ids"] for answer in found], proposed, accepted


def sample(
    engine: Engine, answers: int = ANSWERS, distribution: torch.Tensor | None = None, most: int = 0, **params: Any
) -> tuple[float, int, int]:
    """Return the p-value of the answers' pairs of tokens, and how many drafts were proposed and accepted.

    Each row has a limit of its own, up to `most` draft tokens, if that is not 0.
    """
    requested = {"temperature": 1.0, "max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True, **params}
    texts, *counts = answered(engine, [at_most(1 + row % most if most else None, requested) for row in range(answers)])
    return toy.p_value(texts, distribution), counts[0], counts[1]


def at_most(limit: int | None, params: Params) -> Params:
    """Return sampling parameters with a limit of their own."""
    return params if limit is None else {**params, "custom_params": {"specplug_num_speculative_tokens": limit}}


@kinds(*PROPOSED)
def test_drafts_are_verified_by_the_distribution(ours, kind):
    with ours.planted(trees.watch):
        p, proposed, accepted = sample(ours)
    seen = ours.inside(trees.seen)
    assert p > 1e-4
    assert 200 < accepted < proposed - 200
    deepest = max(count - 1 for step in seen for count in step["kept"])
    assert deepest == (DRAFT_LENGTH if kind.startswith("chains") else 2)


@kinds("planned", "extended")
def test_drafts_of_sglangs_own_model_are_verified_by_the_distribution(ours, kind):
    """Most rows have a limit of their own."""
    most = drafters.LENGTH if kind == "planned" else 2 * drafters.LENGTH
    p, _, accepted = sample(ours, most=most)
    assert p > 1e-4
    assert accepted > 200
    if kind == "extended":
        by_source = drafters.extended_counts(ours)
        assert min(by_source[name]["accepted"] for name in ("engine", "lookup")) > 100
        assert sum(by_source["lookup"]["accepted_at"][drafters.MODEL_TOKENS :]) > 10


@kinds(*PROPOSED, "planned")
def test_tokens_are_drawn_where_sglangs_verification_takes_the_likeliest(ours, kind):
    """As on CPUs, XPUs and HIP, for which SGLang has no kernels that sample."""
    with ours.planted(trees.verify_as_without_kernels):
        p, proposed, accepted = sample(ours, ANSWERS // 2, most=drafters.LENGTH if kind == "planned" else 0)
    assert p > 1e-4
    assert 100 < accepted < proposed - (100 if kind in PROPOSED else 0)


@kinds(*PROPOSED)
def test_of_equal_siblings_one_is_verified(ours, kind):
    """SGLang's kernel on GPUs, unlike the stand-in, would take the sum of their probabilities for that of the token."""
    with ours.planted(trees.watch):
        sample(ours, 2)
    hung = [
        [(parent, token) for parent, token in zip(parents, tokens, strict=True) if parent >= 0]
        for step in ours.inside(trees.seen)
        for tokens, parents in zip(step["tokens"], step["parents"], strict=True)
    ]
    assert all(len(set(row)) == len(row) for row in hung)
    assert len(hung[0]) == DRAFT_LENGTH - (not kind.startswith("chains"))  # as wide as it may be, but one


@kinds(*PROPOSED)
def test_another_draft_length_at_every_step(ours):
    draft_lengths = [0, 6, 1, 3, 0, 2]
    with ours.planted(trees.plan, trees.watch, draft_lengths=draft_lengths):
        p, _, accepted = sample(ours)
    assert p > 1e-4
    assert accepted > 200
    found = {len(step["tokens"][0]) - 1 for step in ours.inside(trees.seen)}
    assert found >= set(draft_lengths)
    assert max(found) == max(draft_lengths)  # others are of steps whose rows all have room for fewer


def test_trees_that_grow_and_shrink_with_the_batch(small):
    """Three of four requests end early, so the others begin without drafts, and go on with larger and larger trees."""
    settings = {"proposer": "ngram", "policy": "batch", "options": {"ngram": {"min_n": 1, "min_survival": 0.01}}}
    engine = small("SPECPLUG", draft_length=DRAFT_LENGTH, topk=3, sampling=True, settings=settings)
    whole = {"temperature": 1.0, "max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True}
    params = [whole if row % 4 == 0 else {**whole, "max_new_tokens": 4 + row % 12} for row in range(64)]
    texts = []
    with engine.planted(trees.cost, trees.watch, free=96, each=0.2):
        for _ in range(ANSWERS // 16):
            texts += answered(engine, params)[0][::4]
        steps = engine.inside(trees.seen)
    assert toy.p_value(texts) > 1e-4
    sizes = {name: {len(step["tokens"][0]) - 1 for step in steps if name in step["requests"]} for name in named(steps)}
    assert sum({0, 3} <= found for found in sizes.values()) > ANSWERS // 2
    assert sum(count - 1 for step in steps for count in step["kept"]) > 200


def named(steps: Sequence[dict[str, Any]]) -> set[str]:
    """Return the requests of steps."""
    return {name for step in steps for name in step["requests"]}


@kinds(*PROPOSED)
def test_top_k_and_top_p(ours):
    """Answers follow the distribution over kept tokens; any other token gives p = 0."""
    for params, distribution in toy.filtered():
        assert sample(ours, distribution=distribution, **params)[0] > 1e-4


@kinds(*PROPOSED)
def test_greedy_requests_and_min_p_beside_sampled_ones(ours):
    """Each request follows its own distribution, in shared steps; those with min_p get no drafts."""
    own: list[Params] = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "min_p": 0.3}]
    params = [{"max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True, **each} for each in own] * ANSWERS
    found = ours.call(inside.generate, prompts=[toy.PROMPT] * len(params), params=params)
    greedy, sampled, cut = ([answer["token_ids"] for answer in found[row::3]] for row in range(3))
    likeliest, text = toy.distribution().argmax(-1), [toy.PROMPT[-1]]
    for _ in range(2 * toy.PAIRS):
        text.append(int(likeliest[text[-1]]))
    assert {tuple(answer) for answer in greedy} == {tuple(text[1:])}
    assert toy.p_value(sampled) > 1e-4
    by_min_p = toy.cut(lambda ranked: sum(prob >= 0.3 * ranked[0] for prob in ranked))
    assert toy.p_value(cut, by_min_p) > 1e-4
    accepted = [sum(answer["meta"]["spec_num_correct_drafts"] for answer in found[row::3]) for row in range(3)]
    assert accepted[1] > 200
    assert accepted[2] == 0


@kinds(*PROPOSED, "extended")
def test_a_mistake_is_found_out(ours, kind):
    """The same test, at half the size for a proposer's drafts, detects it."""
    with ours.planted(trees.accept_lightly):
        p, _, accepted = sample(ours, ANSWERS // 2) if kind in PROPOSED else sample(ours, most=2 * drafters.LENGTH)
    assert accepted > 0
    assert p < 1e-6


def lossy(scheduler: Any, thresholds: dict[str, float]) -> dict[str, Any]:
    """Set SGLang's thresholds as its own route does; return the status."""
    from sglang.srt.managers.io_struct import SetInternalStateReq

    from specplug_sglang.status import scheduler_status

    if thresholds:
        assert scheduler.internal_state.set_internal_state(SetInternalStateReq(server_args=thresholds)).updated
    return scheduler_status(scheduler)


@kinds("chains, overlapped", "planned")
def test_sglangs_own_lossy_acceptance_is_labelled_and_its_departure_counted(ours):
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
    counted, earlier = (counting_parts(status)[0]["metrics"]["lossy"] for status in (after, before))
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


# -- seeds, under deterministic inference ------------------------------------------------------------------------------

WHOLE: list[Params] = [{}, {"temperature": 0.6}, {"temperature": 1.3}]
CUT: list[Params] = [{"top_k": 6}, {"top_p": 0.9}, {"top_k": 9, "top_p": 0.9}, {"temperature": 0.0}]
"""Sampling parameters beside the seed, apart: SGLang draws from whole distributions in another way than from cut ones,
and in that way for all requests of a batch.  It takes no seeds with min_p, and overlapped it counts penalties late."""


@pytest.mark.parametrize("seeds", [4, pytest.param(72, marks=pytest.mark.slow)])
@pytest.mark.parametrize("params", [WHOLE, CUT], ids=["whole", "cut"])
@kinds("trees, overlapped", "planned")
def test_a_seed_has_one_text(params, seeds, ours, small):
    """SGLang's own without speculation, alone and inside a batch, whatever the draft lengths of it and of others."""
    shared = {"temperature": 1.0, "max_new_tokens": 40, "ignore_eos": True}
    requested = [{**shared, "sampling_seed": 1000003 * seed, **each} for seed in range(seeds) for each in params]
    plain = small()
    for engine in (plain, ours):
        engine.inside(trees.be_deterministic, really=True)
    try:
        expected, _, _ = answered(plain, requested)
        assert len({tuple(text) for text in expected}) > len(requested) // 2, "the seeds do something"
        found, _, accepted = answered(ours, requested)
        assert found == expected
        assert accepted > 20
        mixed = [at_most(1 + row % 4, each) for row, each in enumerate(requested)]
        assert answered(ours, mixed)[0] == expected
        for limit in range(4):
            assert answered(ours, [at_most(limit, requested[limit])])[0] == [expected[limit]]
    finally:
        for engine in (plain, ours):
            engine.inside(trees.be_deterministic, really=False)
