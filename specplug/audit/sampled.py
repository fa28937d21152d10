"""Sampled outputs must follow the control's distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specplug.audit.distributions import (
    LEAST_SAMPLES,
    Context,
    Distribution,
    against_exact,
    against_sample,
    detectable,
    from_logprobs,
    next_tokens,
)
from specplug.audit.finding import Finding, Status, judged
from specplug.audit.probe import TOP_LOGPROBS, Answer, Control, Material, Probe
from specplug.testing.statistics import GStatistic

LENGTH = 4
"""Tokens of each sample.  The first one follows the prompt and has no draft on most engines."""

MOST_PROMPTS = 4
ALPHA, POWER = 1e-4, 0.9
WEAK = 0.5
"""If only larger departures can be found, the check proves nothing."""


@dataclass(frozen=True, slots=True)
class Group:
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


class Sampled:
    """Samples a few tokens many times, and tests the token after each frequent context.

    Args:
        samples: samples for each prompt and each kind of sampling.
    """

    name = "sampled"
    summary = "sampled tokens follow the control's distribution, by G-tests of stated power"

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def probes(self, material: Material) -> list[Probe]:
        """Return all samples, the groups in turn."""
        return [
            group.probe(number + place)
            for number in range(self._samples)
            for place, group in enumerate(_groups(material))
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: Control) -> list[Probe]:
        """Return a request for the log-probabilities after each frequent context, or samples without them."""
        if not control.gives_logprobs:
            return self.probes(material)
        return [
            Probe(prompt=group.prompt + context, max_tokens=1, top_logprobs=TOP_LOGPROBS)
            for group, context, _ in _tested(material, answers)
        ]

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: Control
    ) -> Finding:
        """Add up the statistics of all contexts, for each kind of sampling."""
        compared = [*_tested(material, answers)]
        totals: dict[tuple[float, int], GStatistic] = {}
        sizes: list[tuple[float, Distribution]] = []
        own = {} if control.gives_logprobs else {(g, c): counts for g, c, counts in _tested(material, expected)}
        for place, (group, context, counts) in enumerate(compared):
            kind = group.temperature, group.top_k
            if control.gives_logprobs:
                distribution = from_logprobs(expected[place].top_logprobs[0], *kind)
                found, size = against_exact(counts, distribution), float(counts.total())
            else:
                theirs = own.get((group, context), Counter())
                found, size, distribution = _two_samples(counts, theirs)
            totals[kind] = totals.get(kind, GStatistic()) + found
            sizes.append((size, distribution))
        return self._finding(totals, sizes, len(answers), exact=control.gives_logprobs)

    def _finding(
        self,
        totals: dict[tuple[float, int], GStatistic],
        sizes: list[tuple[float, Distribution]],
        samples: int,
        *,
        exact: bool,
    ) -> Finding:
        alpha = ALPHA / max(1, len(totals))
        share = detectable(sizes, alpha, POWER) if sizes else None
        failures = [
            f"temperature {temperature:g}, top-k {top_k or 'off'}: p = {found.p:.2g} (G = {found.value:.1f}, "
            f"{found.freedom} degrees of freedom)"
            for (temperature, top_k), found in totals.items()
            if found.p < alpha
        ]
        smallest = min((found.p for found in totals.values()), default=1.0)
        reference = "exact probabilities" if exact else "a sample of the control"
        found_power = "nothing" if share is None else f"a draft forced on {share:.1%} of the draws"
        finding = judged(
            self.name,
            failures,
            f"{samples} samples of {LENGTH} tokens against {reference}, {len(sizes)} contexts, smallest p = "
            f"{smallest:.2g} (fails below {alpha:.2g}); finds {found_power} with probability {POWER:.0%}",
            samples=samples,
            contexts=len(sizes),
            exact=exact,
            alpha=alpha,
            p={f"temperature {t:g}, top-k {k or 'off'}": found.p for (t, k), found in totals.items()},
            detectable_share=share,
            power=POWER,
        )
        if finding.status is Status.PASSED and (share is None or share > WEAK):
            return Finding(self.name, Status.UNPROVEN, finding.summary, figures=finding.figures)
        return finding


def _two_samples(counts: Counter[int], theirs: Counter[int]) -> tuple[GStatistic, float, Distribution]:
    """Return the statistic of two samples, the size of one sample of the same power, and the common distribution."""
    both = counts + theirs
    distribution = {token: count / both.total() for token, count in both.items()}
    if not theirs:
        return GStatistic(), 0.0, distribution
    size = counts.total() * theirs.total() / both.total()
    return against_sample(counts, theirs), size, distribution


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
