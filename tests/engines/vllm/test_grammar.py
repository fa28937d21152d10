"""On V1 grammars draft what they force, and cut drafts; see `tests.engines.suites.grammar`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from specplug.testing.equality import g_test
from tests.engines.engines import Engine
from tests.engines.matchers import schema
from tests.engines.plain import forward, ids, tokenizer
from tests.engines.suites.features import NEWLINE
from tests.engines.suites.grammar import GrammarSuite
from tests.engines.suites.served import Served
from tests.engines.vllm import inside, watching

COMPACT = {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}}


@pytest.mark.parametrize("kind", ["v1"], indirect=True, scope="session")
class TestGrammar(GrammarSuite):
    how = plain = COMPACT
    matcher: ClassVar[dict[str, Any]] = {"separators": (",", ":")}
    json: ClassVar[dict[str, Any]] = {"structured_outputs": {"json": schema()}}

    def plant(self, served: Served, how: str, token: int) -> None:
        served.engine.call(plant, how=how, token=token)

    def steps(self, served: Served) -> list[dict[str, Any]]:
        found: dict[str, Any] = served.engine.call(seen)
        assert not found["left"]
        self._faults = found["faults"]
        return list(found["steps"])

    def faults(self, counts: dict[str, Any]) -> dict[str, Any]:
        return {"faults": self._faults}  # the scheduler has them


SEEN: list[dict[str, Any]] = []


def plant(llm: Any, how: str, token: int) -> None:
    """Begin to fill `SEEN` with the rows of steps."""
    scheduler = inside.scheduler(llm)
    stage = watching.drafting(llm).stage
    grammars = scheduler._grammars
    update = scheduler.update_from_output

    def update_from_output(output: Any, result: Any) -> Any:
        for name, drafted in output.scheduled_spec_decode_tokens.items():
            emitted = result.sampled_token_ids[result.req_id_to_index[name]]
            text = list(scheduler.requests[name].output_token_ids)
            stated = output.specplug_metadata.grammars.get(name) if hasattr(output, "specplug_metadata") else None
            kept, levels = (len(drafted), []) if stated is None else (stated[0], list(stated[2]))
            row = {"row": int(name.split("-")[0]), "before": text, "verified": list(drafted)}
            SEEN.append({**row, "levels": [0.0] * kept + levels, "accepted": len(emitted) - 1})
        return update(output, result)

    def propose(batch: Any, draft_length: int, caps: Any = None) -> Any:
        draft = type(stage).propose(stage, batch, draft_length, caps)
        lengths = batch.limits(draft_length, caps).tolist()
        for row, constrained in enumerate(batch.grammar.tolist()):
            if constrained:
                draft.set_row(row, [token] * lengths[row], 0.9)
        return draft

    def broken(*_: Any) -> None:
        raise RuntimeError("planted")

    SEEN.clear()
    scheduler.update_from_output = update_from_output
    if how == "offer":
        stage.propose = propose
    grammars.specplug_test_adds = grammars.adds
    grammars.adds = grammars.adds and how != "leave out"
    if how == "raise":
        grammars._add = broken


def seen(llm: Any) -> dict[str, Any]:
    """Undo what was planted; return the steps, and what grammars hold and did wrong."""
    scheduler = inside.scheduler(llm)
    stage = watching.drafting(llm).stage
    grammars = scheduler._grammars
    del scheduler.update_from_output
    grammars.adds = grammars.specplug_test_adds
    for what, name in ((stage, "propose"), (grammars, "_add")):
        what.__dict__.pop(name, None)
    faults = {kind: count for (name, kind), count in scheduler.step_planner.faults.items() if name == "grammar"}
    return {"steps": list(SEEN), "left": len(grammars.constrained), "faults": faults}


LETTERS = [tokenizer().convert_tokens_to_ids(letter) for letter in "QZXJ"]
"""No two of them are one token."""

AFTER = ids("x = 1\ny = 2\nx = 1\ny = 2\n")
"""What they are sampled after: the second of them is likely there."""


@pytest.fixture(scope="session")
def drawing(engine: Callable[..., Engine]) -> Engine:
    """Drafts from a distribution that it states, half of which the grammar forbids."""
    drawn = {"tokens": [LETTERS[1], NEWLINE]}
    settings = {"proposer": "uniform-probs", "policy": "fixed", "options": {"uniform-probs": drawn}}
    return engine("v1", settings, name="v1, drawn under a grammar", max_num_seqs=32, draft_length=2)


def sampled(drawing: Engine, count: int) -> dict[str, Any]:
    """Sample answers whose second token was drafted, and count meanwhile."""
    params = {"structured_outputs": {"regex": "[QZXJ]{4}"}, "temperature": 1.0, "max_tokens": 4}
    return drawing.call("served.counted", prompts=[AFTER] * count, params=[params] * count)


def test_drawn_drafts_keep_the_distribution(drawing):
    """The cut depends on the drawn tokens, so verifying by the stated distribution would bias the output."""
    count = 800
    found = sampled(drawing, count)
    counts = torch.zeros(len(LETTERS), len(LETTERS))
    for one, other in (answer["token_ids"][:2] for answer in found["answers"]):
        counts[LETTERS.index(one), LETTERS.index(other)] += 1
    first = forward(AFTER)[LETTERS].double().softmax(-1)
    after = torch.stack([forward([*AFTER, letter])[LETTERS].double().softmax(-1) for letter in LETTERS])
    assert g_test(counts.flatten().numpy(), (first[:, None] * after).flatten().numpy()) > 1e-4
    assert found["total"]["cut_by_grammar"] > count / 2
    assert found["total"]["accepted"] > count / 5


def test_nothing_is_added_to_drafts_that_state_a_distribution(drawing):
    """A token that is added has none."""
    found = sampled(drawing, 4)
    assert found["total"]["verified"] == found["total"]["proposed"] - found["total"]["cut_by_grammar"]
    assert not drawing.call(adds)


def adds(llm: Any) -> bool:
    return bool(inside.scheduler(llm)._grammars.adds)
