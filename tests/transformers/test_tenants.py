"""A tenant of the embedded engine learns nothing of another's responses from drafts and counts, whatever it sends."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.requests import clients
from specplug_transformers import Engine, GenerateRequest, RequestOutput, SamplingParams
from tests.transformers import toys

TRICKS: list[dict[str, Any]] = [
    {},
    {"tenant": "victim "},
    {"tenant": "Victim"},
    {"tenant": "('victim', (), None, None)"},
    {"tenant": "key:victim"},
    {"tenant": "victim\0"},
    {"tenant": "thief", "corpora": ["victim"], "documents": ["victim"]},
    {"tenant": "victim", "store": False},
]


def remembered(engine: Engine, prompt: list[int], fields: dict[str, Any]) -> tuple[int, RequestOutput]:
    """Serve a prompt; return how many tokens of earlier responses were proposed for it, and its output."""
    before = engine.metrics.snapshot()
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    [output] = engine.generate([GenerateRequest(prompt=prompt, params=params, specplug=fields)])
    return (engine.metrics.snapshot() - before).by_source["ngram/response memory"].proposed, output


def thieves(make_engine: Any) -> list[int]:
    """Let each trick send a prompt that a victim has sent before; return what it was proposed."""
    found, engine = [], make_engine(proposer="ngram", policy="fixed")
    for place, trick in enumerate(TRICKS):
        prompt = [60 + place, *toys.prompts(1)[0]]
        output = remembered(engine, prompt, {"tenant": "victim"})[1]
        stolen, again = remembered(engine, prompt, trick)
        assert again.token_ids == output.token_ids
        found.append(stolen)
        assert remembered(engine, prompt, {"tenant": "victim"})[0] > 0, "there was something to find"
    return found


def test_no_trick_drafts_from_another_tenants_responses(make_engine: Any) -> None:
    assert thieves(make_engine) == [0] * len(TRICKS)


def test_a_key_that_leaves_out_the_tenant_would_be_noticed(make_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specplug_transformers.intake.isolation_key", lambda tenant: clients.isolation_key(None))
    assert max(thieves(make_engine)) > 0


def test_who_may_share(make_engine: Any) -> None:
    engine = make_engine(proposer="recorder")
    keys = []
    for tenant in (None, "a", "b"):
        fields = None if tenant is None else {"tenant": tenant}
        engine.generate([GenerateRequest(prompt=[5, 9, 33], params=SamplingParams(max_tokens=1), specplug=fields)])
        request = toys.Recorder.newest.events[-1].request
        assert request.tenant == tenant
        keys.append(request.isolation_key)
    assert keys == [clients.isolation_key(tenant) for tenant in (None, "a", "b")]
    assert len(set(keys)) == len(keys)
