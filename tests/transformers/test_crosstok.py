"""A draft model of the same or another tokenizer leaves greedy outputs as they are, by every route."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specplug.metrics import SpecMetrics
from specplug.tools.demo import model_path
from specplug_transformers import Engine
from tests.engines import plain
from tests.engines.crosstok import of_few_positions
from tests.proposers.crosstok_tools import write_partial
from tests.transformers.conftest import assert_plain, requests_of

TEXTS = (
    "def add(first, second):\n    return",
    "<|code|>import os\n\n\ndef read(path):\n    ",
    "Ünïcödé: 天地 👍 is",
    "x",
    "class Node:\n    def __init__(self, value):\n" * 6,
)
TOKENS = 24

Make = Callable[..., Engine]


@functools.cache
def tiny() -> Any:
    return AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32).eval()


@functools.cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(model_path())


@functools.cache
def prompts() -> list[list[int]]:
    """Return the texts' ids, and characters that have just begun, after a space and at the beginning."""
    whole = [tokenizer().encode(text, add_special_tokens=False) for text in TEXTS]
    begun = [tokenizer().encode(text, add_special_tokens=False)[:-1] for text in (" 天", "天")]
    assert all(tokenizer().decode(ids).endswith("\ufffd") for ids in begun)
    return [*whole, *begun]


def settings(draft: str, **options: Any) -> dict[str, Any]:
    """Return settings that draft with a model, for as long as it takes."""
    return {"proposer": "crosstok", "options": {"crosstok": {"model": draft, "max_ms": None, **options}}}


@pytest.fixture
def engine(make_engine: Make) -> Make:
    """Build engines that serve the tiny model."""

    def make(draft: str = "tiny", *, max_num_seqs: int = 8, target_tokenizer: Any = None, **options: Any) -> Engine:
        own = {"max_num_seqs": max_num_seqs, "prefill_chunk": 64, **settings(str(model_path(draft)), **options)}
        return make_engine(tiny(), target_tokenizer or tokenizer(), **own)

    return make


def assert_same(found: Engine) -> SpecMetrics:
    """Serve the prompts in one batch, compare, and return the counters."""
    outputs = found.generate(requests_of(prompts(), max_tokens=TOKENS, ignore_eos=True))
    assert_plain(tiny(), prompts(), outputs, TOKENS)
    counts = found.metrics.snapshot()
    assert not counts.faults
    return counts


@pytest.mark.parametrize(
    ("draft", "route", "sources"),
    [
        ("tiny-draft", "auto", {"common ids"}),
        ("tiny-draft-other", "slem", {"text", "open word"}),
        ("tiny-draft-other", "tli", {"common ids"}),
    ],
)
def test_outputs_are_the_targets(draft: str, route: str, sources: set[str], engine: Make) -> None:
    counts = assert_same(engine(draft, route=route))
    used = {name for name, count in counts.by_source.items() if count.accepted}
    assert used == {f"crosstok/{source}" for source in sources}
    assert counts.total.accepted > 0.4 * counts.total.tested


@pytest.mark.parametrize("whose", ["tiny-draft-other", "tiny"])
@pytest.mark.parametrize("route", ["slem", "tli"])
def test_a_tokenizer_with_gaps(route: str, whose: str, engine: Make, tmp_path: Path) -> None:
    """The draft model's or the target's has no tokens for many bytes, lower-cases, and has an added token of text."""
    partial = write_partial(tmp_path, whose)
    own = {"target_tokenizer": AutoTokenizer.from_pretrained(partial)} if whose == "tiny" else {"model": str(partial)}
    counts = assert_same(engine("tiny-draft-other", route=route, **own))
    assert counts.total.accepted > 0.3 * counts.total.tested > 0


def test_requests_take_turns(engine: Make) -> None:
    """There are fewer slots than requests, fewer caches than slots, and long prompts are caught up with in chunks."""
    counts = assert_same(engine("tiny-draft-other", max_num_seqs=3, max_requests=2, prefill_chunk=16))
    assert counts.total.accepted > 0


@pytest.mark.parametrize("length", [250, 700])
def test_texts_beyond_the_drafts_last_position(length: int, engine: Make, tmp_path: Path) -> None:
    """Drafts go on being accepted, whether the prompt or the answer crosses it."""
    task = list(plain.prompts()[0])
    prompt, rates, texts = (task * (length // len(task) + 1))[-length:], [], []
    for path in (model_path("tiny-draft-other"), of_few_positions(tmp_path)):
        made = engine("tiny-draft-other", model=str(path))
        [output] = made.generate(requests_of([prompt], max_tokens=100, ignore_eos=True))
        rates.append(output.accepted / output.verified)
        texts.append(output.token_ids)
    assert texts[0] == texts[1]
    assert rates[1] > 0.7 * rates[0] > 0
