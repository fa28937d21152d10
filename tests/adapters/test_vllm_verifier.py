"""The layout of drafts in vLLM's runners equals a plain loop over rows, and each row gets its own verifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from specplug.counts import LossyCounts
from specplug.errors import EngineError
from specplug.metrics import SpecMetrics
from specplug.plugins.specs import VerifierSpec
from specplug.types.caps import Distribution, VerifierCaps
from specplug.types.request import RequestOptions
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Verification
from specplug.verify.random import uniforms
from specplug.verify.reference import ReferenceVerifier
from specplug_vllm.worker import verifier, verifier_v2
from specplug_vllm.worker.verifier import ServerVerifier
from tests.mutants import AcceptsAlways

VOCAB = 5
DRAFT_LENGTH = 3  # the server's longest draft
SLOTS = 6


@dataclass
class Row:
    """One request in a step."""

    draft: list[int]
    temperature: float
    seed: int
    length: int
    bonus: int


rows = st.builds(
    Row,
    draft=st.lists(st.integers(-1, VOCAB - 1), max_size=DRAFT_LENGTH),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    seed=st.integers(0, 2**62),
    length=st.integers(1, 500),
    bonus=st.integers(0, VOCAB - 1),
)
batches = st.lists(rows, min_size=1, max_size=5)
numbers = st.integers(0, 2**31)


def distributions(batch: Sequence[Row], seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Per row, processed target logits [n + 1, V] and, before temperature, draft logits [n, V]."""
    generator = torch.Generator().manual_seed(seed)

    def some(count: int) -> Tensor:
        return 2 * torch.randn(count, VOCAB, generator=generator)

    return [some(len(row.draft) + 1) for row in batch], [some(len(row.draft)) for row in batch]


def expected(row: Row, target: Tensor, **distribution: Any) -> list[int]:
    """Return the reference verifier's output for a single row."""
    valid = next((place for place, token in enumerate(row.draft) if token < 0), len(row.draft))
    draft = Draft.allocate(1, len(row.draft))
    draft.set_row(0, row.draft[:valid], 0.5)
    draft = Draft(draft.token_ids, draft.lengths, draft.confidence, draft.source, draft.base_len, **distribution)
    sampling = SamplingBatch(torch.tensor([1.0 if row.temperature else 0.0]))
    drawn = uniforms(torch.tensor([row.seed]), torch.tensor([row.length]), len(row.draft))
    ids = ReferenceVerifier().verify(draft, TargetLogits.dense(target[None]), sampling, drawn).token_ids[0]
    return [token for token in ids.tolist() if token >= 0]


def reference(lossless: bool = True) -> ServerVerifier:
    return ServerVerifier(ReferenceVerifier(), lossless, engine_seed=0)


# -- V1 -----------------------------------------------------------------------------------------------------------


def decide_v1(
    batch: Sequence[Row],
    seed: int,
    states_distribution: bool,
    server: ServerVerifier,
    drafting: Any = None,
    baseline: Any = None,
) -> Tensor:
    targets, drafts = distributions(batch, seed)
    counts = [len(row.draft) for row in batch]
    temperature = torch.tensor([row.temperature for row in batch])
    greedy = not temperature.any()
    input_batch = SimpleNamespace(
        num_reqs=len(batch),
        req_ids=[str(number) for number in range(len(batch))],
        num_tokens_no_spec=np.array([row.length for row in batch] + [77], dtype=np.int32),
    )
    decision = verifier.V1Decision(SimpleNamespace(input_batch=input_batch), server, drafting)
    return decision(
        baseline,
        torch.tensor([token for row in batch for token in row.draft], dtype=torch.int32),
        counts,
        max(counts),
        torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32),
        torch.cat(drafts).softmax(-1) if states_distribution else None,
        torch.cat([target[:-1] for target in targets]),
        torch.tensor([[row.bonus] for row in batch]),
        SimpleNamespace(
            all_greedy=greedy,
            temperature=None if greedy else temperature,
            generators={n: torch.Generator().manual_seed(row.seed) for n, row in enumerate(batch)},
        ),
    )


def test_v1_warm_ups_are_left_to_the_engine() -> None:
    row = Row([], 1.0, 1, 4, 2)
    assert decide_v1([row], 0, False, reference(), baseline=lambda *_, **__: "baseline") == "baseline"


def test_v1_numbers_of_requests_without_a_seed_are_new_at_every_step_and_alike_on_every_rank() -> None:
    one = reference()
    other = reference()
    first = one.seeds(3)
    assert torch.equal(first, other.seeds(3))
    assert not torch.isin(one.seeds(3), first).any()
    assert not torch.equal(ServerVerifier(ReferenceVerifier(), True, engine_seed=1).seeds(3), first)


class Lenient(AcceptsAlways):
    """Keeps the thresholds that it gets, and reports half of each accepted token as departed."""

    thresholds: Tensor | None = None

    def verify(self, draft: Draft, target: Any, sampling: SamplingBatch, uniforms: Any) -> Verification:
        self.thresholds = sampling.acceptance_threshold
        found = super().verify(draft, target, sampling, uniforms)
        return replace(found, departed=found.num_accepted / 2)


def counting(**parts: Any) -> Any:
    """Return the worker's half with real counters."""
    return SimpleNamespace(stage=SimpleNamespace(metrics=SpecMetrics([], DRAFT_LENGTH)), **parts)


def test_v1_a_lossy_verifier_decides_for_who_asks() -> None:
    batch = [Row([1, 2], 0.0, 1, 9, 0), Row([1, 2], 0.0, 2, 9, 0), Row([], 0.0, 3, 9, 4)]
    requested = {"0": None, "1": "careless"}  # of the last row the worker may not know yet: it has no drafts

    class SlotAllocator:
        def __contains__(self, name: str) -> bool:
            return name in requested

        def request_of(self, name: str) -> Any:
            return SimpleNamespace(options=RequestOptions(verifier=requested[name], acceptance_threshold=0.25))

    drafting = counting(allocator=SlotAllocator())
    baseline = torch.full((3, 3), 7, dtype=torch.int32)
    lenient = Lenient()
    found = decide_v1(
        batch, 0, False, ServerVerifier(lenient, False, engine_seed=0), drafting, lambda *_, **__: baseline
    )
    assert found.tolist() == [[7, 7, 7], [1, 2, 0], [7, 7, 7]]
    assert lenient.thresholds is not None
    assert lenient.thresholds[1].item() == 0.25
    assert drafting.stage.metrics.snapshot().lossy == LossyCounts(accepted=2, departed=1.0)


# -- V2 -----------------------------------------------------------------------------------------------------------


def decide_v2(
    batch: Sequence[Row],
    seed: int,
    states_distribution: bool,
    server: ServerVerifier,
    drafting: Any = None,
    baseline: Any = None,
    spare: int = 0,
) -> tuple[Tensor, Tensor]:
    targets, drafts = distributions(batch, seed)
    slots = torch.arange(SLOTS).flip(0)[: len(batch)].to(torch.int32)
    by_slot = torch.full((SLOTS, DRAFT_LENGTH, VOCAB), torch.nan)
    temperature = torch.full((SLOTS,), torch.nan)
    seeds = torch.full((SLOTS,), -1)
    for slot, row, distribution in zip(slots.tolist(), batch, drafts, strict=True):
        by_slot[slot, : len(row.draft)] = distribution
        by_slot[slot, len(row.draft) :] = 0.0  # padding
        temperature[slot] = row.temperature
        seeds[slot] = row.seed
    counts = torch.tensor([len(row.draft) + 1 for row in batch])
    decision = verifier_v2.V2Decision(server, drafting)
    decision.all_greedy = not any(row.temperature for row in batch)
    padding = torch.zeros(spare, VOCAB)
    return decision(
        baseline,
        torch.cat([*targets, padding]),
        by_slot if states_distribution else None,
        torch.tensor([token for row in batch for token in (0, *row.draft)] + [0] * spare),
        torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).to(torch.int32),
        torch.tensor([row.length - 1 + j for row in batch for j in range(len(row.draft) + 1)] + [0] * spare),
        slots,
        None,
        None,
        temperature,
        seeds,
        DRAFT_LENGTH,
    )


def test_v2_a_lossy_verifier_decides_for_who_asks() -> None:
    batch = [Row([1, 2], 0.0, 1, 9, 0), Row([1, 2], 0.0, 2, 9, 0)]
    thresholds = torch.tensor([torch.nan, 0.25])
    running = {
        slot: SimpleNamespace(request=SimpleNamespace(options=RequestOptions(verifier=name)))
        for slot, name in ((1, None), (2, "careless"))
    }
    chosen = torch.tensor([False, True])
    slots = SimpleNamespace(verifiers=lambda slots: (chosen, thresholds), occupants=running, version=1)
    drafting = counting(slots=slots)
    baseline = torch.full((2, DRAFT_LENGTH + 1), 7), torch.tensor([1, 1], dtype=torch.int32)
    lenient = Lenient()
    server = ServerVerifier(lenient, False, engine_seed=0)
    sampled, counts = decide_v2(batch, 0, False, server, drafting, lambda *_, **__: baseline)
    assert lenient.thresholds is thresholds
    assert drafting.stage.metrics.snapshot().lossy == LossyCounts(accepted=2, departed=1.0)
    assert sampled[0].tolist() == [7] * (DRAFT_LENGTH + 1)
    assert sampled[1, :2].tolist() == [1, 2]
    assert counts.tolist() == [1, 3]
    del running[2]
    slots.version = 2
    lenient.thresholds = None
    assert decide_v2(batch, 0, False, server, drafting, lambda *_, **__: baseline) is baseline
    assert lenient.thresholds is None, "it ran though no request enables it"


# -- both ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", ["v1", "v2"])
@given(batches, numbers, st.booleans(), st.integers(0, 2))
def test_rows_are_verified_as_if_alone(
    runner: str, batch: list[Row], seed: int, states_distribution: bool, spare: int
) -> None:
    if runner == "v1":
        assume(any(row.draft for row in batch))  # the others are warm-ups
        found = decide_v1(batch, seed, states_distribution, reference())
        assert found.dtype is torch.int32
        emitted = [[token for token in ids if token >= 0] for ids in found.tolist()]
    else:
        sampled, counts = decide_v2(batch, seed, states_distribution, reference(), spare=spare)
        assert (sampled.shape, sampled.dtype, counts.dtype) == (
            (len(batch), DRAFT_LENGTH + 1),
            torch.int64,
            torch.int32,
        )
        assert (sampled >= 0).all()
        emitted = [ids[:count] for ids, count in zip(sampled.tolist(), counts.tolist(), strict=True)]
    for row, target, draft, ids in zip(batch, *distributions(batch, seed), emitted, strict=True):
        stated: dict[str, Any] = {}
        if runner == "v1":  # the engine has drawn the bonus token
            target[-1] = -torch.inf
            target[-1, row.bonus] = 0.0
            stated = {"distribution": Distribution.PROBS, "draft_probs": draft.softmax(-1)[None]}
        else:
            stated = {"distribution": Distribution.LOGITS, "draft_logits": draft[None] / (row.temperature or 1.0)}
        assert ids == expected(row, target, **stated if states_distribution else {})


def test_large_batches_are_verified_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = [Row([n % VOCAB, 1], 1.0, n, 9 + n, 0) for n in range(5)]
    whole = decide_v2(batch, 3, True, reference())[0]
    sizes = []

    class Counting(ReferenceVerifier):
        def verify(self, draft: Draft, *args: Any) -> Any:
            sizes.append(draft.batch_size)
            return super().verify(draft, *args)

    monkeypatch.setattr(verifier, "MAX_DISTRIBUTION_BYTES", 2 * (DRAFT_LENGTH + 1) * VOCAB * 8)
    parts = decide_v2(batch, 3, True, ServerVerifier(Counting(), True, engine_seed=0))[0]
    assert torch.equal(parts, whole)
    assert sizes == [2, 2, 1]
    cold = [Row([n % VOCAB, 1], 0.0, n, 9 + n, 0) for n in range(5)]
    decide_v2(cold, 3, True, ServerVerifier(Counting(), True, engine_seed=0))
    assert sizes == [2, 2, 1, 5]
    lossy = ServerVerifier(Counting(), False, engine_seed=0)
    target = torch.randn(5, DRAFT_LENGTH + 1, VOCAB)
    greedy = SamplingBatch(torch.zeros(5), all_greedy=True)
    lossy.verify(Draft.allocate(5, DRAFT_LENGTH), TargetLogits.dense(target), greedy, torch.arange(5))
    assert sizes == [2, 2, 1, 5, 2, 2, 1], "of greedy rows a lossy verifier needs the distributions too"


def test_without_a_decision_the_engines_own_serves() -> None:
    module = SimpleNamespace(rejection_sample=lambda text: f"engine {text}")
    verifier.replace_in(module)
    verifier.replace_in(module)
    plain = lambda: module.rejection_sample("a")  # noqa: E731
    ours = verifier.wrap_method(lambda original, text: f"ours, not {original(text)}", plain)
    assert (plain(), ours(), plain()) == ("engine a", "ours, not engine a", "engine a")


def test_what_cannot_be_verified_rightly_is_refused() -> None:
    def config(method: str, ranks: int) -> Any:
        return SimpleNamespace(
            speculative_config=SimpleNamespace(rejection_sample_method=method),
            parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
        )

    lossy = VerifierSpec(name="careless", factory=AcceptsAlways, summary="keeps all", caps=VerifierCaps(lossless=False))
    exact = VerifierSpec(
        name="exact", factory=ReferenceVerifier, summary="keeps what it may", caps=VerifierCaps(lossless=True)
    )
    verifier.refuse_unsupported(config("standard", 1), lossy)
    verifier.refuse_unsupported(config("standard", 2), exact)
    with pytest.raises(EngineError, match=r"'careless'.*tensor_parallel_size 2"):
        verifier.refuse_unsupported(config("standard", 2), lossy)
    with pytest.raises(EngineError, match=r"two verifiers are named.*'exact'.*'block'"):
        verifier.refuse_unsupported(config("block", 1), exact)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("states_distribution", [False, True])
def test_v2_reads_nothing_back(temperature: float, states_distribution: bool) -> None:
    """Tensors on "meta" hold no values, so code that reads one raises."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    decision = verifier_v2.V2Decision(reference(), None)
    decision.all_greedy = temperature == 0
    sampled, counts = decision(
        None,
        empty(6, VOCAB),
        empty(SLOTS, DRAFT_LENGTH, VOCAB) if states_distribution else None,
        empty(6, dtype=torch.int64),
        empty(4, dtype=torch.int32),
        empty(6, dtype=torch.int64),
        empty(3, dtype=torch.int32),
        None,
        None,
        empty(SLOTS),
        empty(SLOTS, dtype=torch.int64),
        DRAFT_LENGTH,
    )
    assert (sampled.shape, counts.shape) == ((3, DRAFT_LENGTH + 1), (3,))


# -- seeded rows on V2 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_row_emits_what_was_drawn_up_to_the_first_other_draft_token(seed):
    random = Random(seed)
    longest = 4
    lengths = [random.randint(0, longest) for _ in range(random.randint(1, 6))]
    drawn = [[random.randrange(3) for _ in range(length + 1)] for length in lengths]
    drafts = [[random.choice([token, token, random.randrange(-1, 3)]) for token in row[:-1]] for row in drawn]
    inputs = [token for draft in drafts for token in (random.randrange(3), *draft)]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length + 1)
    found, counts = verifier_v2.keep_drawn(
        torch.tensor([token for row in drawn for token in row]),
        torch.tensor(inputs, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        longest,
    )
    assert (found.shape, found.dtype, counts.dtype) == ((len(lengths), longest + 1), torch.int64, torch.int32)
    for row, (tokens, draft) in enumerate(zip(drawn, drafts, strict=True)):
        equal = next((place for place, token in enumerate(draft) if token != tokens[place]), len(draft))
        assert counts[row] == equal + 1
        assert found[row, : equal + 1].tolist() == tokens[: equal + 1]
