"""Models whose layers keep a state per request, with random weights, against the model without an engine: LFM2's short
convolutions, and Mamba-2 layers beside attention in Nemotron-H and Falcon-H1.

Each step's state is taken back to the last accepted token, whatever draft length the step had.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.engines.engines import Raised
from tests.engines.recurrent_models import VOCAB, model, save
from tests.engines.recurrent_requests import wrong_tokens
from tests.engines.sglang import inside, trees
from tests.engines.sglang.continuations import continuations, nearly
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.launch import SMALL
from tests.engines.sglang.test_registration import outcome

DRAFT_LENGTH, TOKENS = 4, 40
MODELS = ("lfm2", "nemotron_h", "falcon_h1")


@functools.cache
def prompts() -> list[list[int]]:
    """Texts of many lengths, some longer than others' answers."""
    draw = random.Random(5)
    return [[draw.randrange(VOCAB) for _ in range(3 + 4 * number)] for number in range(12)]


@functools.cache
def truth(name: str) -> list[list[int]]:
    """The model's own continuations."""
    return continuations(model(name), prompts(), TOKENS)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: save(name, tmp_path_factory.mktemp(name)) for name in MODELS}


def started(engine: Callable[..., Engine], saved: dict[str, str], name: str, how: str, **arguments: Any) -> Engine:
    requested = {
        "draft_length": DRAFT_LENGTH,
        "overlap": how == "overlap",
        "model_path": saved[name],
        "skip_tokenizer_init": True,
        "context_length": 128,
        "disable_radix_cache": how != "radix",  # with it SGLang overlaps no steps of such a model on a CPU
        **arguments,
    }
    return engine("SPECPLUG", name=f"{name} {how}", **requested)


FAST = [("lfm2", "sync"), ("lfm2", "overlap"), ("nemotron_h", "overlap")]
SPLIT = [
    pytest.param((name, how), id=f"{name}-{how}", marks=[] if (name, how) in FAST else pytest.mark.slow)
    for name in MODELS
    for how in ("sync", "overlap", "radix")
]


@pytest.fixture(params=SPLIT)
def drafted(request: pytest.FixtureRequest, engine: Callable[..., Engine], saved: dict[str, str]) -> Served:
    name, how = request.param
    return Served(started(engine, saved, name, how), name)


@dataclass
class Served:
    """An engine, and the name of its model."""

    engine: Engine
    name: str

    def truth(self, rows: list[int]) -> list[list[int]]:
        return [truth(self.name)[row][: tokens_of(row)] for row in rows]


def answers(served: Served, rows: list[int], cap: int | None = None) -> tuple[list[list[int]], int]:
    """Return the answers to requests of one batch, and how many draft tokens were accepted."""
    capped = {} if cap is None else {"specplug_num_speculative_tokens": cap}
    references = [nearly(prompts()[row], truth(served.name)[row]) for row in rows]
    params = [
        {
            "max_new_tokens": tokens_of(row),
            "ignore_eos": True,
            "custom_params": {"specplug_references": reference, **capped},
        }
        for row, reference in zip(rows, references, strict=True)
    ]
    found = served.engine.call(inside.generate, prompts=[prompts()[row] for row in rows], params=params)
    accepted = sum(answer["meta"]["spec_num_correct_drafts"] for answer in found)
    return [answer["token_ids"] for answer in found], accepted


def tokens_of(row: int) -> int:
    """Return the length of an answer: requests come and go while others of the batch go on."""
    return TOKENS - 4 * (row * 5 % 8)


def assert_as_without(served: Served, rows: list[int], cap: int | None = None) -> int:
    found, accepted = answers(served, rows, cap)
    assert found == served.truth(rows)
    return accepted


EVERY = list(range(12))


@pytest.mark.parametrize("cap", [0, 2, DRAFT_LENGTH])
def test_at_a_fixed_draft_length(cap, drafted):
    accepted = assert_as_without(drafted, EVERY, cap)
    assert accepted > 40 if cap else accepted == 0
    assert_as_without(drafted, [1], cap)


@pytest.fixture
def changing(drafted: Served) -> Iterator[Served]:
    """Each step has another draft length than the one before."""
    drafted.engine.inside(change_lengths)
    yield drafted
    drafted.engine.inside(trees.restore)


def change_lengths(scheduler: Any) -> None:
    lengths = itertools.cycle([0, 3, 1, 4, 2])
    drafting = scheduler.draft_worker.drafting
    plan = drafting.plan
    trees.put(drafting, "plan", lambda reqs: min(plan(reqs), next(lengths)))


def test_at_changing_draft_lengths(changing):
    assert assert_as_without(changing, EVERY) > 40
    assert_as_without(changing, [3])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_prompts_whose_beginnings_are_cached(name, engine, saved):
    """Chats that go on: the state after a prompt and its answer is in the radix cache."""
    served = started(engine, saved, name, "radix")

    def ask(given: list[list[int]], right: list[list[int]]) -> list[dict[str, Any]]:
        drafts = [nearly(prompt, answer) for prompt, answer in zip(given, right, strict=True)]
        params = [
            {"max_new_tokens": TOKENS, "ignore_eos": True, "custom_params": {"specplug_references": draft}}
            for draft in drafts
        ]
        found: list[dict[str, Any]] = served.call(inside.generate, prompts=given, params=params)
        assert [answer["token_ids"] for answer in found] == right
        return found

    begun, answered = prompts()[:4], truth(name)[:4]
    ask(begun, answered)
    given = [[*prompt, *answer, 7, 3] for prompt, answer in zip(begun, answered, strict=True)]
    found = ask(given, continuations(model(name), given, TOKENS))
    assert sum(answer["meta"]["cached_tokens"] for answer in found) > 0
    assert sum(answer["meta"]["spec_num_correct_drafts"] for answer in found) > 40


@pytest.mark.parametrize("mistake", ["keep_states", "take_counts_of_the_next_row"])
def test_a_wrong_state_is_seen(mistake, drafted):
    drafted.engine.inside(globals()[mistake])
    try:
        found, _ = answers(drafted, EVERY)
    finally:
        drafted.engine.inside(trees.restore)
    assert wrong_tokens(found, drafted.truth(EVERY)) > 10
    assert_as_without(drafted, EVERY)


def keep_states(scheduler: Any) -> None:
    """The mistake: the state before all drafts is kept."""
    import sglang.srt.speculative.spec_utils as module

    trees.put(module, "commit_mamba_states_after_verify", lambda *args: None)


def take_counts_of_the_next_row(scheduler: Any) -> None:
    """The mistake: each row's state is taken as far as the next row's drafts were accepted."""
    import sglang.srt.speculative.spec_utils as module

    commit = module.commit_mamba_states_after_verify

    def commit_of_the_next_row(worker: Any, batch: Any, accept_lens: Any, accept_index: Any, n: int) -> None:
        commit(worker, batch, accept_lens.roll(1), accept_index, n)

    trees.put(module, "commit_mamba_states_after_verify", commit_of_the_next_row)


def test_trees_are_refused(baseline, saved):
    """SGLang's layers go by no parents; its own n-gram drafts trees for such models, whose text is wrong."""
    requested = {**SMALL, "model_path": saved["lfm2"], "skip_tokenizer_init": True, "context_length": 128}
    found = baseline.call(outcome, arguments={**requested, "speculative_eagle_topk": 4})
    assert found.startswith("ValueError: specplug_sglang: trees"), found
    for part in ("recurrent state", "Lfm2ForCausalLM", "--speculative-eagle-topk 4", "--speculative-eagle-topk 1"):
        assert part in found
    assert baseline.call(outcome, arguments={**requested, "disable_radix_cache": True}) == "started"


def test_states_that_only_one_draft_length_can_read_are_refused(baseline):
    """KDA's fused accept, which SGLang has on GPUs only."""
    with pytest.raises(Raised, match="KDA's fused accept") as raised:
        baseline.call(fuse_accept)
    assert raised.value.type == "EngineError"
    assert "--linear-attn-verify-backend" in raised.value.text


def fuse_accept(engine: Any) -> None:
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
    from sglang.srt.layers.attention.linear.kda_backend import KDAAttnBackend

    from specplug_sglang.verification.draft_lengths import refuse_fused_accept

    attention = object.__new__(HybridLinearAttnBackend)
    attention.linear_attn_backend = object.__new__(KDAAttnBackend)
    refuse_fused_accept(attention)  # as it is where the flags do not ask for it
    attention.linear_attn_backend.accept_lens_pool = torch.ones(3, dtype=torch.int32)
    refuse_fused_accept(attention)
