"""Steps that find a CUDA graph, according to vLLM's own dispatcher with the sizes that it captures on Hopper."""

from __future__ import annotations

import logging

import pytest
from vllm.config.compilation import CUDAGraphMode
from vllm.config.vllm import VllmConfig
from vllm.v1.attention.backend import AttentionCGSupport

from specplug.types.caps import DraftLengthChange, Ragged
from specplug_vllm.config import engine_caps
from specplug_vllm.startup import graphs
from tests.engines.vllm.graphs import dispatcher, mode_of, vllm_config


@pytest.fixture(autouse=True, scope="module")
def installed():
    """The patch, as vLLM's plug-ins make it."""
    graphs.install(VllmConfig)


def sized(*args, **kwargs):
    """Return a configuration whose capture sizes vLLM has chosen."""
    found = vllm_config(*args, **kwargs)
    found._set_cudagraph_sizes()
    return found


@pytest.mark.parametrize(("requested", "lengths"), [(8, [0, 1, 3, 7]), (16, [0, 1, 3, 7, 15]), (7, [0, 1, 3, 7])])
@pytest.mark.parametrize("max_num_seqs", [64, 256, 1024])
def test_every_planned_length_finds_a_full_graph_at_every_batch_size(monkeypatch, requested, lengths, max_num_seqs):
    found = sized(requested, max_num_seqs)
    caps = engine_caps(found)
    assert list(caps.captured_draft_lengths) == lengths
    assert (caps.max_draft_length, caps.draft_length_change) == (lengths[-1], DraftLengthChange.CAPTURED)
    manager = dispatcher(monkeypatch, found)
    reach = graphs.captured_lengths(found)
    assert reach == {length: min(512 // (length + 1), max_num_seqs) for length in reversed(lengths)}
    for length, requests in reach.items():
        for batch_size in range(1, requests + 1):
            assert mode_of(manager, [length] * batch_size) == "FULL", (batch_size, length)
        if requests < max_num_seqs:
            assert mode_of(manager, [length] * (requests + 1)) == "NONE"


@pytest.mark.parametrize(
    ("support", "is_lost"),
    [
        (AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE, True),
        (AttentionCGSupport.UNIFORM_BATCH, False),
        (AttentionCGSupport.ALWAYS, False),
    ],
)
def test_a_backend_without_graphs_of_several_tokens_is_warned_of(support, is_lost):
    """vLLM itself resolves the mode, as it does when it knows the backend."""
    found = sized(7, 64)
    before = graphs.captured_lengths(found)
    assert before
    assert graphs.describe_loss(before, found) == ""
    resolve = found.compilation_config.resolve_cudagraph_mode_and_sizes
    resolve(support, "FLASHINFER", uniform_decode_query_len=8, use_v2_model_runner=True, max_num_reqs=64)
    text = graphs.describe_loss(before, found)
    assert ("cudagraph_mode is now" in text) == is_lost == bool(text)
    assert graphs.describe_loss({}, found) == ""


def own(most, max_num_seqs, **others):
    """Return a configuration of vLLM's EAGLE with specplug's plans."""
    return vllm_config(most, max_num_seqs, method="eagle", additional_config={"specplug": {}}, **others)


@pytest.mark.parametrize(
    ("most", "lengths"), [(2, [2, 0]), (3, [3, 1, 0]), (4, [4, 0]), (5, [5, 2, 1, 0]), (7, [7, 3, 1, 0])]
)
@pytest.mark.parametrize("max_num_seqs", [16, 64, 256])
def test_an_engines_drafter_keeps_its_length_and_nearly_every_batch_has_a_graph(
    monkeypatch, most, lengths, max_num_seqs
):
    found = own(most, max_num_seqs)
    found._set_cudagraph_sizes()
    caps = engine_caps(found)
    reach = graphs.captured_lengths(found)
    assert (caps.max_draft_length, list(reach)) == (most, lengths)
    assert caps.ragged is Ragged.PADDED
    manager = dispatcher(monkeypatch, found)
    for length, requests in reach.items():
        without = [size for size in range(1, requests + 1) if mode_of(manager, [length] * size) != "FULL"]
        assert all(size > max_num_seqs - most for size in without)
        assert not without or length < most
    assert len(found.compilation_config.cudagraph_capture_sizes) < 60


def test_an_engines_drafter_on_v1_states_that_its_length_changes():
    found = own(5, 64, v2=False)
    graphs.require_lengths_on_v1(found)
    assert found.speculative_config.num_speculative_tokens_per_batch_size == [(1, 64, 5)]
    for other in (own(5, 64), own(5, 64, v2=False, data_parallel=2), vllm_config(5, 64, v2=False)):
        graphs.require_lengths_on_v1(other)
        assert other.speculative_config.num_speculative_tokens_per_batch_size is None


def test_another_length_than_requested_is_logged_in_one_line_and_set_everywhere(caplog):
    with caplog.at_level(logging.WARNING, logger="specplug"):
        sized(7, 64)
        assert not caplog.records
        found = sized(8, 64, additional_config={"specplug": {"num_speculative_tokens": 8}, "x": 1})
    assert found.additional_config == {"specplug": {"num_speculative_tokens": 7}, "x": 1}
    (record,) = caplog.records
    assert "num_speculative_tokens is 7 instead of 8" in record.getMessage()
    assert "7, 3, 1, 0" in record.getMessage()
    assert graphs.captured_lengths(found) == graphs.captured_lengths(sized(8, 64, data_parallel=2)), (
        "dense models' ranks are engines"
    )


@pytest.mark.parametrize(
    "others",
    [
        {"v2": False},
        {"data_parallel": 2, "experts": True},
        {"cuts": True},
        {"mode": CUDAGraphMode.NONE},
        {"mode": CUDAGraphMode.PIECEWISE},
        {"mode": CUDAGraphMode.FULL},
        {"max_num_seqs": 3},
        {"lengths": [[1, 4, 8], [5, 64, 2]]},
    ],
    ids=str,
)
def test_other_launches_are_left_alone(others):
    found = sized(8, **{"max_num_seqs": 64, **others})
    assert found.speculative_config.num_speculative_tokens == 8
    assert found.speculative_config.num_speculative_tokens_per_batch_size == others.get("lengths")
    expected = (2, 8) if "lengths" in others else (0, 8) if "experts" in others else ()
    assert engine_caps(found).captured_draft_lengths == expected
