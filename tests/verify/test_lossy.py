"""The lossy verifiers: their rules against plain Python, thresholds per row, and the departure that they report."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug import PluginContext
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import VerifierSpec
from specplug.testing import VerifierContract
from specplug.testing.batches import VerifyStep
from specplug.types.caps import Distribution, EngineCaps
from specplug.types.tensors import tensors_of
from specplug.verify.draft_distribution import was_drawn
from specplug.verify.lossy import ThresholdVerifier, TypicalVerifier
from specplug.verify.reference import ReferenceVerifier
from specplug.verify.target import target_probs
from tests.verify.full_probs import full_probs

VOCAB = 5
FEW = settings(max_examples=40)
KINDS = {"threshold": ThresholdVerifier, "typical": TypicalVerifier}


class TestThreshold(VerifierContract):
    spec = default_registry().get(VerifierSpec, "threshold")


class TestTypical(VerifierContract):
    spec = default_registry().get(VerifierSpec, "typical")


def verifier(name, threshold=None):
    model = default_registry().get(VerifierSpec, name).options_model()
    options = model() if threshold is None else model(threshold=threshold)
    return KINDS[name](PluginContext(EngineCaps(4), options=options, vocab_size=VOCAB))


@st.composite
def steps(draw):
    sizes = {"batch_size": draw(st.integers(1, 4)), "draft_length": draw(st.integers(0, 4))}
    step = VerifyStep.random(
        draw(st.integers(0, 10_000)), draw(st.sampled_from(list(Distribution))), vocab_size=VOCAB, **sizes
    )
    thresholds = draw(
        st.lists(
            st.sampled_from([math.nan, 0.05, 0.3, 0.8, 1.0]), min_size=sizes["batch_size"], max_size=sizes["batch_size"]
        )
    )
    return replace(step, sampling=replace(step.sampling, acceptance_threshold=torch.tensor(thresholds)))


def is_plausible(name, distribution, token, threshold):
    """Say in plain Python whether a token is accepted without asking the random numbers."""
    p = distribution[token]
    if threshold >= 1 or p <= 0:
        return False
    if name == "threshold":
        return p >= threshold * max(distribution)
    entropy = -sum(each * math.log(each) for each in distribution if each > 0)
    return p >= min(threshold, math.sqrt(threshold) * math.exp(-entropy))


def drawn_by(distribution, number):
    """Return the token that a number draws."""
    cumulated = list(itertools.accumulate(distribution))
    return next(token for token, upto in enumerate(cumulated) if upto > number * cumulated[-1])


@pytest.mark.parametrize("name", KINDS)
@FEW
@given(steps())
def test_equals_the_rule_in_plain_python(name, step):
    found = step.verify(verifier(name))
    sampling = {key: value for key, value in tensors_of(step.sampling).items() if key != "acceptance_threshold"}
    warm = sampling | {"temperature": torch.where(sampling["temperature"] == 0, 1.0, sampling["temperature"])}
    own, judged = (target_probs(step.dense, **which).double() for which in (sampling, warm))
    q, drawn = full_probs(step.draft, step.sampling.temperature, VOCAB), was_drawn(step.draft, sampling["temperature"])
    thresholds = step.sampling.acceptance_threshold.tolist()
    default = 0.5 if name == "threshold" else 0.09
    for row, length in enumerate(step.draft.lengths.tolist()):
        threshold = default if math.isnan(thresholds[row]) else thresholds[row]
        accepted, departed = 0, 0.0
        for place, token in enumerate(step.draft.token_ids[row, :length].tolist()):
            keeps = min(1.0, float(own[row, place, token] / q[row, place, token].clamp(min=1e-30)))
            plausible = is_plausible(name, judged[row, place].tolist(), token, threshold)
            if drawn[row, place]:
                is_kept = float(step.uniforms.accept[row, place]) < keeps
            else:
                is_kept = drawn_by(own[row, place].tolist(), float(step.uniforms.draw[row, place])) == token
            if not plausible and not is_kept:
                break
            accepted += 1
            departed += (1 - keeps) if plausible else 0.0
        assert found.num_accepted[row] == accepted
        assert found.departed[row].item() == pytest.approx(departed, abs=1e-5)


@pytest.mark.parametrize("name", KINDS)
@FEW
@given(steps())
def test_threshold_1_is_lossless(name, step):
    strict = replace(step, sampling=replace(step.sampling, acceptance_threshold=None))
    found, expected = strict.verify(verifier(name, 1.0)), strict.verify(ReferenceVerifier())
    assert torch.equal(found.token_ids, expected.token_ids)
    assert not found.departed.any()


@pytest.mark.parametrize("all_greedy", [False, True])
@pytest.mark.parametrize("name", KINDS)
@FEW
@given(step=steps())
def test_greedy_rows_are_told_apart_or_not(name, all_greedy, step):
    """The shortcut for batches in which every row is greedy gives the same result."""
    step = step.as_greedy(all_greedy=all_greedy)
    found = step.verify(verifier(name))
    other = replace(step, sampling=replace(step.sampling, all_greedy=not all_greedy)).verify(verifier(name))
    assert torch.equal(found.token_ids, other.token_ids)
    assert torch.equal(found.departed, other.departed)
