"""Sampled outputs must follow the control's distribution.

The tokens after every context that occurred often enough are tested against the distribution after that context, and
the tests' statistics are added up, because tokens after different contexts are independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specplug.testing.equality import MIN_EXPECTED, GStatistic, g_excess, g_statistic, pool
from specplug.tools.audit.probe import TOP_LOGPROBS, Check, ControlAnswers, Finding, Material, Probe, report_finding
from specplug.tools.client.answers import Answer

LENGTH = 4
"""Tokens of each sample.  The first one follows the prompt and has no draft on most engines."""

MOST_PROMPTS = 4
ALPHA = 1e-4
POWER = 0.9
WEAK = 0.5
"""If only larger departures can be found, the check proves nothing."""

LEAST_SAMPLES = int(5 * MIN_EXPECTED)
"""Outputs that must share a context for the tokens after it to be tested."""

OTHER = -1
"""Stands for all tokens that are not among the likeliest ones."""

Context = tuple[int, ...]
Distribution = Mapping[int, float]


def next_tokens(outputs: Iterable[Sequence[int]], least: int) -> dict[Context, Counter[int]]:
    """Return the counts of the token after every context that at least `least` outputs share."""
    found: dict[Context, Counter[int]] = {}
    for tokens in outputs:
        for place, token in enumerate(tokens):
            found.setdefault(tuple(tokens[:place]), Counter())[token] += 1
    return {context: counts for context, counts in found.items() if counts.total() >= least}


def from_logprobs(top: Mapping[int, float], temperature: float, top_k: int) -> Distribution:
    """Return the sampling distribution, by the log-probabilities of the likeliest tokens at temperature 1.

    Exact for `top_k` up to the number of log-probabilities at any temperature, and without `top_k` at temperature 1,
    where the rest of the mass is that of `OTHER`.
    """
    if not top_k:
        assert temperature == 1, "the mass of tokens that are not listed is known at temperature 1 only"
        probs = {token: math.exp(logprob) for token, logprob in top.items()}
        return {**probs, OTHER: max(0.0, 1 - sum(probs.values()))}
    likeliest = sorted(top, key=lambda token: -top[token])[:top_k]
    highest = top[likeliest[0]]
    weights = {token: math.exp((top[token] - highest) / temperature) for token in likeliest}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def compare_exact(counts: Counter[int], distribution: Distribution) -> GStatistic:
    """Return the G-statistic of observed tokens against a distribution."""
    tokens = [token for token in distribution if token != OTHER]
    observed = [counts[token] for token in tokens]
    probs = np.array([*(distribution[token] for token in tokens), distribution.get(OTHER, 0.0)])
    return g_statistic([*observed, counts.total() - sum(observed)], probs / probs.sum())


def compare_sample(counts: Counter[int], control: Counter[int]) -> GStatistic:
    """Return the G-statistic that two samples are from one distribution."""
    tokens = sorted({*counts, *control})
    table = np.array([[sample[token] for token in tokens] for sample in (counts, control)], np.float64)
    shares = table.sum(0) / table.sum()
    cells = pool(shares * table.sum(1).min())
    pooled = np.array([[row[cell].sum() for cell in cells] for row in table])
    expected = pooled.sum(1, keepdims=True) * pooled.sum(0) / pooled.sum()
    seen = pooled > 0
    return GStatistic(2 * float((pooled[seen] * np.log(pooled[seen] / expected[seen])).sum()), len(cells) - 1)


class Sample(NamedTuple):
    """The tokens after one context: the size of their sample, their true distribution, and whether they had drafts."""

    size: float
    distribution: Distribution
    had_drafts: bool

    def excess(self, share: float) -> GStatistic:
        """Return what is expected of the statistic if the likeliest token is forced on a share of the draws."""
        probs = np.array([*self.distribution.values()])
        probs = probs / probs.sum()
        forced = np.zeros(len(probs))
        forced[probs.argmax()] = 1
        share = share if self.had_drafts else 0.0
        return g_excess(self.size, probs, (1 - share) * probs + share * forced)


def detectable_share(kinds: Collection[Sequence[Sample]], alpha: float, power: float) -> float | None:
    """Return the smallest share of forced tokens that one of the tests, of a kind each, finds with probability `power`.

    The departure is that of a verifier that accepts a draft on this share of the draws, whatever the target says, where
    the draft is the likeliest token.  None is returned if even a text of likeliest tokens alone would not be found.
    """

    def found(share: float) -> bool:
        totals = [sum((tested.excess(share) for tested in kind), GStatistic()) for kind in kinds]
        return 1 - math.prod(1 - total.power(alpha) for total in totals) >= power

    low = 0.0
    high = 1.0
    if not found(high):
        return None
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


class Group(NamedTuple):
    """The samples of one prompt with the same sampling parameters."""

    prompt: tuple[int, ...]
    expected: tuple[int, ...]
    temperature: float
    top_k: int

    def probe(self, number: int) -> Probe:
        """Return the probe of one sample; drafts have different lengths, so that rows of a batch are padded."""
        end = len(self.prompt) + 1 + number % LENGTH
        return Probe(
            prompt=self.prompt,
            max_tokens=LENGTH,
            temperature=self.temperature,
            top_k=self.top_k,
            expected=self.expected[:end],
        )


class Sampled(Check):
    """Samples a few tokens, `samples` times for each prompt and kind, and tests the tokens after frequent contexts."""

    name = "sampled"

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def probes(self, material: Material) -> list[Probe]:
        return [
            group.probe(number + place)
            for number in range(self._samples)
            for place, group in enumerate(_groups(material))
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: ControlAnswers) -> list[Probe]:
        """Return a request for the log-probabilities after each frequent context, or samples without them."""
        if not control.gives_logprobs:
            return self.probes(material)
        return [
            Probe(prompt=group.prompt + context, max_tokens=1, top_logprobs=TOP_LOGPROBS)
            for group, context, _ in _tested(material, answers)
        ]

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: ControlAnswers
    ) -> Finding:
        """Add up the statistics of all contexts, for each kind of sampling."""
        totals: dict[tuple[float, int], GStatistic] = {}
        tested: dict[tuple[float, int], list[Sample]] = {}
        own = {} if control.gives_logprobs else {(g, c): counts for g, c, counts in _tested(material, expected)}
        for place, (group, context, counts) in enumerate(_tested(material, answers)):
            kind = group.temperature, group.top_k
            if control.gives_logprobs:
                distribution = from_logprobs(expected[place].top_logprobs[0], *kind)
                found = compare_exact(counts, distribution)
                size = float(counts.total())
            else:
                found, size, distribution = _two_samples(counts, own.get((group, context), Counter()))
            totals[kind] = totals.get(kind, GStatistic()) + found
            had_drafts = bool(context)  # most engines draft nothing for the first token
            tested.setdefault(kind, []).append(Sample(size, distribution, had_drafts))
        return self._finding(totals, tested, len(answers), exact=control.gives_logprobs)

    def _finding(
        self,
        totals: dict[tuple[float, int], GStatistic],
        tested: Mapping[tuple[float, int], Sequence[Sample]],
        samples: int,
        *,
        exact: bool,
    ) -> Finding:
        alpha = ALPHA / max(1, len(totals))
        share = detectable_share(tested.values(), alpha, POWER)
        contexts = sum(one.had_drafts for kind in tested.values() for one in kind)
        failures = [
            f"temperature {temperature:g}, top-k {top_k or 'off'}: p = {found.p:.2g} (G = {found.value:.1f}, "
            f"{found.freedom} degrees of freedom)"
            for (temperature, top_k), found in totals.items()
            if found.p < alpha
        ]
        smallest = min((found.p for found in totals.values()), default=1.0)
        reference = "exact probabilities" if exact else "a sample of the control"
        found_power = "nothing" if share is None else f"a draft forced on {share:.1%} of the draws"
        return report_finding(
            self.name,
            failures,
            f"{samples} samples of {LENGTH} tokens against {reference}, {contexts} contexts, smallest p = "
            f"{smallest:.2g} (fails below {alpha:.2g}); finds {found_power} with probability {POWER:.0%}",
            proves=share is not None and share <= WEAK,
            samples=samples,
            contexts=contexts,
            exact=exact,
            alpha=alpha,
            p={f"temperature {t:g}, top-k {k or 'off'}": found.p for (t, k), found in totals.items()},
            detectable_share=share,
            power=POWER,
        )


def _two_samples(counts: Counter[int], theirs: Counter[int]) -> tuple[GStatistic, float, Distribution]:
    """Return the statistic of two samples, the size of one sample of the same power, and the common distribution."""
    both = counts + theirs
    distribution = {token: count / both.total() for token, count in both.items()}
    if not theirs:
        return GStatistic(), 0.0, distribution
    size = counts.total() * theirs.total() / both.total()
    return compare_sample(counts, theirs), size, distribution


def _groups(material: Material) -> list[Group]:
    """Return the groups, all prompts at temperature 1 and then at a higher one that makes likely tokens less certain.

    Top-k keeps the distribution at the higher temperature computable from the likeliest tokens' log-probabilities.
    """
    return [
        Group(prompt, prompt + answer.token_ids, temperature, top_k)
        for temperature, top_k in ((1.0, 0), (1.5, TOP_LOGPROBS))
        for prompt, answer in [*zip(material.prompts, material.greedy, strict=True)][:MOST_PROMPTS]
    ]


def _tested(material: Material, answers: Sequence[Answer]) -> Iterator[tuple[Group, Context, Counter[int]]]:
    """Yield each frequent context of each group, with the counts of the tokens after it."""
    groups = _groups(material)
    for place, group in enumerate(groups):
        outputs = [answer.token_ids for answer in answers[place :: len(groups)]]
        for context, counts in next_tokens(outputs, LEAST_SAMPLES).items():
            yield group, context, counts
