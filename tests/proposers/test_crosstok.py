"""The proposer `crosstok` keeps the contract, drafts what its model says, and says clearly why it cannot start."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from specplug.assembly import try_to_build
from specplug.demo import model_path
from specplug.draft_model.facts import read_facts
from specplug.errors import PluginError, SettingsError, SpecplugError
from specplug.interfaces import PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.settings import load_settings
from specplug.testing.contract import ProposerContract
from specplug.testing.driver import Driver
from specplug.types.caps import Distribution, EngineCaps
from specplug.types.draft import Draft
from specplug.types.request import Lifecycle
from specplug_crosstok import plugin
from specplug_crosstok.memory import declared
from specplug_crosstok.options import CrossTokSettings
from specplug_crosstok.proposer import CrossTok
from tests.draft_model.tools import greedy
from tests.proposers.crosstok_contract import SampledRows
from tests.proposers.crosstok_tools import OTHER, SAME, VOCAB, Warm, encoded, options, spec, tokenizer

CODE = "def add(first, second):\n    return first + second\n\n\ndef sub("
TEXTS = (encoded(CODE), encoded("Ünïcödé 天地 👍 is text"), encoded("x"))


class TestContractOfOneTokenizer(ProposerContract):
    spec, options, vocab_size, texts = spec(), options(SAME), VOCAB, TEXTS


class TestContractOfTwoTokenizers(ProposerContract):
    spec, options, vocab_size, texts = spec(), options(OTHER), VOCAB, TEXTS


class TestSampledRows(SampledRows):
    spec, texts = spec(), TEXTS


def drafted(draft: str, ids: list[int], limit: int = 4, **more: object) -> list[int]:
    """Return the draft after a context, by a proposer that has seen no other."""
    with Driver(spec(), options(draft, **more), vocab_size=VOCAB, max_draft_length=16) as driver:
        driver.start("a", ids)
        return list(driver.step(limit).by_request()["a"].token_ids)


def test_with_one_tokenizer_the_draft_is_the_models_own_continuation() -> None:
    for ids in TEXTS:
        assert drafted(SAME, ids, 6) == greedy(str(model_path(SAME)), ids, 6)


@pytest.mark.parametrize("text", [CODE, "import", "The value of"])
def test_with_two_the_text_is(text: str) -> None:
    """What is drafted is a text that the draft model's own continuation begins with."""
    own = tokenizer(OTHER)
    continued = own.decode(greedy(str(model_path(OTHER)), own.encode(text, add_special_tokens=False), 12))
    found = drafted(OTHER, encoded(text), 4, route="slem")
    assert len(found) >= 3
    assert continued.startswith(tokenizer().decode(found))


def test_tli_drafts_only_what_both_vocabularies_have() -> None:
    with Driver(spec(), options(OTHER, route="tli"), vocab_size=VOCAB) as driver:
        known = set(driver.proposer.draft_vocab.tolist())
        assert 256 < len(known) < 1024
        for index, ids in enumerate(TEXTS):
            driver.start(str(index), ids)
        for row in driver.step(8).by_request().values():
            assert known.issuperset(row.token_ids)
            assert len(row.token_ids) == 8


def test_requests_beyond_its_caches_get_no_drafts_until_one_is_free() -> None:
    with Driver(spec(), options(SAME, max_requests=2), vocab_size=VOCAB) as driver:
        for name in "abc":
            driver.start(name, TEXTS[0])
        assert [len(row.token_ids) for row in driver.step(3).by_request().values()] == [3, 3, 0]
        driver.leave("a", Lifecycle.FINISHED)
        driver.start("d", TEXTS[0])
        rows = driver.step(3).by_request()
        assert [len(rows[name].token_ids) for name in "bcd"] == [3, 0, 3]


@pytest.mark.parametrize("draft", [SAME, OTHER])
def test_an_id_of_no_token_costs_its_request_its_drafts_and_no_other(draft: str) -> None:
    """The target's logits may have padding, and clients may send such ids."""
    with Driver(spec(), options(draft, max_requests=2), vocab_size=VOCAB + 256) as driver:
        driver.start("sound", TEXTS[0])
        driver.start("strange", [*TEXTS[0], VOCAB + 3, 5])
        rows = driver.step(3).by_request()
        assert (len(rows["sound"].token_ids), rows["strange"].token_ids) == (3, ())
        driver.leave("strange")
        driver.start("next", TEXTS[0])
        assert driver.step(3).by_request()["next"].token_ids == rows["sound"].token_ids


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_text_that_has_only_begun_a_character_gets_no_draft_and_no_other_is_lost(names: str) -> None:
    with Driver(spec(), options(OTHER), vocab_size=VOCAB) as driver:
        texts = {"a": TEXTS[0], "b": encoded("天")[:1]}
        for name in names:
            driver.start(name, texts[name])
        rows = driver.step(3).by_request()
    assert [len(rows[name].token_ids) for name in "ab"] == [3, 0]


@pytest.mark.parametrize("draft", [SAME, OTHER])
def test_text_before_a_later_barrier_is_forgotten(draft: str) -> None:
    """An image may be in any chunk of a prompt; the draft model cannot read on across it."""
    first, second = TEXTS[0][:12], TEXTS[0][12:]
    with Driver(spec(), options(draft), vocab_size=VOCAB) as driver:
        driver.start("a", first)
        driver.step(0)
        driver._occupants["a"].barriers = [(len(first) + 1, len(first) + 4)]
        driver.extend("a", [5, *[VOCAB] * 3, *second])
        found = list(driver.step(4).by_request()["a"].token_ids)
    assert len(found) >= 2
    assert found == drafted(draft, second)[: len(found)]


@pytest.mark.parametrize(
    ("route", "kind", "length"), [("tli", Driver, 3), ("tli", Warm, 3), ("auto", Warm, 3), ("auto", Driver, 0)]
)
def test_within_a_character_only_common_ids_are_drafted(route: str, kind: type[Driver], length: int) -> None:
    """They follow its first bytes; a context that is translated by words ends before these."""
    with kind(spec(), options(OTHER, route=route), vocab_size=VOCAB) as driver:
        driver.start("begun", [*TEXTS[0], *encoded(" 天")[:-1]])
        driver.start("whole", TEXTS[0])
        rows = driver.step(3).by_request()
    assert [len(rows[name].token_ids) for name in ("begun", "whole")] == [length, 3]


def test_a_row_whose_tokens_it_has_not_seen_gets_no_draft() -> None:
    with Driver(spec(), options(SAME), vocab_size=VOCAB) as driver:
        driver.start("a", TEXTS[0])
        driver.start("b", TEXTS[0])
        driver.step(3)
        driver.extend("a", [5])
        batch = driver.batch()
        draft = Draft.allocate(2, 3)
        draft.reset(batch.lengths)
        driver.proposer.propose(batch, torch.full((2,), 3, dtype=torch.int32), draft)
        assert draft.lengths.tolist() == [0, 3]


def test_its_status_says_what_its_drafts_were_worth() -> None:
    with Driver(spec(), options(OTHER), vocab_size=VOCAB) as driver:
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


def starting(chosen: Mapping[str, object], target: Any = None) -> SpecplugError:
    """Return the error with which a server does not start."""
    registry = Registry()
    registry.add(plugin, Owner("crosstok", "specplug", "test"))
    settings = load_settings({"proposer": "crosstok", "options": {"crosstok": chosen}}, env={}).settings
    context = PluginContext(EngineCaps(4), vocab_size=VOCAB, target_tokenizer=target)
    with pytest.raises(SpecplugError) as found:
        try_to_build(replace(spec(), factory=CrossTok), settings, registry, context)
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


@pytest.mark.parametrize(
    "wrong", [{"route": "tly"}, {"max_context": 8}, {"max_ms": 0}, {"dtype": "int8"}, {"modell": "a"}]
)
def test_options_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        CrossTokSettings.model_validate(wrong)


def test_registering_imports_neither_torch_nor_transformers() -> None:
    heavy = "{'torch', 'transformers', 'pydantic', 'numpy', 'numba'}"
    code = f"import sys, specplug_crosstok.plugin; sys.exit(sorted({heavy} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PAGE = (Path(__file__).parents[2] / "docs" / "crosstok.md").read_text(encoding="utf-8")


def test_every_option_is_documented_with_its_default_and_no_other() -> None:
    table = PAGE.split("\n| `options.crosstok` |")[1].split("\n\n", 1)[0]
    found = dict(re.findall(r"^\| `(\w+)` \| ?`?([\w.]*)`? \|", table, re.M))
    expected = CrossTokSettings().model_dump()
    assert found.keys() == expected.keys()
    assert {name: type(expected[name])(value) for name, value in found.items()} == expected


def test_the_documented_settings_are_valid() -> None:
    texts = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert texts
    for text in texts:
        options = load_settings(tomllib.loads(text), env={}).settings.options
        CrossTokSettings.model_validate(options["crosstok"])


def test_the_memory_that_is_declared_on_a_gpu_has_the_checkpoints_size() -> None:
    """There the logits that drafts are drawn from count, too; on a CPU weights are in float32."""
    caps = EngineCaps(max_draft_length=4, draft_input=Distribution.LOGITS)
    context = PluginContext(caps, options=CrossTokSettings(**options(OTHER)), vocab_size=VOCAB, max_slots=8)
    facts = read_facts(str(model_path(OTHER)))
    on_cpu = declared(replace(context, options=CrossTokSettings(**options(OTHER, device="cpu"))))
    on_gpu, without = (
        declared(replace(context, caps=it, device=torch.device("cuda")))
        for it in (caps, EngineCaps(max_draft_length=4))
    )
    assert on_gpu - without == 8 * 2 * 5 * facts.vocab_size * 4
    weights = on_cpu - (64 << 20)
    assert without - (64 << 20) - (256 << 20) - 8 * 40 * facts.vocab_size == weights * facts.dtype.itemsize // 4
