"""Sampled output has the target's distribution whichever route a draft's tokens take; planted mistakes are found out.

Target and draft model have random weights and a few likely tokens each, some of which both have, so that drafts are
accepted and rejected, common ids are only a part of what the draft model would say, and its text often takes the
target several tokens.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

import specplug.plugins.builtin
import specplug_fixed.plugin
import specplug_hybrid.proposer
from specplug.metrics import SpecMetrics
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec, hookimpl
from specplug.steps import draft_buffers as buffers
from specplug.tools.demo import model_path
from specplug_crosstok import drawing
from specplug_crosstok.acceptance import TEXTS
from specplug_crosstok.step import Written
from specplug_transformers import Engine
from tests.proposers import crosstok_tools
from tests.transformers.conftest import exact_distribution, g_test_of, requests_of
from tests.transformers.test_crosstok import settings
from tests.transformers.toys import one_layer

PROMPT, TOKENS, TOP_K, TEMPERATURE, SAMPLES = "def a u", 3, 4, 1.5, 1024
TARGET = (" u", "s", "a", " c", "ho")  # "ho" is no token of the other tokenizer
SAME = (*TARGET, "i")
OTHER = (" u", "s", "a", " c", " us", "i")  # " us" is no token of the target's


@functools.cache
def tokenizer(name: str = "tiny") -> Any:
    return AutoTokenizer.from_pretrained(model_path(name))


def ids_in(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False))


def ids_of(name: str, pieces: tuple[str, ...]) -> list[int]:
    """Return the ids of pieces that are one token each."""
    found = [tokenizer(name).encode(piece, add_special_tokens=False) for piece in pieces]
    assert all(len(ids) == 1 for ids in found)
    return [ids[0] for ids in found]


def model(vocab: int, likely: list[int], seed: int) -> Any:
    """Return a model of one layer; one feature is the same after every text, and makes some tokens likely."""
    built = one_layer(vocab, seed, 64, tie_word_embeddings=False)
    with torch.no_grad():
        layer, embedding, head = built.model.layers[0], built.model.embed_tokens.weight, built.lm_head.weight
        layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
        embedding.mul_(2)
        embedding[:, 0] = 2
        rows = torch.randn(len(likely), 16) * 0.4
        rows[:, 0] = 6
        head.zero_()
        head[likely] = rows
    return built


@functools.cache
def target() -> Any:
    return model(2048, ids_of("tiny", TARGET), 3)


@functools.cache
def distribution(prompt: str, temperature: float) -> dict[tuple[int, ...], float]:
    return exact_distribution(target(), ids_in(prompt), TOKENS, TOP_K, temperature)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Draft models in folders, by their tokenizers."""
    folders = {}
    for name, vocab, likely, seed in (("tiny-draft", 2048, SAME, 5), ("tiny-draft-other", 1024, OTHER, 12)):
        folder = tmp_path_factory.mktemp(name)
        model(vocab, ids_of(name, likely), seed).save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(model_path(name) / file, folder)
        folders[name] = str(folder)
    partial = tmp_path_factory.mktemp("partial")
    model(1024, ids_of("tiny-draft-other", OTHER), 12).save_pretrained(partial)
    folders["partial"] = str(crosstok_tools.write_partial(partial, "tiny-draft-other"))
    return folders


def on_device() -> Registry:
    """Return a registry whose `crosstok` is the form for GPUs."""
    registry = Registry()
    form = SimpleNamespace(specplug_register_proposers=_on_device)
    for name, module in {"core": specplug.plugins.builtin, "fixed": specplug_fixed.plugin, "device": form}.items():
        registry.add(module, Owner(name, "tests", "0"))
    assert not registry.load_errors
    return registry


@hookimpl
def _on_device(register: Callable[[ProposerSpec], None]) -> None:
    register(replace(crosstok_tools.FORMS["device"], memory=None))


def sample(
    draft: str,
    *,
    primed: bool = False,
    seeded: bool = False,
    proposer_name: str = "crosstok",
    registry: Registry | None = None,
    prompts: Sequence[str] = (PROMPT,),
    rows: int = 256,
    samples: int = SAMPLES,
    temperature: float = TEMPERATURE,
    **options: Any,
) -> tuple[float, SpecMetrics]:
    """Sample outputs, `rows` at a time, of each prompt in turn.

    Return the least p-value of the prompts' G-tests against the target's distribution, and the counters.  If `primed`,
    the proposer has learned that text is accepted where the draft model is sure, so it takes both routes.
    """
    chosen = settings(draft, max_context=64, max_requests=samples, **options)
    chosen |= {"num_speculative_tokens": TOKENS - 1, "proposer": proposer_name, "policy": "fixed"}
    chosen["faults"] = {"host_deadline_ms": None}
    engine = Engine(target(), tokenizer(), settings=chosen, max_num_seqs=rows, registry=registry)
    if primed:
        kinds, all_of_them = torch.full((1, 4000), TEXTS.start), torch.tensor([4000])
        step = engine._drafts.proposers["crosstok"]._step
        step.learn(kinds, torch.linspace(0.5, 1.0, 4000).double()[None], all_of_them, all_of_them)
    params = {"max_tokens": TOKENS, "temperature": temperature, "top_k": TOP_K, "ignore_eos": True}
    requests = [
        replace(it, params=replace(it.params, seed=index if seeded else None))
        for index, it in enumerate(requests_of([ids_in(it) for it in prompts] * (samples // len(prompts)), **params))
    ]
    outputs = [output.token_ids for output in engine.generate(requests)]
    counts = engine.metrics.snapshot()
    engine.close()
    assert not counts.faults
    assert counts.total.proposed > samples, "too little was drafted"
    p_values = [
        g_test_of(outputs[row :: len(prompts)], distribution(it, temperature)) for row, it in enumerate(prompts)
    ]
    return min(p_values), counts


ROUTES = {
    "same tokenizer, in bfloat16": ("tiny-draft", {"dtype": "bfloat16"}, ("common ids",)),
    "text": ("tiny-draft-other", {"route": "slem"}, ("text",)),
    "common ids": ("tiny-draft-other", {"route": "tli"}, ("common ids",)),
    "auto": ("tiny-draft-other", {"route": "auto"}, ("common ids",)),
    "auto, a tokenizer with gaps": ("partial", {"route": "auto"}, ("common ids",)),
    "text, a tokenizer with gaps": ("partial", {"route": "slem"}, ("text",)),
    "auto, short": ("tiny-draft-other", {"route": "auto", "min_survival": 0.35}, ("common ids",)),
    "auto, both": ("tiny-draft-other", {"route": "auto", "primed": True}, ("common ids", "text")),
}


@pytest.mark.parametrize("route", ROUTES)
def test_the_distribution_is_the_targets(route: str, drafts: dict[str, str]) -> None:
    assert_the_targets(route, drafts, None)


@pytest.mark.parametrize("route", ["same tokenizer, in bfloat16", "auto, a tokenizer with gaps"])
def test_it_is_in_the_form_for_gpus(route: str, drafts: dict[str, str]) -> None:
    assert_the_targets(route, drafts, on_device())


def assert_the_targets(route: str, drafts: dict[str, str], registry: Registry | None) -> None:
    draft, options, sources = ROUTES[route]
    p_value, counts = sample(drafts[draft], registry=registry, **options)
    for source in sources:
        count = counts.by_source[f"crosstok/{source}"]
        assert min(count.accepted, count.tested - count.accepted) > 10, f"{source}: too few to tell"
    assert p_value > 1e-4


def test_it_is_with_lookup_before_the_model(drafts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's tokens are verified against the distribution that they were drawn from, as without lookup.

    The clock by which `hybrid` decides stands still, so the model runs wherever more tokens are expected of it.
    """
    monkeypatch.setattr(specplug_hybrid.proposer, "time", SimpleNamespace(monotonic=lambda: 1.0))
    p_value, counts = sample(drafts["tiny-draft"], proposer_name="hybrid", samples=2 * SAMPLES)
    p_value_alone, counts_alone = sample(drafts["tiny-draft"])
    alone = counts_alone.by_source["crosstok/common ids"]
    count = counts.by_source["hybrid/crosstok/common ids"]
    for each in (count, alone):
        assert min(each.accepted, each.tested - each.accepted) > 50
    # Verified as one-hot, a fifth as many would be accepted.
    assert count.accepted / count.tested > 0.6 * alone.accepted / alone.tested
    assert min(p_value, p_value_alone) > 1e-4


FOUR: dict[str, Any] = {
    "prompts": ("def a u", "s a c", "i u ho", " c us a"),
    "rows": 4,
    "samples": 512,
    "temperature": 0.7,
}


def test_each_of_four_rows_has_its_own(drafts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With lookup's tokens behind the model's; a row verified against its neighbour's distribution is found out."""
    monkeypatch.setattr(specplug_hybrid.proposer, "time", SimpleNamespace(monotonic=lambda: 1.0))
    p_value, counts = sample(drafts["tiny-draft"], proposer_name="hybrid", **FOUR)
    sources = ("hybrid/crosstok/common ids", "hybrid/ngram/response memory")
    assert min(counts.by_source[source].accepted for source in sources) > 50
    assert p_value > 1e-4
    monkeypatch.setattr(Written, "write", stated(lambda logits: logits.roll(1, 0)))
    assert sample(drafts["tiny-draft"], proposer_name="hybrid", **FOUR)[0] < 1e-6


def test_with_seeds_too(drafts: dict[str, str]) -> None:
    assert sample(drafts["tiny-draft-other"], seeded=True, primed=True)[0] > 1e-4


# Mistakes


def stated(change: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    """State another distribution than the one that was drawn from, [R, n, Vd]."""
    return lambda self, draft, rows, logits: _write(self, draft, rows, change(logits))


def most_likely(logits: Tensor, _temperature: Tensor, _uniforms: Tensor) -> Tensor:
    """Draw nothing, and state a distribution all the same."""
    return logits.argmax(1)


def text_as_drawn(cls: type[Written], *args: Any) -> Written:
    """Take the tokens of a text for drawn ones."""
    found = _of(*args)
    return found._replace(is_drawn=torch.ones_like(found.is_drawn))


def without_temperature(draft: Any, temperature: Tensor) -> Any:
    return _as_probs(draft, torch.ones_like(temperature))


_write, _of, _as_probs = Written.write, Written.of, buffers._as_probs

MISTAKES: dict[str, tuple[str, Any, str, Any]] = {
    "the step before": ("common ids", Written, "write", stated(lambda logits: logits.roll(1, 1))),
    "no draws": ("common ids", drawing, "_draw", most_likely),
    "text as drawn": ("auto, both", Written, "of", classmethod(text_as_drawn)),
    "no temperature": ("common ids", buffers, "_as_probs", without_temperature),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_out(mistake: str, drafts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same test at the same size rejects what is not lossless."""
    route, place, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    draft, options, _ = ROUTES[route]
    assert sample(drafts[draft], **options)[0] < 1e-6
