"""A specplug verifier decides instead of the engine's own, on both runners, and nothing else changes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest

from specplug.testing.statistics import g_test
from tests.engines.vllm.inside import runner

RUNNERS = ["v1", "v2"]
CODE = "import os\n\n\ndef read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write("
PROMPTS = [CODE, "class Foo:\n    def __init__(self):\n", "import os, sys\n"]
DRAWN = {"v1": "uniform-probs", "v2": "uniform"}  # states the distribution that the runner's verification takes
TOP_K, TOKENS = 4, 3
SAMPLES = {"v1": 2048, "v2": 384}  # V2 interprets its kernels on a CPU

# No prompt comes in pieces: vLLM's V1 on a CPU ends when a seeded one does.
MANY = {"max_num_seqs": 64, "max_num_batched_tokens": 16384}


# -- run inside the engine's process ------------------------------------------------------------------------------


def plant(llm: Any, mutant: str | None = None, lossless: bool = True) -> None:
    """Put a recording verifier in place, the reference or one that errs, and count from 0."""
    plant_in(runner(llm), mutant)
    drafter_of(runner(llm)).verifier.lossless = lossless


def counts(llm: Any) -> dict[str, Any]:
    """Return what the verifier that was planted has decided."""
    return counts_in(runner(llm))


def plant_in(model_runner: Any, mutant: str | None = None) -> None:
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

    server = drafter_of(model_runner).verifier
    server.__dict__.setdefault("configured", server.plugin)
    server.plugin = Recording()


def counts_in(model_runner: Any) -> dict[str, Any]:
    found: dict[str, Any] = drafter_of(model_runner).verifier.plugin.counts
    return found


def drafter_of(model_runner: Any) -> Any:
    return getattr(model_runner, "speculator", None) or model_runner.drafter


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


@pytest.fixture
def drawing(kind, engine, distribution):
    """Draws drafts at random and states their distribution."""
    tokens = sorted({token for outcome in distribution for token in outcome})
    options = {DRAWN[kind]: {"tokens": tokens, "spread": 1.0}}
    settings = {"proposer": DRAWN[kind], "verifier": "reference", "options": options}
    found = engine(kind, settings, name=f"drawing {kind}", **MANY)
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


# -- sampling -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def distribution(baseline_v1) -> dict[tuple[int, ...], float]:
    """The outcomes of `TOKENS` sampled tokens and their probabilities, by plain decoding's own log-probabilities."""
    prompt = baseline_v1.call(encoded)
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(TOKENS):
        outputs = list(found)
        nexts = baseline_v1.call(
            "inside.generate",
            prompts=[prompt + list(output) for output in outputs],
            params={"max_tokens": 1, "logprobs": TOP_K},
        )
        grown = {}
        for output, answer in zip(outputs, nexts, strict=True):
            top = sorted(answer["logprobs"][0].items(), key=lambda item: -item[1])[:TOP_K]
            total = sum(math.exp(logprob) for _, logprob in top)
            for token, logprob in top:
                grown[(*output, int(token))] = found[output] * math.exp(logprob) / total
        found = grown
    return found


def encoded(llm: Any) -> list[int]:
    """Return the prompt of the distribution."""
    ids: list[int] = llm.get_tokenizer().encode(CODE)
    return ids


def p_value(engine: Any, distribution: dict[tuple[int, ...], float], samples: int) -> float:
    """Sample, with drafts of the likeliest tokens, and test against the distribution."""
    prefix: tuple[int, ...] = ()
    for _ in range(TOKENS):
        nexts = {outcome[: len(prefix) + 1] for outcome in distribution if outcome[: len(prefix)] == prefix}
        prefix = sorted(nexts, key=lambda begin: -_mass(distribution, begin))[0]
    params: dict[str, Any] = {"temperature": 1.0, "top_k": TOP_K, "max_tokens": TOKENS, "ignore_eos": True}
    prompt = engine.call(encoded)
    fields = verified_with(list(prefix))
    given = [params | fields] * samples  # those with a seed are not the verifier's
    answers = engine.call("inside.generate", prompts=[prompt] * samples, params=given)
    outcomes = list(distribution)
    found = [tuple(answer["token_ids"]) for answer in answers]
    if not distribution.keys() >= set(found):
        return 0.0  # top-k forbids it
    return g_test([found.count(outcome) for outcome in outcomes], [distribution[outcome] for outcome in outcomes])


def _mass(distribution: dict[tuple[int, ...], float], begin: tuple[int, ...]) -> float:
    return sum(p for outcome, p in distribution.items() if outcome[: len(begin)] == begin)


def test_the_distribution_of_drawn_drafts_is_taken_into_account(kind, drawing, distribution):
    assert p_value(drawing, distribution, SAMPLES[kind]) > 1e-4
    seen = drawing.call(counts)
    assert seen["drafted"] >= SAMPLES[kind]
    assert seen.get("draft_probs" if kind == "v1" else "draft_logits") == seen["calls"]


def test_a_wrong_verifier_is_found_out(kind, verified, distribution):
    """The same test at the same size rejects a wrong distribution."""
    verified.call(plant, mutant="reused random number")
    assert p_value(verified, distribution, SAMPLES[kind]) < 1e-6
