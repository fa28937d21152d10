"""The proposer `crosstok` on the engine's device keeps the contract, reads nothing back and drafts what its model says.

It runs on any device; here on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specplug.demo import model_path
from specplug.draft_model.device.loop import size_for, sizes
from specplug.testing.contract import ProposerContract
from specplug.testing.driver import DraftedStep, Driver
from specplug.types.draft import Draft
from specplug.types.request import Lifecycle
from specplug_crosstok.acceptance import Acceptance
from specplug_crosstok.device.acceptance import DeviceAcceptance
from tests.draft_model.recorded import RecordedGraphs
from tests.draft_model.tools import greedy
from tests.pipeline.test_no_sync import Watch
from tests.proposers.crosstok_contract import SampledRows
from tests.proposers.crosstok_tools import OTHER, SAME, VOCAB, Warm, device_spec, encoded, options, tokenizer

CODE = "def add(first, second):\n    return first + second\n\n\ndef sub("
TEXTS = (encoded(CODE), encoded("Ünïcödé 天地 👍 is text"), encoded("x"))


class TestContractOfOneTokenizer(ProposerContract):
    spec, options, vocab_size, texts = device_spec(), options(SAME), VOCAB, TEXTS


class TestContractOfTwoTokenizers(ProposerContract):
    spec, options, vocab_size, texts = device_spec(), options(OTHER), VOCAB, TEXTS


class TestSampledRows(SampledRows):
    spec, texts = device_spec(), TEXTS


def started(draft: str = OTHER, kind: type[Driver] = Driver, **more: object) -> Driver:
    """Return a driver with all texts."""
    driver = kind(device_spec(), options(draft, **more), vocab_size=VOCAB, max_draft_length=8, max_length=600)
    for name, ids in zip("abc", TEXTS, strict=True):
        driver.start(name, ids)
    return driver


def drafted(draft: str, ids: list[int], limit: int = 4, *, num_steps: int = 1, **more: object) -> list[int]:
    """Return the draft after a context, by a proposer that has seen no other, at its last step."""
    with Driver(device_spec(), options(draft, **more), vocab_size=VOCAB, max_draft_length=16, max_length=600) as driver:
        driver.start("a", ids)
        return [list(driver.step(limit).by_request()["a"].token_ids) for _ in range(num_steps)][-1]


def test_with_one_tokenizer_the_draft_is_the_models_own_continuation() -> None:
    for ids in TEXTS:
        assert drafted(SAME, ids, 6) == greedy(str(model_path(SAME)), ids, 6)


def test_with_two_the_text_is() -> None:
    """All of it but the end, where the draft of the last token breaks off."""
    own = tokenizer(OTHER)
    continued = own.decode(greedy(str(model_path(OTHER)), own.encode(CODE, add_special_tokens=False), 12))
    found = drafted(OTHER, encoded(CODE), 4)
    assert len(found) >= 3
    assert continued.startswith(tokenizer().decode(found[:-1]))


def test_tli_drafts_only_what_both_vocabularies_have() -> None:
    with started(route="tli") as driver:
        known = set(driver.proposer.draft_vocab.tolist())
        assert 256 < len(known) < 1024
        for row in driver.step(8).by_request().values():
            assert known.issuperset(row.token_ids)
            assert len(row.token_ids) == 8


@pytest.mark.parametrize("draft", [SAME, OTHER])
def test_a_long_prompt_is_caught_up_with_in_chunks(draft: str) -> None:
    ids = (TEXTS[0] * 40)[:500]
    with Driver(device_spec(), options(draft, prefill_chunk=128), vocab_size=VOCAB, max_length=600) as driver:
        driver.start("long", ids)
        driver.start("short", TEXTS[0])
        steps = [driver.step(3).by_request() for _ in range(12)]
    lengths = [[len(step[name].token_ids) for step in steps] for name in ("long", "short")]
    first = next(step for step, length in enumerate(lengths[0]) if length)
    assert 3 <= first <= 8
    assert lengths[1] == [3] * 12
    assert list(steps[-1]["long"].token_ids) == drafted(draft, ids, 3, num_steps=5)


def test_a_text_longer_than_the_window_is_drafted_for() -> None:
    """Its newest half is computed anew each time that the window is full."""
    with Driver(device_spec(), options(SAME, max_context=64), vocab_size=VOCAB, max_length=600) as driver:
        driver.start("a", TEXTS[0])
        found = []
        for _ in range(60):
            step = driver.step(4)
            ids = step.by_request()["a"].token_ids
            found.append(len(ids))
            driver.extend("a", [*ids, 5][:5])
    assert len(driver.text("a")) > 200
    assert found.count(4) > 40


def test_requests_beyond_its_caches_get_no_drafts_until_one_is_free() -> None:
    with Driver(device_spec(), options(SAME, max_requests=2), vocab_size=VOCAB) as driver:
        for name in "abc":
            driver.start(name, TEXTS[0])
        assert [len(row.token_ids) for row in driver.step(3).by_request().values()] == [3, 3, 0]
        driver.leave("a", Lifecycle.FINISHED)
        driver.start("d", TEXTS[0])
        rows = driver.step(3).by_request()
        assert [len(rows[name].token_ids) for name in "bcd"] == [3, 0, 3]


@pytest.mark.parametrize("draft", [SAME, OTHER])
def test_an_id_of_no_token_costs_its_request_its_drafts_and_no_other(draft: str) -> None:
    with Driver(device_spec(), options(draft), vocab_size=VOCAB + 256) as driver:
        driver.start("sound", TEXTS[0])
        driver.start("strange", [*TEXTS[0], VOCAB + 3, 5])
        for _ in range(3):
            rows = driver.step(3).by_request()
            assert (len(rows["sound"].token_ids), rows["strange"].token_ids) == (3, ())


class Recording:
    """Steps of a driver whose proposer runs recorded graphs, beside those of one that runs plain functions."""

    def __init__(self, draft: str, kind: type[Driver]) -> None:
        self.plain, self.recorded = started(draft, kind), started(draft, kind)
        self.graphs = RecordedGraphs()
        step = self.recorded.proposer._step  # type: ignore[attr-defined]
        step.loop.graphs = self.graphs
        with torch.inference_mode():
            step.loop.capture(step)

    def steps(self) -> Iterator[tuple[DraftedStep, DraftedStep]]:
        """Yield steps of both, through starts, ends and growing texts."""
        for number in range(14):
            for driver in (self.plain, self.recorded):
                if number == 5:
                    driver.leave("a")
                    driver.start("d", TEXTS[0][:9])
                if number == 8:
                    driver.start("e", TEXTS[0] * 3)
            length = (4, 2, 8)[number % 3]
            pair = self.plain.step(length), self.recorded.step(length)
            yield pair
            for driver, step in zip((self.plain, self.recorded), pair, strict=True):
                answers = {
                    name: [*row.token_ids[: number % 4], 7, 8][: 1 + number % 4]
                    for name, row in pair[0].by_request().items()
                }
                driver.settle(step, answers)


@pytest.mark.parametrize("draft", [SAME, OTHER])
@pytest.mark.parametrize("kind", [Driver, Warm])
def test_graphs_draft_what_plain_functions_do(draft: str, kind: type[Driver]) -> None:
    run = Recording(draft, kind)
    total = 0
    for plain, recorded in run.steps():
        expected, found = plain.by_request(), recorded.by_request()
        assert {name: row.token_ids for name, row in found.items()} == {
            name: row.token_ids for name, row in expected.items()
        }
        torch.testing.assert_close(recorded.draft.confidence, plain.draft.confidence)
        total += sum(len(row.token_ids) for row in found.values())
    assert total > 80
    kinds = [key[0] for key in run.graphs.replayed]
    assert kinds.count("begin") == kinds.count("first") == kinds.count("finish") == 14
    assert kinds.count("further") > 28


@pytest.mark.parametrize("draft", [SAME, OTHER])
def test_a_steady_step_reads_nothing_back_and_copies_nothing_in(draft: str) -> None:
    """Learning included.  What a GPU would run as graphs is counted apart."""
    with started(draft, Warm) as driver:
        step = driver.proposer._step  # type: ignore[attr-defined]
        for number in range(6):
            if number < 3:
                driver.settle(driver.step(4), {name: [5, 6, 7] for name in "abc"})
                continue
            batch, draft_length = driver.batch(), 4
            limits = torch.full((3,), 4, dtype=torch.int32)
            draft_of = Draft.allocate(
                3,
                draft_length,
                distribution=driver.caps.distribution,
                draft_vocab=driver.proposer.draft_vocab,
                sources=driver.proposer.sources,
            )
            graphs: list[Any] = []
            inside = Watch()
            step.loop.graphs.run = lambda key, function: (graphs.append(key), _under(inside, function))  # noqa: B023
            with torch.inference_mode(), Watch() as watch:
                driver.proposer.step(batch, limits, draft_of)
            assert watch.found == inside.found == []
            assert bool(draft_of.lengths.all())
            assert [key[0] for key in graphs][:2] == ["begin", "first"]
            assert watch.launches < 100


def _under(watch: Watch, function: Any) -> None:
    with torch.utils._python_dispatch._disable_current_modes(), watch:
        function()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.lists(st.floats(0, 1), min_size=3, max_size=3), st.integers(0, 3), st.integers(0, 3)
        ),
        max_size=30,
    )
)
def test_acceptance_is_that_of_the_host(drafts: list[tuple[int, list[float], int, int]]) -> None:
    plain, device = Acceptance(3), DeviceAcceptance(3, torch.device("cpu"))
    for kind, probabilities, tested, accepted in drafts:
        kinds = np.array([kind, (kind + 1) % 3, kind], np.int32)
        plain.learn(kinds[:tested], np.array(probabilities)[:tested], min(accepted, tested))
        given_kinds = torch.from_numpy(kinds).long()[None]
        device.learn(
            given_kinds, torch.tensor([probabilities]).double(), torch.tensor([tested]), torch.tensor([accepted])
        )
    assert device.counts().tolist() == plain.counts().tolist()
    levels, kinds = np.linspace(0, 1, 9), np.arange(9, dtype=np.int32) % 3
    found = device.confidence(torch.from_numpy(kinds).long(), torch.from_numpy(levels))
    np.testing.assert_allclose(found.numpy(), plain.confidence(kinds, levels))
    for joined in (False, True):
        one, other = device.by_bucket(slice(1, 3), joined=joined), plain.by_bucket(slice(1, 3), joined=joined)
        np.testing.assert_allclose(one.numpy(), other)


def test_old_verdicts_count_half() -> None:
    device = DeviceAcceptance(1, torch.device("cpu"))
    kinds, probabilities = torch.zeros(100, 50).long(), torch.full((100, 50), 0.9).double()
    for accepted in (0, 0, 0, 50, 50, 50, 50, 50):
        device.learn(kinds, probabilities, torch.full((100,), 50), torch.full((100,), accepted))
    assert float(device.confidence(kinds[0, :1], probabilities[0, :1])) > 0.9


@given(st.integers(1, 300), st.integers(1, 8), st.data())
def test_a_size_is_the_least_that_suffices(most: int, least: int, data: st.DataObject) -> None:
    found = sizes(most, min(least, most))
    assert found[-1] == most
    assert found == sorted(set(found))
    needed = data.draw(st.integers(0, most))
    assert size_for(needed, found) == min(size for size in found if size >= needed)
    assert size_for(most + 5, found) == most
