"""Workarounds for vLLM's rejection sampling, most of them for V1 on a CPU: its functions, without an engine."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from specplug_vllm.worker import workarounds
from tests.engines.vllm.host import answer_for_llvmlite


@pytest.fixture(scope="module")
def module():
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    answer_for_llvmlite()
    current_platform.register_triton_kernel_overrides()  # as the runner does
    current_platform.import_kernels()
    names = ("expand_batch_to_tokens", "apply_sampling_constraints", "rejection_sample")
    baseline = {name: getattr(rejection_sampler, name) for name in names}
    forward = rejection_sampler.RejectionSampler.forward
    workarounds.install()
    workarounds.install()
    yield rejection_sampler
    for name, function in baseline.items():
        setattr(rejection_sampler, name, function)
    rejection_sampler.RejectionSampler.forward = forward


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_each_draft_token_gets_its_rows_parameter(module, dtype):
    x = torch.tensor([4, 0, 6], dtype=dtype)
    for counts in itertools.product(range(3), repeat=3):
        ends = torch.tensor(counts).cumsum(0).to(torch.int32)
        found = module.expand_batch_to_tokens(x, ends, sum(counts), replace_from=0, replace_to=1)
        assert found.dtype is dtype
        assert found.tolist() == [value for count, value in zip(counts, (4, 1, 6), strict=True) for _ in range(count)]


def test_steps_without_drafts_pass(module):
    class Metadata:
        all_greedy = False
        temperature = torch.ones(2)
        top_p = None
        top_k = torch.full((2,), 3, dtype=torch.int32)

    logits = torch.zeros(0, 8)
    assert module.apply_sampling_constraints(logits, torch.zeros(2, dtype=torch.int32), Metadata) is logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafts", [[], [5]], ids=["no drafts", "a draft"])
def test_steps_without_drafts_emit_what_vllm_emits(module, temperature, drafts):
    greedy = temperature == 0
    metadata = SimpleNamespace(
        all_greedy=greedy, all_random=not greedy, temperature=torch.full((2,), temperature), generators={}
    )
    certain = torch.full((len(drafts), 8), -torch.inf).index_fill(1, torch.tensor([5]), 0.0)
    counts = [0, len(drafts)]
    ends = torch.tensor(counts).cumsum(0).int()
    bonus = torch.tensor([[3], [4]], dtype=torch.int32)
    given = (torch.tensor(drafts, dtype=torch.int32), counts, len(drafts), ends, None, certain, bonus, metadata)
    found = module.rejection_sample(*given)
    expected = module.rejection_sample.__wrapped__(*given)
    assert found.dtype is expected.dtype
    assert found.tolist() == expected.tolist() == ([[3, -1], [5, 4]] if drafts else [[3], [4]])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_steps_without_drafts_are_sampled_as_vllm_samples_them_without_a_copy(module, temperature):
    """The rows' generators draw the same numbers; only the logits themselves may be written to."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    greedy = temperature == 0
    logits = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    found = []
    for forward in (module.RejectionSampler.forward, module.RejectionSampler.forward.__wrapped__):
        sampling = SamplingMetadata(
            temperature=torch.full((3,), temperature),
            all_greedy=greedy,
            all_random=not greedy,
            top_p=None,
            top_k=None,
            generators={row: torch.Generator().manual_seed(row) for row in range(3)},
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=torch.zeros(3),
            presence_penalties=torch.zeros(3),
            repetition_penalties=torch.ones(3),
            output_token_ids=[[], [], []],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(),
        )
        metadata = SpecDecodeMetadata.make_dummy([[], [], []], torch.device("cpu"))
        metadata.bonus_logits_indices = torch.arange(3)
        given = logits.clone()
        found.append(forward(module.RejectionSampler(Sampler()), metadata, None, given, sampling))
    assert found[0].sampled_token_ids.tolist() == found[1].sampled_token_ids.tolist()
    assert found[0].sampled_token_ids.dtype is found[1].sampled_token_ids.dtype
    assert found[0].logprobs_tensors is found[1].logprobs_tensors is None


@pytest.mark.parametrize("by_row", [False, True], ids=["baseline", "mended by vLLM itself"])
def test_every_row_of_logits_gets_its_requests_adapter(by_row):
    drafts = {"a": [5, 6], "c": [7]}

    class State:
        def make_lora_inputs(self, req_ids, counts):
            named = (1, 0, 2)
            return (1, 1, 1, 0, 2, 2) if by_row else named, tuple(counts), "mapping"

    state = State()
    workarounds.apply_adapters_by_row(state, lambda: drafts)
    assert state.make_lora_inputs(["a", "b", "c"], [3, 1, 2]) == ((1, 1, 1, 0, 2, 2), (3, 1, 2), "mapping")


def test_given_tokens_take_the_place_of_the_likeliest_in_their_requests_positions():
    """Two requests with three positions each: the first asks for its likeliest token, the second for three others."""
    from vllm.v1.sample.sampler import Sampler

    torch.manual_seed(0)
    logprobs = torch.randn(6, 8).log_softmax(-1)
    emitted = torch.tensor([1, 2, 3, 4, 5, 6])
    given = [4, 0, 6]
    with torch.compiler.set_stance("force_eager"), workarounds._looking_up((2, {1: given})):
        found = workarounds._gather_logprobs(Sampler.gather_logprobs, logprobs, 1, emitted)
    assert found.logprob_token_ids[:, 0].tolist() == emitted.tolist()
    assert found.logprob_token_ids[:3, 1].tolist() == logprobs[:3].argmax(-1).tolist()
    assert found.logprobs[:3, 2:].isneginf().all()
    assert found.logprob_token_ids[3:, 1:].tolist() == [given] * 3
    assert torch.equal(found.logprobs[3:], logprobs[3:].gather(1, found.logprob_token_ids[3:].long()))


def test_ranks_that_share_a_batch_agree_on_columns_for_given_tokens():
    """vLLM leaves the ids out of this in a step with drafts.  Ranks that sample so do not run on a CPU."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS

    sampler = SimpleNamespace(
        sampling_states=SimpleNamespace(max_num_logprobs=lambda slots: NO_LOGPROBS),
        logprob_token_ids_state=SimpleNamespace(max_num_token_ids=lambda slots: 3),
    )
    found = workarounds._get_logprobs_dims(Sampler.get_logprobs_dims, sampler, [0], include_token_ids=False)
    assert found == (0, 3)
