"""A proposer made of others, registered as a third party would, on the embedded engine."""

from __future__ import annotations

import pytest

from specplug.composing import ComposedProposer
from specplug.interfaces import PluginContext
from specplug.plugins.specs import ProposerSpec
from specplug.types.caps import ProposerCaps
from specplug_transformers import Engine
from tests.transformers import toys
from tests.transformers.conftest import assert_greedy_equal, cached_model, greedy, requests_of

PROMPTS = toys.prompts(5)
MAX_TOKENS = 32


class Spliced(ComposedProposer):
    """Drafts from the text, and at random where that finds nothing."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context, ("ngram", "garbage"))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_its_text_is_the_models_and_each_part_is_credited(temperature):
    model = cached_model("llama")
    spec = ProposerSpec(name="spliced", factory=Spliced, summary="", caps=ProposerCaps())
    settings = {"proposer": "spliced", "policy": "fixed", "num_speculative_tokens": 4}
    settings |= {"options": {"ngram": {"min_n": 1}}, "faults": {"host_deadline_ms": None}}
    engine = Engine(model, settings=settings, max_num_seqs=3, registry=toys.make_registry([spec]))
    requests = requests_of(PROMPTS, max_tokens=MAX_TOKENS, ignore_eos=True, temperature=temperature)
    outputs = engine.generate(requests)
    snapshot = engine.metrics.snapshot()
    engine.close()
    if not temperature:
        expected = [greedy(model, prompt, MAX_TOKENS, eos_token_id=None) for prompt in PROMPTS]
        assert_greedy_equal(model, PROMPTS, expected, [output.token_ids for output in outputs])
        assert snapshot.by_source["spliced/ngram/own text"].accepted > 0
    assert not snapshot.faults
    own, random = (snapshot.by_source[f"spliced/{part}"] for part in ("ngram/own text", "garbage"))
    assert min(own.proposed, random.proposed) > 0
    assert snapshot.total.proposed == sum(counts.proposed for counts in snapshot.by_source.values())
    assert sum(output.accepted for output in outputs) == snapshot.total.accepted
