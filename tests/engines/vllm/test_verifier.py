"""A specplug verifier decides instead of the engine's own, on both runners, and nothing else changes.

`test_sampling` holds its samples against the exact distribution, `tests/adapters/test_vllm_verifier.py` single rows.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.engines.vllm.watching import drafter

on_both = pytest.mark.parametrize("kind", ["v1", "v2"], indirect=True)
CODE = "import os\n\n\ndef read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write("
PROMPTS = [CODE, "class Foo:\n    def __init__(self):\n", "import os, sys\n"]
# Prompts are whole, as seeded requests of V1 on a CPU need them.
MANY = {"max_num_seqs": 64, "max_num_batched_tokens": 16384}


# -- run inside the engine's process ------------------------------------------------------------------------------


def plant(llm: Any, mutant: str | None = None) -> None:
    """Put a recording verifier in place that passes for lossless, the reference or one that errs; count from 0."""
    from specplug.verify.reference import ReferenceVerifier
    from tests.mutants import LOSSY_MUTANTS

    kind = LOSSY_MUTANTS[mutant] if mutant else ReferenceVerifier

    class Recording(kind):  # type: ignore[misc, valid-type]
        counts: ClassVar[dict[str, int]] = {"calls": 0, "greedy": 0, "accepted": 0}

        def verify(self, draft: Any, target: Any, sampling: Any, uniforms: Any) -> Any:
            found = super().verify(draft, target, sampling, uniforms)
            counts = self.counts
            counts["calls"] += 1
            counts["greedy"] += sampling.all_greedy
            counts["accepted"] += int(found.num_accepted.sum())
            return found

    server = drafter(llm).verifier
    server.__dict__.setdefault("configured", server.plugin)
    server.plugin = Recording()
    server.lossless = True


def serve_as_configured(llm: Any) -> None:
    """Put the verifier back that the server's settings name."""
    server = drafter(llm).verifier
    server.plugin = server.__dict__.get("configured", server.plugin)
    server.lossless = False


def lossy_counts(llm: Any) -> tuple[int, float]:
    """Return how many draft tokens lossy verification has accepted, and how many of them departed."""
    found = drafter(llm).drafting.stage.metrics.snapshot().lossy
    return found.accepted, found.departed


def counts(llm: Any) -> dict[str, Any]:
    """Return what the verifier that was planted has decided."""
    found: dict[str, Any] = drafter(llm).verifier.plugin.counts
    return found


# -- engines ------------------------------------------------------------------------------------------------------


@pytest.fixture
def verified(kind, engine):
    """The oracle drafts a request's reference, as one-hot drafts."""
    settings = {"proposer": "oracle", "verifier": "threshold", "acceptance_thresholds": {"any": 1e-30}}
    return engine(kind, settings, name=f"verified {kind}", **MANY)


def verified_with(reference: list[int], **fields: Any) -> dict[str, Any]:
    return {"specplug": {"references": [{"token_ids": reference}], **fields}}


def spoiled(ids: list[int], every: int) -> list[int]:
    """Return an answer in which each n-th token is wrong."""
    return [(token + 1) % 2048 if (place + 1) % every == 0 else token for place, token in enumerate(ids)]


# -- greedy -------------------------------------------------------------------------------------------------------


@on_both
@pytest.mark.slow
def test_greedy_output_is_that_of_plain_decoding(baseline, verified):
    plain = baseline.call("inside.generate", prompts=PROMPTS)
    params = [verified_with(spoiled(answer["token_ids"], 7 + row)) for row, answer in enumerate(plain)]
    params[2] = {}  # a row without drafts
    verified.call(plant)
    assert verified.call("inside.generate", prompts=PROMPTS, params=params) == plain
    seen = verified.call(counts)
    assert seen["calls"] == seen["greedy"] > 0
    assert seen["accepted"] > 40


SAMPLING: dict[str, dict[str, Any]] = {
    "min_tokens": {"min_tokens": 30, "stop_token_ids": [199, 10, 13, 5]},
    "allowed tokens": {"allowed_token_ids": list(range(1, 400))},
    "penalties and logprobs": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "logprobs": 2},
    "grammar": {"structured_outputs": {"regex": r"(foo|bar|baz){6,9}"}},
}


@on_both
@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLING)
def test_the_engines_own_processing_of_logits_stays(baseline, verified, sampling):
    params = [{**SAMPLING[sampling], "max_tokens": 32}] * 2
    plain = baseline.call("inside.generate", prompts=PROMPTS[:2], params=params)
    fields = [verified_with(spoiled(answer["token_ids"], 6)) for answer in plain]
    verified.call(plant)
    answers = verified.call(
        "inside.generate", prompts=PROMPTS[:2], params=[p | f for p, f in zip(params, fields, strict=True)]
    )
    assert [a["token_ids"] for a in answers] == [p["token_ids"] for p in plain]
    assert verified.call(counts)["accepted"] > 4
    for answer, expected in zip(answers, plain, strict=True):
        for found, wanted in zip(answer.get("logprobs", ()), expected.get("logprobs", ()), strict=True):
            assert found == pytest.approx(wanted, abs=1e-4)


# -- opting in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["v1", pytest.param("v2", marks=pytest.mark.slow)], indirect=True)
def test_each_request_has_its_own_threshold(baseline, verified):
    """A lossy verifier decides for who asks for it, as lenient as each asks, and is counted."""
    [plain] = baseline.call("inside.generate", prompts=PROMPTS[:1])
    verified.call(serve_as_configured)
    before = verified.call(lossy_counts)
    wrong = spoiled(plain["token_ids"], 5)
    fields: list[dict[str, Any]] = [{}, {"acceptance_threshold": 1}, {"acceptance_threshold": "any"}]
    params = [verified_with(wrong, **given, **({"verifier": "threshold"} if given else {})) for given in fields]
    lossless, strict, lenient = verified.call("inside.generate", prompts=PROMPTS[:1] * 3, params=params)
    assert lossless == strict == plain
    assert lenient["token_ids"][4] == wrong[4]
    accepted, departed = (after - early for after, early in zip(verified.call(lossy_counts), before, strict=True))
    assert 1 <= departed < accepted


@on_both
@pytest.mark.slow
def test_a_verifier_or_threshold_that_the_server_lacks_is_refused(verified):
    def ask(**fields: Any) -> None:
        verified.call("inside.generate", prompts=["x"], params=[verified_with([1], **fields)])

    with pytest.raises(Exception, match=r"this server does not verify with it.*'strict'.*'threshold'"):
        ask(verifier="strict")
    with pytest.raises(Exception, match=r"no such threshold.*'prose'.*'any'"):
        ask(verifier="threshold", acceptance_threshold="prose")
