"""The checks that compare texts with the control's, token by token: greedy, stops, log-probabilities and seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from specplug.testing.equality import Difference
from specplug.tools.audit.probe import Check, CheckOutcome, ControlAnswers, Finding, Material, Probe, report_finding
from specplug.tools.client.answers import Answer

SURPRISING = 0.01
"""Differences are a failure if so many of them would be less probable than this at the control's own rate."""

WRONG_EVERY = 4
"""In the second greedy round every such token of the drafts is wrong, so that steps accept some and reject others."""

STOP_LENGTH = 3
"""Characters of a stop string; as it may begin within one token and end in the next, a step's tokens can cross it."""

REQUESTED_LOGPROBS = 5
LEAST_LOGPROB_TOLERANCE = 1e-3
"""Servers round log-probabilities, and some compute them in lower precision than the logits."""

SEED_TEMPERATURE = 0.7
SEEDS = (1, 2)
"""Seeds of each prompt."""

# -- the first difference of two texts, whose gap of log-probabilities in the control tells rounding from a mistake:
# where two tokens are all but equally likely, the order of summation decides, and then the texts have other contexts


def first_difference(number: int, expected: Answer, actual: Answer) -> Difference | None:
    """Return the first token that differs, or None.

    The gap is infinite if one output ends where the other continues, or if the token is not among the control's
    likeliest ones, and NaN if the control gives no log-probabilities.
    """
    if expected.token_ids == actual.token_ids:
        return None
    pairs = enumerate(zip(expected.token_ids, actual.token_ids, strict=False))
    shorter = min(len(expected.token_ids), len(actual.token_ids))
    position = next((place for place, (wanted, found) in pairs if wanted != found), shorter)
    wanted, found = ([*answer.token_ids, None][position] for answer in (expected, actual))
    return Difference(number, position, wanted, found, _gap(expected, position, wanted, found))


def _gap(expected: Answer, position: int, wanted: int | None, found: int | None) -> float:
    if not expected.top_logprobs:
        return math.nan
    if wanted is None or found is None:
        return math.inf
    top = expected.top_logprobs[position]
    return abs(top[wanted] - top[found]) if found in top and wanted in top else math.inf


def is_near_tie(difference: Difference, control: ControlAnswers) -> bool:
    """Return whether rounding explains a difference."""
    return difference.gap < control.tolerance  # false for NaN


def noise(together: Sequence[Answer], alone: Sequence[Answer]) -> tuple[float, int]:
    """Return the largest difference of a log-probability after equal texts, and the number of texts that differ.

    The difference is of one token in both, or where texts part of the two tokens that they go on with.
    """
    largest = 0.0
    differing = 0
    for first, second in zip(together, alone, strict=True):
        differing += first.token_ids != second.token_ids
        tokens = zip(first.token_ids, second.token_ids, first.top_logprobs, second.top_logprobs, strict=False)
        for one, other, tops, other_tops in tokens:
            largest = max(largest, largest_gap(tops, other_tops))
            if one != other:
                if one in tops and other in tops:
                    largest = max(largest, abs(tops[one] - tops[other]))
                break
    return largest, differing


def largest_gap(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Return the largest difference of log-probabilities of tokens that are in both."""
    gaps = (abs(one[token] - other[token]) for token in one.keys() & other.keys())
    return max((gap for gap in gaps if not math.isnan(gap)), default=0.0)


def surprise_probability(differences: int, total: int, own: int, own_total: int) -> float:
    """Return Fisher's exact p-value that differences are more frequent than the control's own from itself."""
    from scipy.stats import fisher_exact

    counts = [[differences, total - differences], [own, own_total - own]]
    return float(fisher_exact(counts, alternative="greater")[1]) if differences else 1.0


def logprob_problem(found: Mapping[int, float], wanted: Mapping[int, float], tolerance: float) -> str | None:
    """Return what is wrong with a token's `REQUESTED_LOGPROBS`, by the control's, which are more; None if nothing."""
    expected = min(REQUESTED_LOGPROBS, len(wanted))
    if len(found) < expected:
        return f"{len(found)} log-probabilities; expected {expected}"
    gap = largest_gap(found, wanted)
    if gap > tolerance:
        return f"log-probabilities differ by {gap:.3g}"
    others = likelier(found, wanted, tolerance)
    if others:
        return f"tokens {others} are listed, which are not among the control's {len(wanted)} likeliest"
    missing = likelier(wanted, found, tolerance)
    return f"tokens {missing} are not listed, although they are likelier than others that are" if missing else None


def likelier(these: Mapping[int, float], those: Mapping[int, float], tolerance: float) -> list[int]:
    """Return the tokens that are in `these` alone, although they are likelier than the unlikeliest of `those`."""
    least = min(those.values(), default=-math.inf)
    return [token for token, level in these.items() if token not in those and level > least + tolerance]


# -- the checks --------------------------------------------------------------------------------------------------------


class Greedy(Check):
    """Compares greedy answers: as the prompts come, and again with drafts that are partly wrong.

    The second round sends the prompts in reverse order and with different lengths, so that rows have other neighbours
    and leave the batch at different times.  The probes are those of the second round; the first one is in `material`.
    """

    name = "greedy"

    def probes(self, material: Material) -> list[Probe]:
        return [
            material.probe(
                number,
                max_tokens=_length(material, number),
                expected=material.prompts[number] + half_right_draft(material.greedy[number].token_ids),
            )
            for number in reversed(range(len(material.prompts)))
        ]

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: ControlAnswers
    ) -> Finding:
        """Judge both rounds; an output of the second one must be the beginning of the control's."""
        pairs = [*zip(control.greedy, material.greedy, strict=True)]
        for number, answer in enumerate(reversed(answers)):
            whole = control.greedy[number]
            most = _length(material, number)
            pairs.append((_begin(whole, most), answer))
        found = [first_difference(number, *pair) for number, pair in enumerate(pairs)]
        differences = [one for one in found if one is not None]
        ties = [_described(one, len(material.prompts)) for one in differences if is_near_tie(one, control)]
        failures = [_described(one, len(material.prompts)) for one in differences if not is_near_tie(one, control)]
        certain = len(failures)
        ends = {one.request: one.position + 1 for one in differences}
        compared = sum(ends.get(number, len(answer.token_ids)) for number, (_, answer) in enumerate(pairs))
        rate = certain / max(1, compared)
        p = surprise_probability(len(ties), len(pairs), control.self_differences, len(control.greedy))
        if p < SURPRISING:
            failures.append(f"near ties are too frequent for rounding: p = {p:.2g}")
        return report_finding(
            self.name,
            failures,
            f"{len(pairs) - len(differences)} of {len(pairs)} outputs equal the control's, {len(ties)} near ties "
            f"(gap < {control.tolerance:.2g}), {certain} differences{f' ({rate:.2%} of tokens)' if certain else ''}; "
            f"the control differs from itself on {control.self_differences} of {len(control.greedy)}",
            outputs=len(pairs),
            tokens=sum(len(answer.token_ids) for _, answer in pairs),
            near_ties=ties,
            differences=certain,
            departure_rate=rate,
            tolerance=control.tolerance,
            noise=control.noise,
        )


def half_right_draft(token_ids: Sequence[int]) -> tuple[int, ...]:
    """Return a text with every `WRONG_EVERY`-th token replaced by another one of it."""
    changed = list(token_ids)
    for place in range(WRONG_EVERY - 1, len(changed), WRONG_EVERY):
        changed[place] = token_ids[place - 1] if token_ids[place - 1] != token_ids[place] else token_ids[0]
    return tuple(changed)


def _length(material: Material, number: int) -> int:
    return max(1, material.max_tokens - 3 * (number % 5))


def _described(difference: Difference, prompts: int) -> str:
    again = " with drafts" if difference.request >= prompts else ""
    wanted, found = ("the end" if it is None else f"token {it}" for it in (difference.expected, difference.actual))
    return (
        f"prompt {difference.request % prompts}{again}, output token {difference.position}: expected {wanted}, "
        f"found {found}, gap of log-probabilities {difference.gap:.3g}"
    )


class Stops(Check):
    """Repeats the greedy prompts with a stop string from the middle of each answer."""

    name = "stops"

    def probes(self, material: Material) -> list[Probe]:
        return [
            material.probe(number, stop=(stop_within(answer.text),)) for number, answer in enumerate(material.greedy)
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: ControlAnswers) -> list[Probe]:
        return self.probes(material)

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: ControlAnswers
    ) -> Finding:
        """Compare texts and reasons to finish.

        Prompts whose greedy answers, or answers of this round before the stop, differ by a near tie are left out.
        """
        differences = []
        compared = 0
        stopped = 0
        for number, (found, wanted) in enumerate(zip(answers, expected, strict=True)):
            whole = control.greedy[number]
            others = material.greedy[number], found, wanted
            parted = [first_difference(number, _begin(whole, len(one.token_ids)), one) for one in others]
            if any(one is not None and is_near_tie(one, control) for one in parted):
                continue
            compared += 1
            stopped += wanted.finish_reason == "stop"
            if (found.text, found.finish_reason) != (wanted.text, wanted.finish_reason):
                stop = stop_within(material.greedy[number].text)
                end, own = (f"{one.text[-20:]!r} ({one.finish_reason})" for one in (wanted, found))
                differences.append(f"prompt {number}, stop {stop!r}: expected {end}, found {own}")
        summary = f"{compared - len(differences)} of {compared} outputs end as the control's, {stopped} of them stopped"
        left = len(answers) - compared
        p = surprise_probability(left, len(answers), control.self_differences, len(control.greedy))
        if p < SURPRISING:
            differences.append(f"near ties are too frequent for rounding: p = {p:.2g}")
        return report_finding(self.name, differences, summary, proves=stopped > 0, outputs=compared, stopped=stopped)


def _begin(answer: Answer, most: int) -> Answer:
    """Return the first tokens of an answer."""
    return Answer(token_ids=answer.token_ids[:most], top_logprobs=answer.top_logprobs[:most])


def stop_within(text: str) -> str:
    """Return a few characters from the middle of a text, or one that ends any text if it is too short."""
    middle = len(text) // 2
    return text[middle : middle + STOP_LENGTH].strip() or text[:1].strip() or "\n"


class Logprobs(Check):
    """Repeats the greedy prompts with log-probabilities, and compares them up to the first token that differs."""

    name = "logprobs"

    def probes(self, material: Material) -> list[Probe]:
        return [material.probe(number, top_logprobs=REQUESTED_LOGPROBS) for number in range(len(material.prompts))]

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: ControlAnswers
    ) -> Finding:
        """Compare tokens and the log-probabilities of all tokens that both sides list."""
        if not control.gives_logprobs:
            return Finding(self.name, CheckOutcome.NOT_RUN, "the control gives no log-probabilities")
        tolerance = max(LEAST_LOGPROB_TOLERANCE, control.tolerance)
        differences = []
        largest = 0.0
        compared = 0
        for number, (found, wanted) in enumerate(zip(answers, control.greedy, strict=True)):
            if wanted.token_ids and not wanted.top_logprobs:
                continue  # the control has not answered this prompt
            if len(found.top_logprobs) != len(found.token_ids):
                counts = f"{len(found.top_logprobs)} log-probabilities for {len(found.token_ids)} tokens"
                differences.append(f"prompt {number}: {counts}")
                continue
            difference = first_difference(number, wanted, found)
            end = len(wanted.token_ids) if difference is None else difference.position
            if difference is not None and not is_near_tie(difference, control):
                differences.append(f"prompt {number}: another text from output token {end} on")
            for place in range(min(end, len(found.token_ids))):
                tops = found.top_logprobs[place]
                wanted_tops = wanted.top_logprobs[place]
                largest = max(largest, largest_gap(tops, wanted_tops))
                compared = compared + 1
                if problem := logprob_problem(tops, wanted_tops, tolerance):
                    differences.append(f"prompt {number}, output token {place}: {problem}")
                    break
        summary = (
            f"log-probabilities of {compared} tokens, largest difference {largest:.2g} (fails above {tolerance:.2g})"
        )
        return report_finding(self.name, differences, summary, tokens=compared, largest=largest, tolerance=tolerance)


class Seeds(Check):
    """Samples each prompt with some seeds, and compares the texts.

    Lossless speculation need not have this: rejection sampling keeps the distribution, but draws other tokens.  So the
    check runs only if it is named.  The control answers twice, the second time in reverse order, because its rounding
    may decide a draw, too.
    """

    name = "seeds"

    def probes(self, material: Material) -> list[Probe]:
        prompts = range(len(material.prompts))
        return [material.probe(n, temperature=SEED_TEMPERATURE, seed=seed) for n in prompts for seed in SEEDS]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: ControlAnswers) -> list[Probe]:
        probes = self.probes(material)
        return [*probes, *reversed(probes)]

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: ControlAnswers
    ) -> Finding:
        """Fail if outputs differ more often than the control's from its own; a few differences prove nothing."""
        first = expected[: len(answers)]
        again = [*reversed(expected[len(answers) :])]
        own = sum(one.token_ids != other.token_ids for one, other in zip(first, again, strict=True))
        found = [first_difference(number, *pair) for number, pair in enumerate(zip(first, answers, strict=True))]
        examples = [
            f"prompt {one.request // len(SEEDS)}, seed {SEEDS[one.request % len(SEEDS)]}: texts part at output token "
            f"{one.position}"
            for one in found
            if one is not None
        ]
        total = len(answers)
        differing = len(examples)
        summary = (
            f"{total - differing} of {total} outputs equal the control's; the control differs from itself on {own}"
        )
        failures = examples if surprise_probability(differing, total, own, total) < SURPRISING else []
        figures = {"outputs": total, "differences": differing, "self_differences": own}
        finding = report_finding(self.name, failures, summary, proves=not examples, **figures)
        return finding if failures else replace(finding, examples=tuple(examples[:1]))
