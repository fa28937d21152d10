"""Models whose layers keep a state per request: LFM2, with random weights, against the model without an engine.

Each step's state is taken back to the last accepted token, whatever draft length the step had.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.engines import Raised
from tests.engines.sglang import inside, trees
from tests.engines.sglang.continuations import continuations, nearly
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.launch import SMALL
from tests.engines.sglang.test_registration import outcome

VOCAB, DRAFT_LENGTH, TOKENS = 48, 4, 40


@functools.cache
def model() -> Any:
    """Two short convolutions around an attention; weights so large that a wrong state changes the text at once."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    torch.manual_seed(3)
    config = Lfm2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        layer_types=["conv", "full_attention", "conv"],
        conv_L_cache=3,
        block_auto_adjust_ff_dim=False,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return Lfm2ForCausalLM(config).eval()


@functools.cache
def prompts() -> list[list[int]]:
    """Texts of many lengths, some longer than others' answers."""
    draw = random.Random(5)
    return [[draw.randrange(VOCAB) for _ in range(3 + 4 * number)] for number in range(12)]


@functools.cache
def truth() -> list[list[int]]:
    """The model's own continuations."""
    return continuations(model(), prompts(), TOKENS)


@pytest.fixture(scope="session")
def lfm2(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("lfm2")
    model().save_pretrained(path)
    return str(path)


@pytest.fixture(params=[False, True], ids=["sync", "overlap"])
def drafted(request: pytest.FixtureRequest, engine: Callable[..., Engine], lfm2: str) -> Engine:
    how = "overlapped" if request.param else "sync"
    return engine(
        "SPECPLUG",
        draft_length=DRAFT_LENGTH,
        overlap=request.param,
        model_path=lfm2,
        skip_tokenizer_init=True,
        context_length=128,
        disable_radix_cache=True,  # else SGLang overlaps no steps of such a model on a CPU
        name=f"LFM2 {how}",
    )


def answers(engine: Engine, rows: list[int], cap: int | None = None) -> tuple[list[list[int]], int]:
    """Return the answers to requests of one batch, and how many draft tokens were accepted."""
    capped = {} if cap is None else {"specplug_num_speculative_tokens": cap}
    references = [nearly(prompts()[row], truth()[row]) for row in rows]
    params = [
        {
            "max_new_tokens": tokens_of(row),
            "ignore_eos": True,
            "custom_params": {"specplug_references": reference, **capped},
        }
        for row, reference in zip(rows, references, strict=True)
    ]
    found = engine.call(inside.generate, prompts=[prompts()[row] for row in rows], params=params)
    accepted = sum(answer["meta"]["spec_num_correct_drafts"] for answer in found)
    return [answer["token_ids"] for answer in found], accepted


def tokens_of(row: int) -> int:
    """Return the length of an answer: requests come and go while others of the batch go on."""
    return TOKENS - 4 * (row * 5 % 8)


def assert_as_without(engine: Engine, rows: list[int], cap: int | None = None) -> int:
    found, accepted = answers(engine, rows, cap)
    assert found == [truth()[row][: tokens_of(row)] for row in rows]
    return accepted


EVERY = list(range(12))


@pytest.mark.parametrize("cap", [0, 2, DRAFT_LENGTH])
def test_at_a_fixed_draft_length(cap, drafted):
    accepted = assert_as_without(drafted, EVERY, cap)
    assert accepted > 40 if cap else accepted == 0
    assert_as_without(drafted, [1], cap)


@pytest.fixture
def changing(drafted: Engine) -> Iterator[Engine]:
    """Each step has another draft length than the one before."""
    drafted.inside(change_lengths)
    yield drafted
    drafted.inside(trees.restore)


def change_lengths(scheduler: Any) -> None:
    lengths = itertools.cycle([0, 3, 1, 4, 2])
    drafting = scheduler.draft_worker.drafting
    plan = drafting.plan
    trees.put(drafting, "plan", lambda reqs: min(plan(reqs), next(lengths)))


def test_at_changing_draft_lengths(changing):
    assert assert_as_without(changing, EVERY) > 40
    assert_as_without(changing, [3])


def test_a_state_that_is_not_taken_back_is_seen(drafted):
    drafted.inside(keep_states)
    try:
        assert answers(drafted, EVERY)[0] != [truth()[row][: tokens_of(row)] for row in EVERY]
    finally:
        drafted.inside(trees.restore)
    assert_as_without(drafted, EVERY)


def keep_states(scheduler: Any) -> None:
    """The mistake: the state after all drafts is kept."""
    import sglang.srt.speculative.spec_utils as module

    trees.put(module, "commit_mamba_states_after_verify", lambda *args: None)


def test_trees_are_refused(baseline, lfm2):
    """SGLang's layers go by no parents; its own n-gram drafts trees for such models, whose text is wrong."""
    requested = {**SMALL, "model_path": lfm2, "skip_tokenizer_init": True, "context_length": 128}
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
