"""Two tensor-parallel ranks: they hold the same drafts, whatever happens on one of them, and the text is right.

Rank 0 drafts for both, or each for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specplug.errors import EngineError
from specplug_vllm.startup.refusals import refuse_unsupported
from specplug_vllm.worker.drafting import ranks
from tests.engines.engines import Engine, HostDied, Raised
from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.vllm.inside import generate
from tests.engines.vllm.test_engine_drafts_server import config

PROMPTS = [list(prompt) for prompt in prompts()[:4]]
PARAMS = {"max_tokens": 10}
BY_REFERENCE = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # functions travel to the workers by name
SETTINGS = {
    "proposer": "raises-device",
    "extra_proposers": ["raises"],
    "policy": "fixed",
    "options": {"raises-device": {"rank": 1}, "raises": {"rank": 0, "every": 3}},
    "faults": {"max_consecutive": 1000},
}


EACH = {"proposer": "ngram", "policy": "fixed", "draft_ranks": "each"}


MIXED = [
    {
        "max_tokens": 6 + 3 * row,
        **({} if row % 3 == 0 else {"temperature": 0.8, "seed": row, "n": 1 + row % 2}),
        **more,
    }
    for row in range(4)
    for more in (
        {"specplug": {"references": [{"token_ids": PROMPTS[row][:9] * 2}]}},
        {"stop": ["e"], "specplug": {"num_speculative_tokens": 2}},
        {"stop_token_ids": [5, 9], "specplug": {"store": False}},
    )
]
"""Parameters of twelve requests, of which eight run at a time."""


@pytest.fixture(scope="module")
def two_ranks(engine: Callable[..., Engine]) -> Callable[..., Engine]:
    def make(runner: str, settings: dict[str, Any] = SETTINGS) -> Engine:
        return engine(
            runner,
            settings,
            draft_length=4,
            in_process=False,
            tensor_parallel_size=2,
            environment=BY_REFERENCE,
            name=f"two ranks {runner}",
        )

    return make


TRUTH = [greedy(tuple(prompt), PARAMS["max_tokens"]) for prompt in PROMPTS]


def accepted(found: dict[str, Any]) -> int:
    return found["status"][0]["metrics"]["total"]["accepted"]


@pytest.mark.slow  # the ranks of V2, which is vLLM's default, are in `make test`
def test_v1_drafts_on_rank_0_alone_and_the_text_is_right(two_ranks):
    found = two_ranks("v1").call(generate_and_hold, prompts=PROMPTS, params=PARAMS)
    assert_greedy(PROMPTS, TRUTH, found["answers"])
    assert [rank["leads"] for rank in found["held"]] == [True, False]
    assert [status["drafts"] for status in found["status"]] == [True, False]
    assert accepted(found) > 0
    assert "raises-device" not in found["status"][0]["metrics"]["faults"], "it ran as rank 1"


def test_v2_a_proposer_that_raises_on_rank_0_costs_drafts_on_both(two_ranks):
    params = {**PARAMS, "specplug": {"proposer": "raises"}}
    found = two_ranks("v2").call(generate_and_hold, prompts=PROMPTS, params=params)
    assert_greedy(PROMPTS, TRUTH, found["answers"])
    first, second = found["held"]
    assert (first["leads"], second["leads"]) == (True, False)
    assert first["drafts"] == second["drafts"]
    assert any(map(any, first["drafts"])), "nobody drafted"
    assert found["status"][0]["metrics"]["faults"]["raises"]["raised"] > 0
    assert accepted(found) > 0


@pytest.mark.slow
def test_v2_each_rank_drafts_for_itself_and_compares_checksums(two_ranks):
    found = two_ranks("v2", EACH).call(generate_and_hold, prompts=PROMPTS, params=PARAMS, every=1)
    assert_greedy(PROMPTS, TRUTH, found["answers"])
    first, second = found["held"]
    assert (first["leads"], second["leads"]) == (True, True)
    assert first["drafts"] == second["drafts"]
    assert accepted(found) > 0
    assert [status["drafts"] for status in found["status"]] == [True, True]
    assert [status for status in found["status"] if "metrics" in status] == found["status"][:1]
    for rank in found["held"]:
        assert rank["sent"]
        assert set(rank["sent"]) == {CHECKSUMS}, "drafts were sent"
    for _ in range(2):  # slots change hands, responses are drafted from, siblings share; some requests wait
        found = two_ranks("v2", EACH).call(generate_and_hold, prompts=PROMPTS * 3, params=MIXED, every=1)
        first, second = found["held"]
        assert first["drafts"] == second["drafts"]
        assert len(first["sent"]) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "stated"),
    [
        ("_count_differently", "differ from rank 0's; found differences in ngram's hit rates; expected none"),
        ("_fail_at_a_step_of_rank_0", "ngram: it raised ValueError: planted. This rank ends"),
        ("_fail_beside_the_proposer", "ValueError: planted. This rank ends"),
    ],
)
def test_v2_an_engine_ends_if_one_rank_of_those_that_draft_differs(two_ranks, plant, stated):
    ranks_that_draft = two_ranks("v2", EACH)
    with pytest.raises((Raised, HostDied)):
        ranks_that_draft.call(generate_and_hold, prompts=PROMPTS, params=PARAMS, every=2, plant=plant)
    log = ranks_that_draft.log()
    ranks_that_draft.stop()
    assert stated in log


def test_each_rank_drafts_on_v2_alone():
    stated = config("custom_class", {"draft_ranks": "each"}, ranks=2, model="specplug_vllm.Proposer")
    refuse_unsupported(stated)
    stated.use_v2_model_runner = False
    with pytest.raises(EngineError, match=r"V1 takes all ranks' drafts from the first one; found draft_ranks 'each'"):
        refuse_unsupported(stated)
    stated.parallel_config.tensor_parallel_size = 1
    refuse_unsupported(stated)


# -- inside the front process: workers get these functions by name ----------------------------------------------------


CHECKSUMS = 5
"""Numbers that ranks compare: of drafts, texts, requests, hit rates and responses."""


def generate_and_hold(
    llm: Any, prompts: list[list[int]], params: dict[str, Any], every: int = 0, plant: str | None = None
) -> dict[str, Any]:
    """Generate, and return the "answers", what every rank "held" at the end, and its "status".

    Ranks that each draft compare their checksums `every` so many steps, and may have a fault planted.
    """
    if every:
        llm.collective_rpc(_watch, args=(every,))
    if plant is not None:
        llm.collective_rpc(globals()[plant])
    answers = generate(llm, prompts, params)
    held, status = (list(llm.collective_rpc(method)) for method in (_held, "specplug_status"))
    return {"answers": answers, "held": held, "status": status}


def _held(worker: Any) -> dict[str, Any]:
    runner = worker.model_runner
    drafter = getattr(runner, "speculator", None) or runner.drafter
    states = getattr(runner, "req_states", None)
    drafts = None if states is None else states.draft_tokens.tolist()
    sent = getattr(drafter, "sent_sizes", None)
    return {"rank": worker.rank, "leads": drafter.drafting is not None, "drafts": drafts, "sent": sent}


def _watch(worker: Any, every: int) -> None:
    """Compare checksums often, and note the size of what a rank broadcasts for specplug."""
    drafter = worker.model_runner.speculator
    check = drafter.rank_check
    drafter.sent_sizes = []
    assert drafter._broadcast is None
    send = check._broadcast

    def noting(tensor: torch.Tensor) -> None:
        drafter.sent_sizes.append(tensor.numel())
        send(tensor)

    check.every = every
    check._broadcast = noting


def _count_differently(worker: Any) -> None:
    """Change one of rank 1's counts."""
    if worker.rank:
        worker.model_runner.speculator.drafting.stage.proposers["ngram"].steps.state.counts[3, 1] += 1


def _fail_at_a_step_of_rank_0(worker: Any) -> None:
    """Let rank 0's next step of its proposer raise."""
    if not worker.rank:
        (runner,) = worker.model_runner.speculator.drafting.stage.runners
        runner.handle.step = _raise


def _fail_beside_the_proposer(worker: Any) -> None:
    """Let rank 1's next step raise where no plug-in's faults are contained; vLLM goes on after such an exception."""
    if worker.rank:
        worker.model_runner.speculator.steps.take = _raise


def _raise(*_: Any, **__: Any) -> None:
    raise ValueError("planted")


# -- messages between ranks, of stand-ins ----------------------------------------------------------------------------


class Group:
    """A group of ranks that notes which of its two ways a tensor takes."""

    def __init__(self, world_size=2, **communicator):
        self.taken: list[tuple[str, torch.Tensor, int]] = []
        self.world_size = world_size
        self.rank_in_group = 1
        self.device_communicator = SimpleNamespace(**communicator) if communicator else None
        if communicator:
            self.device_communicator.broadcast = lambda tensor, src: self.taken.append(("nccl", tensor, src))

    def broadcast(self, input_, src):
        self.taken.append(("torch", input_, src))


@pytest.mark.parametrize(
    ("group", "way"),
    [
        (Group(pynccl_comm=SimpleNamespace(disabled=False)), ["nccl"]),
        (Group(pynccl_comm=SimpleNamespace(disabled=True)), ["torch"]),
        (Group(pynccl_comm=None), ["torch"]),
        (Group(shared_memory=True), ["torch"]),  # a communicator of another platform
        (Group(), ["torch"]),
        (Group(world_size=1, pynccl_comm=SimpleNamespace(disabled=False)), []),
    ],
)
def test_drafts_go_through_the_communicator_that_is_warm(group, way, monkeypatch):
    monkeypatch.setattr("vllm.distributed.get_tp_group", lambda: group)
    tensor = torch.arange(3)
    (rank, broadcast) = ranks()
    if broadcast is not None:
        broadcast(tensor)
    assert [name for name, _, _ in group.taken] == way
    assert all(sent is tensor and source == 0 for _, sent, source in group.taken)
    assert rank == 1
