"""Models with recurrent state, on kernels that roll back (see `tests.engines.recurrent_cpu`): greedy text.

The truth is the model's own text, without an engine.  Drafts are that text with every fifth token wrong, so that steps
accept some and reject others; requests of many lengths join and leave, and their prompts are read in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.engines.engines import Engine, Raised
from tests.engines.recurrent_models import save
from tests.engines.recurrent_requests import Prompt, answers, prompts, tokens_of, wrong_tokens
from tests.engines.vllm.referee import RUNNERS, reported

DRAFT_LENGTH = 4
SETTINGS: dict[str, Any] = {
    "proposer": "ngram",
    "extra_proposers": ["oracle"],
    "policy": "fixed",
    "options": {"oracle": {"error_every": 5}},
}
VARYING = {
    **SETTINGS,
    "policy": "ladder",
    "options": {**SETTINGS["options"], "ladder": {"draft_lengths": (4, 0, 3, 0, 4, 1)}},
}
"""Each step has another draft length than the one before, and steps without drafts follow accepted drafts."""

SIZES: dict[str, Any] = {
    "recurrent": True,
    "draft_length": DRAFT_LENGTH,
    "skip_tokenizer_init": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
    "enable_prefix_caching": False,
}
CAPS = [DRAFT_LENGTH, 2, 1, 0, 3]

HYBRIDS = ("falcon_h1", "lfm2", "qwen3_next")
PAIRS = [(kind, name) for kind in RUNNERS for name in HYBRIDS] + [("v2", "mamba2"), ("v2_async", "mamba2")]
FAST = [("v1", "falcon_h1"), ("v2_async", "falcon_h1")]
SPLIT = [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS]

Serve = Callable[..., Engine]


@pytest.fixture(scope="session")
def hybrid(engine: Serve, tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Start a server of a model: ``hybrid("v1", "lfm2", VARYING)``."""
    folders: dict[str, str] = {}

    def start(kind: str, name: str, settings: dict[str, Any] | None, **sizes: Any) -> Engine:
        if name not in folders:
            folders[name] = save(name, tmp_path_factory.mktemp(name))
        return engine(**RUNNERS[kind], specplug=settings, name=f"{name} {kind}", model=folders[name], **SIZES | sizes)

    return start


def joining(name: str, given: Sequence[Prompt], **by_turn: list[int]) -> list[dict[str, Any]]:
    """Return requests that join one by one, with drafts from their answers and further fields in turn."""
    found = []
    for number, (prompt, answer) in enumerate(zip(given, answers(name, given), strict=True)):
        own = {field: values[number % len(values)] for field, values in by_turn.items()}
        params = {"max_tokens": tokens_of(number), "ignore_eos": True, "detokenize": False, **reported(answer, **own)}
        found.append({"id": str(number), "prompt": list(prompt), "at": number + number % 3, "params": params})
    return found


def wrong(run: dict[str, Any], name: str, given: Sequence[Prompt]) -> int:
    """Return how many tokens of a run are not the model's own."""
    found = [run["outputs"][str(number)]["token_ids"] for number in range(len(given))]
    return wrong_tokens(found, answers(name, given))


def assert_right(served: Engine, name: str, given: Sequence[Prompt], **by_turn: list[int]) -> dict[str, Any]:
    """Assert that a server answers as the model does, and that drafts were accepted and rejected; return the run."""
    found = served.call("watching.counted", call="drive", requests=joining(name, given, **by_turn))
    assert wrong(found["result"], name, given) == 0
    assert not found["faults"]
    assert found["total"]["accepted"] > 2 * len(given)
    assert found["total"]["rejected"] > 2
    return dict(found["result"])


@pytest.mark.parametrize(("kind", "name"), SPLIT)
def test_draft_lengths_that_change_at_every_step(kind, name, hybrid):
    assert_right(hybrid(kind, name, VARYING), name, prompts(12, DRAFT_LENGTH))


@pytest.mark.parametrize(("kind", "name"), SPLIT)
def test_requests_that_cap_their_drafts(kind, name, hybrid):
    assert_right(hybrid(kind, name, VARYING), name, prompts(6, DRAFT_LENGTH), num_speculative_tokens=CAPS)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_a_fixed_draft_length(kind, name, hybrid):
    served, given = hybrid(kind, name, SETTINGS), prompts(24, DRAFT_LENGTH)
    assert_right(served, name, given)
    assert_right(served, name, given, num_speculative_tokens=CAPS)


def test_attention_free_models_are_refused_on_v1(hybrid):
    """V1 counts accepted tokens for hybrid models alone."""
    with pytest.raises(Raised, match="V1 runner does not record accepted draft tokens") as raised:
        hybrid("v1", "mamba2", SETTINGS).call("inside.facts")
    assert "Mamba2ForCausalLM on V1" in raised.value.text
    assert "VLLM_USE_V2_MODEL_RUNNER=1" in raised.value.text
