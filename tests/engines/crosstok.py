"""The proposer `crosstok` in tests of engines: its settings, and what the shipped model samples."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils._python_dispatch import _disable_current_modes

from specplug.testing.equality import g_test
from specplug.tools.demo import model_path
from tests.engines.plain import forward, ids

TOP_K = 3
TEMPERATURE = 1.0
LENGTH = 3
POSITIONS = 256
SAMPLED = {"temperature": TEMPERATURE, "top_k": TOP_K}


def settings(draft: str = "tiny-draft-other", **options: Any) -> dict[str, Any]:
    """Return settings that draft with a shipped model, for as long as it takes."""
    own = {"model": str(model_path(draft)), "max_ms": None, **options}
    faults = {"host_deadline_ms": None}
    return {"proposer": "crosstok", "policy": "fixed", "faults": faults, "options": {"crosstok": own}}


def on_device(draft: str = "tiny-draft-other", **options: Any) -> dict[str, Any]:
    """Return settings of the form for batches on a GPU, which the test plug-ins register for any device."""
    own = {"model": str(model_path(draft)), **options}
    return {"proposer": "crosstok-device", "policy": "fixed", "options": {"crosstok-device": own}}


def of_few_positions(folder: Path, draft: str = "tiny-draft-other") -> Path:
    """Return a copy of a shipped model, in `folder`, whose positions end at `POSITIONS`."""
    copied = Path(shutil.copytree(model_path(draft), folder / draft))
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "max_position_embeddings": POSITIONS}))
    return copied


def by_one_graph_each(step: Any) -> Callable[[], int]:
    """Let what a GPU runs as a CUDA graph run unwatched; return a function that returns how many ran, since before."""
    graphs = step.loop.graphs
    count = 0
    run = graphs.run

    def counted(key: Any, function: Any) -> None:
        nonlocal count
        count += 1
        with _disable_current_modes():
            run(key, function)

    def taken() -> int:
        nonlocal count
        found = count
        count = 0
        return found

    graphs.run = counted
    return taken


@functools.cache
def prompt() -> list[int]:
    """Return a prompt after which several tokens are likely, of both models."""
    begun = "def Client(address):\n    _in, _out = Queue(), Queue()\n\ndef _remove(self,"
    return ids(f"<|code|>{begun}")


@functools.cache
def distribution() -> dict[tuple[int, ...], float]:
    """Return the probability of each possible beginning of an answer, `LENGTH` tokens that are sampled as `SAMPLED`."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for text, probability in found.items():
            kept = (forward([*prompt(), *text]).double() / TEMPERATURE).topk(TOP_K)
            for token, share in zip(kept.indices.tolist(), kept.values.softmax(0).tolist(), strict=True):
                longer[(*text, token)] = probability * share
        found = longer
    return found


def p_value(answers: Sequence[Sequence[int]]) -> float:
    """Return the p-value of the answers' beginnings, by a G-test; one that cannot occur gives 0."""
    places = {text: place for place, text in enumerate(distribution())}
    seen = [places.get(tuple(answer[:LENGTH]), -1) for answer in answers]
    if min(seen) < 0:
        return 0.0
    return g_test(np.bincount(seen, minlength=len(places)), np.array(list(distribution().values())))


def requests(count: int) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Return prompts and sampling parameters of so many answers."""
    return list(itertools.repeat(prompt(), count)), list(itertools.repeat(SAMPLED, count))
