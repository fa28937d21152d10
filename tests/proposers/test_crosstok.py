"""The proposer `crosstok` keeps the contract, drafts what its model says, and says clearly why it cannot start.

It has two forms: for batches in host memory, and for those on a GPU, which runs on any device; here on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from specplug.assembly import try_to_build
from specplug.draft_model.facts import read_facts
from specplug.errors import PluginError, SettingsError, SpecplugError
from specplug.interfaces import PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.settings import load_settings
from specplug.testing.contract import ProposerContract
from specplug.testing.driver import Driver
from specplug.testing.harness import ProposerHarness
from specplug.tools.demo import model_path
from specplug.types.caps import Distribution, EngineCaps
from specplug.types.request import Lifecycle
from specplug_crosstok import plugin
from specplug_crosstok.acceptance import SOURCES
from specplug_crosstok.loading import declared
from specplug_crosstok.options import CrossTokSettings
from tests.draft_model.tools import greedy
from tests.proposers.crosstok_tools import (
    CODE,
    FORMS,
    OTHER,
    SAME,
    TEXTS,
    VOCAB,
    Warm,
    encoded,
    options,
    registered,
    tokenizer,
)

pairs = pytest.mark.parametrize("draft", [SAME, OTHER])


class CrossTokContract(ProposerContract):
    """With the target's tokenizer and with another one."""

    vocab_size, texts = VOCAB, TEXTS

    @pytest.fixture(autouse=True, params=[SAME, OTHER])
    def _pair(self, request: pytest.FixtureRequest) -> None:
        self.options = options(request.param)


class TestContract(CrossTokContract):
    spec = FORMS["host"]


class TestContractOnDevice(CrossTokContract):
    spec = FORMS["device"]


class SampledRows(ProposerHarness):
    """The clauses that concern distributions; drafts of other slots and generations are other draws."""

    vocab_size, driver_type = VOCAB, Warm

    @pytest.fixture(autouse=True, params=[(SAME, "auto"), (OTHER, "auto"), (OTHER, "tli")], ids=" ".join)
    def _route(self, request: pytest.FixtureRequest) -> None:
        self.options = options(request.param[0], route=request.param[1])

    test_drafts_are_well_formed = ProposerContract.test_drafts_are_well_formed
    test_does_not_depend_on_the_order_of_rows = ProposerContract.test_does_not_depend_on_the_order_of_rows
    test_works_through_the_pipeline = ProposerContract.test_works_through_the_pipeline

    def test_draws_are_stated_and_others_are_not(self) -> None:
        """Only sampled rows have drawn tokens, and all of those are common ids."""
        with self.driver() as driver:
            steps = [step for step in self.steps(driver) if bool(step.draft.lengths.any())]
        drawn = 0
        for step in steps:
            inside, draft = step.draft.mask(), step.draft
            assert draft.drawn is not None
            assert draft.draft_logits is not None
            assert draft.draft_vocab is not None
            is_drawn = inside & draft.drawn
            assert not is_drawn[step.batch.temperature == 0].any()
            assert bool((draft.source[is_drawn] == SOURCES.index("common ids")).all())
            for row, place in is_drawn.nonzero().tolist():
                column = draft.draft_vocab.tolist().index(int(draft.token_ids[row, place]))
                assert draft.draft_logits[row, place, column] > -torch.inf
            drawn += int(is_drawn.sum())
        assert drawn > 20


class TestSampledRows(SampledRows):
    spec, texts = FORMS["host"], TEXTS


class TestSampledRowsOnDevice(SampledRows):
    spec, texts = FORMS["device"], TEXTS


class Form:
    """One of the forms.

    Args:
        name: of `FORMS`.
    """

    def __init__(self, name: str) -> None:
        self._spec = FORMS[name]

    def driver(self, draft: str, *, kind: type[Driver] = Driver, vocab_size: int = VOCAB, **more: object) -> Driver:
        """Return a driver of a proposer that has seen no request."""
        chosen = options(draft, **more)
        return kind(self._spec, chosen, vocab_size=vocab_size, max_draft_length=16, max_length=600)

    def drafted(self, draft: str, ids: list[int], limit: int = 4, *, num_steps: int = 1, **more: object) -> list[int]:
        """Return the draft after a context, by a proposer that has seen no other, at its last step."""
        with self.driver(draft, **more) as driver:
            driver.start("a", ids)
            return [list(driver.step(limit).by_request()["a"].token_ids) for _ in range(num_steps)][-1]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    return Form(request.param)


def test_with_one_tokenizer_the_draft_is_the_models_own_continuation(form: Form) -> None:
    for ids in TEXTS:
        assert form.drafted(SAME, ids, 6) == greedy(str(model_path(SAME)), ids, 6)


@pytest.mark.parametrize("text", ["import", "The value of", CODE])
def test_with_two_the_text_is(form: Form, text: str) -> None:
    """All of it but the end, where the draft of the last token breaks off; in the tokens of the target's tokenizer."""
    own = tokenizer(OTHER)
    continued = own.decode(greedy(str(model_path(OTHER)), own.encode(text, add_special_tokens=False), 40))
    found = form.drafted(OTHER, encoded(text), 12, route="slem")
    assert len(found) >= 8
    assert continued.startswith(tokenizer().decode(found))
    assert found[:-1] == encoded(tokenizer().decode(found))[: len(found) - 1]


def test_tli_drafts_only_what_both_vocabularies_have(form: Form) -> None:
    with form.driver(OTHER, route="tli") as driver:
        known = set(driver.proposer.draft_vocab.tolist())
        assert 256 < len(known) < 1024
        for index, ids in enumerate(TEXTS):
            driver.start(str(index), ids)
        for row in driver.step(8).by_request().values():
            assert known.issuperset(row.token_ids)
            assert len(row.token_ids) == 8


def test_requests_beyond_its_caches_get_no_drafts_until_one_is_free(form: Form) -> None:
    with form.driver(SAME, max_requests=2) as driver:
        for name in "abc":
            driver.start(name, TEXTS[0])
        assert [len(row.token_ids) for row in driver.step(3).by_request().values()] == [3, 3, 0]
        driver.leave("a", Lifecycle.FINISHED)
        driver.start("d", TEXTS[0])
        rows = driver.step(3).by_request()
        assert [len(rows[name].token_ids) for name in "bcd"] == [3, 0, 3]


@pairs
def test_an_id_of_no_token_costs_its_request_its_drafts_and_no_other(form: Form, draft: str) -> None:
    """The target's logits may have padding, and clients may send such ids."""
    with form.driver(draft, vocab_size=VOCAB + 256) as driver:
        driver.start("sound", TEXTS[0])
        driver.start("strange", [*TEXTS[0], VOCAB + 3, 5])
        for _ in range(3):
            rows = driver.step(3).by_request()
            assert (len(rows["sound"].token_ids), rows["strange"].token_ids) == (3, ())


@pairs
def test_text_before_a_later_barrier_is_forgotten(form: Form, draft: str) -> None:
    """An image may be in any chunk of a prompt; the draft model cannot read on across it."""
    first, second = TEXTS[0][:12], TEXTS[0][12:]
    with form.driver(draft) as driver:
        driver.start("a", first)
        driver.step(0)
        driver._occupants["a"].barriers = [(len(first) + 1, len(first) + 4)]
        driver.extend("a", [5, *[VOCAB] * 3, *second])
        found = [list(driver.step(4).by_request()["a"].token_ids) for _ in range(2)][-1]
    assert len(found) >= 2
    assert found == form.drafted(draft, second)[: len(found)]


@pairs
def test_a_long_prompt_is_caught_up_with_in_chunks(form: Form, draft: str) -> None:
    ids = (TEXTS[0] * 40)[:360]
    with form.driver(draft, prefill_chunk=64) as driver:
        driver.start("long", ids)
        driver.start("short", TEXTS[0])
        steps = [driver.step(3).by_request() for _ in range(12)]
    lengths = [[len(step[name].token_ids) for step in steps] for name in ("long", "short")]
    first = next(step for step, length in enumerate(lengths[0]) if length)
    assert 3 <= first <= 8
    assert lengths[1] == [3] * 12
    assert list(steps[-1]["long"].token_ids) == form.drafted(draft, ids, 3, num_steps=5)


def test_a_text_longer_than_the_window_is_drafted_for(form: Form) -> None:
    """Its newest half is computed anew each time that the window is full."""
    with form.driver(SAME, max_context=64) as driver:
        driver.start("a", TEXTS[0])
        found = []
        for _ in range(36):
            step = driver.step(4)
            ids = step.by_request()["a"].token_ids
            found.append(len(ids))
            driver.extend("a", [*ids, 5][:5])
    assert len(driver.text("a")) > 130
    assert found.count(4) > 24


@pairs
def test_a_step_without_a_request_changes_none_of_its_drafts(form: Form, draft: str) -> None:
    """The text is longer than the columns of the cache that a pass reads at least."""
    with form.driver(draft) as driver:
        driver.start("short", TEXTS[1][:9])
        driver.start("long", (TEXTS[0] * 40)[:420])
        for _ in range(12):
            before = driver.step(4).by_request()["long"].token_ids
        driver.extend("short", TEXTS[1][9:10])
        driver.step(4, order=["short"])
        after = driver.step(4).by_request()["long"].token_ids
    assert len(before) == 4
    assert after == before


@pairs
def test_drafts_are_at_most_a_quarter_of_the_window(form: Form, draft: str) -> None:
    with form.driver(draft, max_context=64) as driver:
        driver.start("a", TEXTS[0])
        lengths = [len(driver.step(16).by_request()["a"].token_ids) for _ in range(3)]
    assert 5 <= lengths[-1] <= 16


def test_a_long_emitted_text_that_the_draft_did_not_have_costs_no_step(form: Form) -> None:
    """As many ids may be missing as a draft has."""
    with form.driver(OTHER) as driver:
        driver.start("a", TEXTS[0])
        for _ in range(4):
            assert driver.step(16).by_request()["a"].token_ids
            driver.extend("a", encoded(" = shelf.query(editor)")[:12])


@pytest.mark.parametrize(("more", "most"), [({"max_ms": 1e-6}, 1), ({"min_survival": 1.0}, 1), ({}, 12)])
def test_drafts_in_host_memory_end_early(more: dict[str, object], most: int) -> None:
    assert len(Form("host").drafted(SAME, TEXTS[0], 12, **more)) == most


@pairs
def test_texts_of_host_batches_are_kept_beyond_the_first_size(draft: str) -> None:
    """The token table begins with 1,024 columns."""
    ids = (TEXTS[0] * 80)[:1500]
    with Driver(FORMS["host"], options(draft, max_context=256), vocab_size=VOCAB, max_length=2000) as driver:
        driver.start("a", ids)
        found = [driver.step(3).by_request()["a"].token_ids for _ in range(16)][-1]
    assert len(found) == 3


def test_its_status_says_what_its_drafts_were_worth() -> None:
    with Driver(FORMS["host"], options(OTHER), vocab_size=VOCAB) as driver:
        driver.start("a", TEXTS[0])
        assert driver.proposer.status()["acceptance"] == {}
        step = driver.step(4)
        answer = [*step.by_request()["a"].token_ids[:2], 0, 0, 0]
        driver.settle(step, {"a": answer})
        status = driver.proposer.status()
    assert status["same_tokenizer"] is False
    assert status["draft_model"] == str(model_path(OTHER))
    assert 80 < status["overlap_of_draft_percent"] < 100 > status["overlap_of_target_percent"] > 30
    assert sum(it["tested"] for it in status["acceptance"].values()) == 3
    assert sum(it["tested"] * it["acceptance_rate"] for it in status["acceptance"].values()) == pytest.approx(2)


def test_tokens_of_another_proposer_teach_it_nothing() -> None:
    with Driver(FORMS["host"], options(OTHER), vocab_size=VOCAB) as driver:
        driver.start("a", TEXTS[0])
        step = driver.step(4)
        step.draft.source[:, 1:] = -1
        driver.settle(step, {"a": [*step.by_request()["a"].token_ids, 0]})
        status = driver.proposer.status()
    assert sum(it["tested"] for it in status["acceptance"].values()) == 1


def starting(chosen: Mapping[str, object], target: Any = None) -> SpecplugError:
    """Return the error with which a server does not start."""
    registry = Registry()
    registry.add(plugin, Owner("crosstok", "specplug", "test"))
    settings = load_settings({"proposer": "crosstok", "options": {"crosstok": chosen}}, env={}).settings
    context = PluginContext(EngineCaps(4), vocab_size=VOCAB, target_tokenizer=target)
    with pytest.raises(SpecplugError) as found:
        try_to_build(registered(), settings, registry, context)
    return found.value


@pytest.mark.parametrize(
    ("chosen", "kind", "words"),
    [
        ({}, SettingsError, ("'crosstok': no draft model is named", "options.crosstok.model", "Hugging Face")),
        ({"device": "gpuu"}, SettingsError, ("'crosstok': no such device", "'gpuu'", "expected auto, cpu, cuda")),
        ({"model": "/no/such/folder"}, PluginError, ("/no/such/folder: cannot ", "Check the name")),
        ({"device": "cpu"}, SettingsError, ("target's tokenizer is not known", "--skip-tokenizer-init")),
    ],
    ids=["no model", "device", "missing model", "no tokenizer"],
)
def test_why_it_does_not_start(chosen: dict[str, object], kind: type, words: tuple[str, ...]) -> None:
    error = starting({"model": str(model_path(SAME)), **chosen} if chosen else chosen)
    assert isinstance(error, kind)
    assert [word for word in words if word not in str(error)] == []


def test_the_memory_that_is_declared_has_the_checkpoints_size() -> None:
    """And the logits that drafts are drawn from, where they are; on a CPU weights are in float32."""
    caps = EngineCaps(max_draft_length=4, draft_input=Distribution.LOGITS)
    context = PluginContext(caps, options=CrossTokSettings(**options(OTHER)), vocab_size=VOCAB, max_slots=8)
    facts = read_facts(str(model_path(OTHER)))
    on_cpu = declared(replace(context, options=CrossTokSettings(**options(OTHER, device="cpu"))))
    on_gpu, without = (
        declared(replace(context, caps=it, device=torch.device("cuda")))
        for it in (caps, EngineCaps(max_draft_length=4))
    )
    stated = 8 * 2 * 5 * facts.vocab_size * 4
    assert on_gpu - without == stated
    weights = on_cpu - stated - (64 << 20) - 8 * 40 * facts.vocab_size
    assert without - (64 << 20) - (256 << 20) - 8 * 40 * facts.vocab_size == weights * facts.dtype.itemsize // 4
