"""Lookup and a draft model under one decision leave greedy outputs as they are, and draft as well as the better one."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specplug.metrics import SpecMetrics
from specplug.tools.demo import model_path
from specplug.tools.demo.tasks import Kind, make_tasks
from specplug_hybrid import proposer
from specplug_transformers import Engine
from tests.transformers.conftest import assert_greedy_equal, requests_of
from tests.transformers.test_crosstok import settings, tiny, tokenizer

TOKENS = 48
KINDS: tuple[Kind, ...] = ("edit", "code")
FIXED: dict[str, Any] = {"policy": "fixed", "faults": {"host_deadline_ms": None}}


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock by which the proposer decides, so that the model runs wherever more tokens are expected of it."""
    monkeypatch.setattr(proposer, "time", SimpleNamespace(monotonic=lambda: 1.0))


@functools.cache
def prompts(kind: Kind) -> list[list[int]]:
    return [tokenizer().encode(task.prompt) for task in make_tasks(kind, "held-out", 6, max_chars=300)]


@functools.cache
def served(kind: Kind, name: str) -> tuple[list[list[int]], SpecMetrics]:
    """Return the answers to the tasks by a proposer, or without drafts, and the counters."""
    chosen = {**FIXED, **settings(str(model_path("tiny-draft-other"))), "proposer": name, "num_speculative_tokens": 6}
    engine = Engine(tiny(), tokenizer(), settings={"policy": "none"} if name == "none" else chosen, max_num_seqs=4)
    outputs = engine.generate(requests_of(prompts(kind), max_tokens=TOKENS))
    counts = engine.metrics.snapshot()
    engine.close()
    assert not counts.faults
    return [list(output.token_ids) for output in outputs], counts


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_the_targets_and_both_parts_are_credited(kind: Kind) -> None:
    found, counts = served(kind, "hybrid")
    assert_greedy_equal(tiny(), prompts(kind), served(kind, "none")[0], found)
    accepted = dict.fromkeys(("ngram", "crosstok"), 0)
    for name, count in counts.by_source.items():
        if name.startswith("hybrid/"):
            accepted[name.split("/")[1]] += count.accepted
    assert min(accepted.values()) > 0
    assert sum(accepted.values()) == counts.total.accepted


def test_a_long_answer_with_the_smallest_settings_goes_on_to_its_end(tmp_path: Path) -> None:
    """Far beyond what the draft model reads, whose folder has the name of other methods."""
    folder = shutil.copytree(model_path("tiny-draft-other"), tmp_path / "x-eagle3-mtp")
    crosstok = {"model": str(folder), "max_ms": None, "max_context": 64, "max_requests": 1, "prefill_chunk": 16}
    options = {"crosstok": crosstok, "ngram": {"memory_tokens": 1, "max_n": 2}}
    outputs = []
    for chosen in ({**FIXED, "proposer": "hybrid", "options": options}, {"policy": "none"}):
        engine = Engine(tiny(), tokenizer(), settings=chosen, max_num_seqs=1)
        [output] = engine.generate(requests_of(prompts("edit")[:1], max_tokens=600, ignore_eos=True))
        assert not engine.metrics.snapshot().faults
        engine.close()
        outputs.append(output)
    drafted, plain = outputs
    assert drafted.token_ids == plain.token_ids
    assert (len(plain.token_ids), plain.steps) == (600, 600)
    assert drafted.steps < 300


@pytest.mark.parametrize("kind", KINDS)
def test_it_drafts_as_well_as_the_better_part(kind: Kind) -> None:
    tau = {name: served(kind, name)[1].total.tau for name in ("hybrid", "ngram", "crosstok")}
    assert tau["hybrid"] > 0.9 * max(tau["ngram"], tau["crosstok"]), tau
    assert tau["hybrid"] > 1.3
