"""The reference verifier is lossless, by exact enumeration, and the planted wrong verifiers are not.

The distribution of the next N + 1 tokens, over all outcomes of the verifier's random numbers and all drafts, equals the
target's to 1e-6; see specplug.testing.output_distribution.
"""

import itertools
from dataclasses import replace

import pytest
import torch

from specplug.testing.output_distribution import (
    MISTAKEN_DISTRIBUTIONS,
    Case,
    Knobs,
    TinyModel,
    distribution_error,
    emitted_distribution,
    target_distribution,
)
from specplug.types.caps import Distribution
from specplug.verify.reference import ReferenceVerifier
from tests.mutants import LOSSY_MUTANTS

EXACT, LOSSY = 1e-6, 1e-3

KNOBS = {
    "plain": Knobs(),
    "greedy": Knobs(temperature=0.0),
    "cold": Knobs(temperature=0.5),
    "hot": Knobs(temperature=2.0),
    "top-k": Knobs(top_k=2),
    "top-p": Knobs(top_p=0.7),
    "all": Knobs(temperature=1.3, top_k=3, top_p=0.9, min_p=0.15),
}
FULL = [Distribution.LOGITS, Distribution.PROBS]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def fixed_drafts(vocab, draft_length, knobs, seed=0, padding=()):
    """One case per draft, likely or not: a one-hot proposer may always draft the same."""
    target = TinyModel.random(vocab, draft_length + 1, seed)
    for drafted in itertools.product(range(vocab), repeat=draft_length - len(padding)):
        yield Case(target, knobs, drafted, padding=padding)


def drawn_drafts(vocab, draft_length, knobs, distribution, seed=0):
    """Drafts of a model that has nothing in common with the target."""
    target, draft_model = (
        TinyModel.random(vocab, draft_length + 1, seed),
        TinyModel.random(vocab, draft_length, seed + 1),
    )
    return Case(target, knobs, draft_model=draft_model, distribution=distribution)


def lossless_cases():
    """Yield every kind of draft with the knobs that matter to it, as name and cases."""
    few = {name: KNOBS[name] for name in ("plain", "greedy", "top-k")}
    for name, knobs in KNOBS.items():
        one_hot = [fixed_drafts(vocab, n, knobs, seed) for vocab in (3, 4) for n in (0, 1) for seed in range(3)]
        yield f"one-hot, {name}", itertools.chain(*one_hot)
        for stated in FULL:
            drawn = [drawn_drafts(vocab, 1, knobs, stated, seed) for vocab in (3, 4) for seed in range(3)]
            yield f"drawn by {stated.value}, {name}", drawn
    for name, knobs in few.items():
        yield f"one-hot, two tokens, {name}", fixed_drafts(3, 2, knobs)
        for stated, part in itertools.product(FULL, [(2,), (3, 0), (1, 3, 2), (2, 0, 3, 1)]):
            drawn = [replace(drawn_drafts(4, 1, knobs, stated, seed), draft_vocab=part) for seed in range(2)]
            yield f"drawn from {part} by {stated.value}, {name}", drawn
        for padding, length in ((2, 1), (-1, 1), (0, 2)):
            yield f"padding {padding}, {name}", fixed_drafts(3, length, knobs, padding=(padding,))
    for stated, part in zip(FULL, (None, (2, 0)), strict=True):
        yield f"two tokens by {stated.value}", [replace(drawn_drafts(3, 2, Knobs(), stated), draft_vocab=part)]
    same = TinyModel.random(4, 2, seed=5)  # nothing is rejected, and the residual is empty up to rounding
    yield "the target's own", [Case(same, draft_model=TinyModel(same.levels[:1]), distribution=Distribution.PROBS)]
    says, drafts = torch.tensor([[0.0, 1.0, -40.0, -40.0]]), torch.tensor([[-40.0, -40.0, 0.5, 0.0]])
    target = TinyModel((says.double(), TinyModel.random(4, 2, seed=1).levels[1]))
    never = Case(target, draft_model=TinyModel((drafts.double(),)), distribution=Distribution.LOGITS)
    yield "what the target never says", [never]


@pytest.mark.parametrize("cases", [pytest.param(list(cases), id=name) for name, cases in lossless_cases()])
def test_the_output_has_the_targets_distribution(cases):
    for case in cases:
        assert target_distribution(case).sum().item() == pytest.approx(1.0, abs=1e-9)
        assert distribution_error(ReferenceVerifier(), case) < EXACT


def controls():
    """Settings that the mutants are tried in; where a setting has several cases, the worst of them counts."""
    cases = {
        "one-hot": fixed_drafts(4, 1, Knobs()),
        "top-k": fixed_drafts(4, 1, Knobs(top_k=3)),
        "drawn": [drawn_drafts(4, 1, Knobs(), Distribution.PROBS)],
        "part": [replace(drawn_drafts(4, 1, Knobs(), Distribution.PROBS), draft_vocab=(3, 1))],
        "drawn by logits": [drawn_drafts(4, 1, Knobs(temperature=0.8), Distribution.LOGITS)],
        "padding": fixed_drafts(4, 1, Knobs(), padding=(1,)),
    }
    return {name: [replace(case, judged_by=MISTAKEN_DISTRIBUTIONS) for case in some] for name, some in cases.items()}


CONTROLS = controls()
APPLIES = {name: ["one-hot", "top-k", "drawn", "drawn by logits"] for name in LOSSY_MUTANTS} | {
    "dropped validity mask": ["padding"],
    "resampling from p": ["drawn", "drawn by logits", "part"],
    "draft law at another temperature": ["drawn", "drawn by logits", "part"],
    "uniform draft law": ["drawn", "part"],
}


def worst(verifier, cases):
    return max(distribution_error(verifier, case) for case in cases)


@pytest.mark.parametrize("setting", CONTROLS)
def test_the_reference_passes_where_mutants_fail(setting):
    assert worst(ReferenceVerifier(), CONTROLS[setting]) < EXACT


@pytest.mark.parametrize(("name", "setting"), [(name, each) for name in LOSSY_MUTANTS for each in APPLIES[name]])
def test_mutants_fail(name, setting):
    assert worst(LOSSY_MUTANTS[name](), CONTROLS[setting]) > LOSSY


def test_enumeration_by_hand():
    """V = 2, one draft token: p = (0.75, 0.25), then always token 1."""
    levels = (torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[-50.0, 0.0], [-50.0, 0.0]]))
    case = Case(TinyModel(tuple(level.double() for level in levels)), drafted=(0,))
    torch.testing.assert_close(target_distribution(case), torch.tensor([0.0, 0.75, 0.0, 0.25], dtype=torch.float64))
    always = LOSSY_MUTANTS["accepts always"]()
    torch.testing.assert_close(
        emitted_distribution(always, case), torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    )
