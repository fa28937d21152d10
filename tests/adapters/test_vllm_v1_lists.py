"""V1's drafter between the runner's lists and tensors: the quick forms give what plain loops over rows give."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from specplug.metrics import SpecMetrics
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.v1 import Steps

SEEDS = pytest.mark.parametrize("seed", range(10))


@SEEDS
def test_figures_are_those_of_a_loop_over_rows(seed):
    draw = random.Random(seed)
    names, table = [f"r{row}" for row in range(6)], np.zeros((6, 8), np.int32)
    steps = object.__new__(Steps)
    steps._emitted, steps._rejected, steps._wrapped = *np.zeros((2, 6), np.int32), None
    for _ in range(5):
        scheduled = {name: [1] * draw.randint(1, 3) for name in names if draw.random() < draw.choice((0.0, 0.6))}
        most = [len(scheduled.get(name, ())) + 1 for name in names]
        sampled = [[7] * draw.randint(0, count) for count in most]
        num_tokens = np.array([draw.randint(1, 8) for _ in names], np.int32)
        steps._drafting = SimpleNamespace(scheduled=scheduled)
        rows = steps._engine_rows(names, sampled, num_tokens, table)
        assert rows.idx_mapping.tolist() == list(range(6))
        assert rows.total_len.tolist() == num_tokens.tolist()
        for row, ids in enumerate(sampled):
            assert rows.num_sampled[row] == len(ids)
            if ids:
                assert len(ids) - 1 + rows.num_rejected[row] == len(scheduled.get(names[row], ()))


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
