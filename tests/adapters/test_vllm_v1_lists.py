"""V1's drafter between the runner's lists and columns: the quick forms give what plain loops over rows give."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from specplug.metrics import SpecMetrics
from specplug.pipeline.cpu.columns import Columns
from specplug.pipeline.cpu.step import cut_lists
from specplug.types.draft import Draft
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.v1_steps import _Rows

SEEDS = pytest.mark.parametrize("seed", range(10))


@SEEDS
def test_drafts_are_those_of_a_loop_over_rows(seed):
    draw = random.Random(seed)
    fewest = draw.choice((0, 3, 4))
    rows = [draw.choices(range(9), k=draw.randint(fewest, 4)) for _ in range(draw.randint(0, 5))]
    draft = Draft.allocate(len(rows), 4)
    for row, ids in enumerate(rows):
        draft.set_row(row, ids, 0.5)
    assert cut_lists(draft.token_ids.numpy(), draft.lengths.numpy()) == rows


@SEEDS
@pytest.mark.parametrize("all_kept", [True, False])
def test_figures_are_those_of_a_loop_over_rows(seed, all_kept):
    draw = random.Random(seed)
    names = [f"r{row}" for row in range(6)]
    kept = list(range(6)) if all_kept else sorted(draw.sample(range(6), 4))
    facts = SimpleNamespace(
        names=tuple(names[row] for row in kept),
        kept=None if all_kept else kept,
        slots=[5 - row for row in kept],
        requests=[SimpleNamespace(temperature=0.0) for _ in kept],
        barriers=(),
    )
    columns = Columns.allocate(6)
    rows = _Rows(facts, columns, np.zeros((6, 8), np.int32), vocab_size=9)
    for _ in range(5):
        sampled = [[7] * draw.randint(0, 4) for _ in names]
        num_tokens = np.array([draw.randint(1, 8) for _ in names], np.int32)
        scheduled = {name: [1] * draw.randint(1, 3) for name in names if draw.random() < draw.choice((0.0, 0.6))}
        batch = rows.update(sampled, num_tokens, scheduled, (2,))
        assert batch.reset_slots == (2,)
        for index, row in enumerate(kept):
            found = columns.lengths[index], columns.emitted[index], columns.verified[index]
            assert found == (num_tokens[row], len(sampled[row]), len(scheduled.get(names[row], ())))


@SEEDS
def test_idle_steps_count_the_rows_that_emitted(seed):
    draw = random.Random(seed)
    names = [f"r{row}" for row in range(6)]
    ignored = {name for name in names if seed % 2 and draw.random() < 0.5}
    metrics = SpecMetrics(["ngram"], 4)
    drafting = SimpleNamespace(allocator=SimpleNamespace(ignored=ignored), stage=SimpleNamespace(metrics=metrics))
    sampled = [draw.choice(([], [3])) for _ in names]
    Drafting.count(drafting, names, sampled)
    expected = sum(bool(ids) and name not in ignored for name, ids in zip(names, sampled, strict=True))
    assert (metrics.snapshot().total.target_steps, metrics.snapshot().total.emitted) == (expected, expected)
