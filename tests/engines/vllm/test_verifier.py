"""A specplug verifier decides instead of the engine's own, on both runners, and nothing else changes.

`test_sampling` holds its samples against the exact distribution.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.engines.vllm.watching import drafter

RUNNERS = ["v1", "v2"]
CODE = "import os\n\n\ndef read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write("
PROMPTS = [CODE, "class Foo:\n    def __init__(self):\n", "import os, sys\n"]
# No prompt comes in pieces: vLLM's V1 on a CPU ends when a seeded one does.
MANY = {"max_num_seqs": 64, "max_num_batched_tokens": 16384}


# -- run inside the engine's process ------------------------------------------------------------------------------


def plant(llm: Any, mutant: str | None = None, lossless: bool = True) -> None:
    """Put a recording verifier in place, the reference or one that errs, and count from 0."""
    from specplug.verify.reference import ReferenceVerifier
    from tests.mutants import LOSSY_MUTANTS

    kind = LOSSY_MUTANTS[mutant] if mutant else ReferenceVerifier

    class Recording(kind):  # type: ignore[misc, valid-type]
        counts: ClassVar[dict[str, Any]] = {"calls": 0, "greedy": 0, "drafted": 0, "accepted": 0, "emitted": []}

        def verify(self, draft: Any, target: Any, sampling: Any, uniforms: Any) -> Any:
            found, counts = super().verify(draft, target, sampling, uniforms), self.counts
            counts["calls"] += 1
            counts["greedy"] += sampling.all_greedy
            counts["drafted"] += int(draft.lengths.sum())
            counts["accepted"] += int(found.num_accepted.sum())
            counts["emitted"].append(found.token_ids.tolist())
            counts[draft.distribution.value] = counts.get(draft.distribution.value, 0) + 1
            return found

    server = drafter(llm).verifier
    server.lossless = lossless
    server.__dict__.setdefault("configured", server.plugin)
    server.plugin = Recording()


def counts(llm: Any) -> dict[str, Any]:
    """Return what the verifier that was planted has decided."""
    found: dict[str, Any] = drafter(llm).verifier.plugin.counts
    return found


# -- engines ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=RUNNERS)
def kind(request):
    return request.param


@pytest.fixture
def baseline(kind, baseline_v1, baseline_v2):
    return baseline_v1 if kind == "v1" else baseline_v2


@pytest.fixture
def verified(kind, engine):
    """The oracle drafts a request's reference, as one-hot drafts."""
    settings = {"proposer": "oracle", "verifier": "threshold", "acceptance_thresholds": {"any": 1e-30}}
    found = engine(kind, settings, name=f"verified {kind}", **MANY)
    found.call(plant)
    return found


def verified_with(reference: list[int], **fields: Any) -> dict[str, Any]:
    return {"extra_args": {"specplug": {"references": [{"token_ids": reference}], **fields}}}


def spoiled(ids: list[int], every: int) -> list[int]:
    """Return an answer in which each n-th token is wrong."""
    return [(token + 1) % 2048 if (place + 1) % every == 0 else token for place, token in enumerate(ids)]


# -- greedy -------------------------------------------------------------------------------------------------------


def test_greedy_output_is_that_of_plain_decoding(baseline, verified):
    plain = baseline.call("inside.generate", prompts=PROMPTS)
    params = [verified_with(spoiled(answer["token_ids"], 7 + row)) for row, answer in enumerate(plain)]
    params[2] = {}  # a row without drafts
    assert verified.call("inside.generate", prompts=PROMPTS, params=params) == plain
    seen = verified.call(counts)
    assert seen["calls"] == seen["greedy"] > 0
    assert seen["accepted"] > 40


def test_the_verifier_decides(baseline, verified):
    """A verifier that keeps every draft changes the output; otherwise the test above would prove nothing."""
    (plain,) = baseline.call("inside.generate", prompts=PROMPTS[:1])
    verified.call(plant, mutant="accepts always")
    (answer,) = verified.call(
        "inside.generate", prompts=PROMPTS[:1], params=[verified_with(spoiled(plain["token_ids"], 5))]
    )
    assert answer["token_ids"][4] == (plain["token_ids"][4] + 1) % 2048


SAMPLING: dict[str, dict[str, Any]] = {
    "min_tokens": {"min_tokens": 30, "stop_token_ids": [199, 10, 13, 5]},
    "allowed tokens": {"allowed_token_ids": list(range(1, 400))},
    "penalties and logprobs": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "logprobs": 2},
    "grammar": {"structured_outputs": {"regex": r"(foo|bar|baz){6,9}"}},
}


@pytest.mark.parametrize("sampling", SAMPLING)
def test_the_engines_own_processing_of_logits_stays(baseline, verified, sampling):
    params = [{**SAMPLING[sampling], "max_tokens": 32}] * 2
    plain = baseline.call("inside.generate", prompts=PROMPTS[:2], params=params)
    fields = [verified_with(spoiled(answer["token_ids"], 6)) for answer in plain]
    answers = verified.call(
        "inside.generate", prompts=PROMPTS[:2], params=[p | f for p, f in zip(params, fields, strict=True)]
    )
    assert [a["token_ids"] for a in answers] == [p["token_ids"] for p in plain]
    assert verified.call(counts)["accepted"] > 4
    for answer, expected in zip(answers, plain, strict=True):
        for found, wanted in zip(answer.get("logprobs", ()), expected.get("logprobs", ()), strict=True):
            assert found == pytest.approx(wanted, abs=1e-4)


# -- opting in ----------------------------------------------------------------------------------------------------


def test_a_lossy_verifier_serves_only_who_asks_for_it(baseline, verified):
    plain = baseline.call("inside.generate", prompts=PROMPTS[:1] * 2)
    verified.call(plant, mutant="accepts always", lossless=False)
    wrong = spoiled(plain[0]["token_ids"], 5)
    params = [verified_with(wrong), verified_with(wrong, verifier="threshold")]
    careful, careless = verified.call("inside.generate", prompts=PROMPTS[:1] * 2, params=params)
    assert careful == plain[0]
    assert careless["token_ids"][4] == wrong[4]


def test_a_verifier_or_threshold_that_the_server_lacks_is_refused(verified):
    def ask(**fields: Any) -> None:
        verified.call("inside.generate", prompts=["x"], params=[verified_with([1], **fields)])

    with pytest.raises(Exception, match=r"this server does not verify with it.*'strict'.*'threshold'"):
        ask(verifier="strict")
    with pytest.raises(Exception, match=r"no such threshold.*'prose'.*'any'"):
        ask(verifier="threshold", acceptance_threshold="prose")
