"""A recorded trace gets the same drafts, to the last bit, from the draft stage and from compiled steps.

A replay takes either; `test_stream_steps` compares them with steps that run late, as in engines.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from specplug.cli.replay import SHIPPED
from specplug.match.cpu.parallel import FEWEST_ROWS
from specplug.replay import Setup, load_tokenizer, read_traces, tokenize
from specplug.replay.engine import ReplayEngine
from specplug.replay.items import corpora_of, stored
from specplug.replay.score import Offer
from specplug.runtime.stream_steps import StreamSteps
from tests.replay.tools import in_turn

MOST = 24  # tokens of an answer
SLOTS = FEWEST_ROWS + 4  # so many rows that threads share them
ITEMS = tokenize(read_traces(SHIPPED)["structured"], load_tokenizer("tiny"))
PARTS = [
    replace(item, id=f"{item.id} {skip}", prompt=item.prompt[20 * skip :], output=item.output[skip : skip + MOST])
    for skip, item in product(range(14), ITEMS)
]
CORPORA = corpora_of(ITEMS[:6], documents=True)


def fingerprint(engine: Any) -> tuple[float, str]:
    """Serve the trace, and return the tokens per step and a hash of all drafts."""
    digest, propose = hashlib.sha256(), engine.propose

    def hashed() -> list[Offer]:
        offers = propose()
        digest.update(repr([[[*it.token_ids], [*it.confidence], it.parents or []] for it in offers]).encode())
        return offers

    engine.propose = hashed
    return in_turn(engine, PARTS, SLOTS).tau, digest.hexdigest()


@pytest.mark.parametrize("trees", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("proposer", ["ngram", "retrieval"])
def test_engines_draft_as_a_replay_does(proposer, trees, monkeypatch):
    setup = Setup(proposer, "fixed", gamma=8, trees=trees, references=True)
    one, two = (replace(setup, options={proposer: {"threads": count}}) for count in (1, 2))
    with stored(CORPORA) as store:
        given = {"max_length": 2048, "vocab_size": 1 << 16, "slots": SLOTS, "store": store}
        compiled = ReplayEngine(two, **given)
        monkeypatch.setattr(StreamSteps, "applies", staticmethod(lambda _: False))
        of_stage = ReplayEngine(one, **given)
        monkeypatch.undo()
        assert (compiled._slots.is_compiled, of_stage._slots.is_compiled) == (True, False)
        found = fingerprint(of_stage)
        assert found[0] > 2
        assert fingerprint(compiled) == found
