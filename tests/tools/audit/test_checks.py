"""Judgements of an audit's checks, on answers written by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest

from specplug.errors import SettingsError
from specplug.tools.audit.formats import Chat, Structured
from specplug.tools.audit.probe import CheckOutcome, ControlAnswers, DraftCounts, Finding, Material, check_answers
from specplug.tools.audit.run import all_checks, choose_checks, run
from specplug.tools.audit.texts import (
    SEEDS,
    Greedy,
    Logprobs,
    Seeds,
    Stops,
    first_difference,
    half_right_draft,
    noise,
    stop_within,
)
from specplug.tools.client.answers import Answer, ToolCall

PROMPTS = tuple((place, 1, 2) for place in range(6))
TEXT = (3, 4, 5, 6, 7, 8)


def answer(tokens: Sequence[int] = TEXT, *, gap: float = 1.0, **more: object) -> Answer:
    """Return an answer whose tokens lead all others by `gap`."""
    tops = tuple({token: -0.5, 99: -0.5 - gap} for token in tokens)
    given = {"text": "".join(map(chr, tokens)), "finish_reason": "length", "top_logprobs": tops, **more}
    return Answer(token_ids=tuple(tokens), **given)


def material(greedy: Sequence[Answer]) -> Material:
    return Material(PROMPTS, tuple(map(str, PROMPTS)), tuple(greedy), len(TEXT))


def greedily(first: Sequence[Answer], control: ControlAnswers, second: Sequence[Answer] | None = None) -> Finding:
    again = second or [answer(TEXT[: max(1, len(TEXT) - 3 * (number % 5))]) for number in reversed(range(len(PROMPTS)))]
    return Greedy().judge(material(first), again, [], control)


SAME = [answer()] * len(PROMPTS)
EXACT = ControlAnswers(tuple(SAME))


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (TEXT, None),
        ((3, 4, 99, 6, 7, 8), "output token 2: expected token 5, found token 99"),
        ((3, 4, 42, 6, 7, 8), "found token 42, gap of log-probabilities inf"),
        ((3, 4), "expected token 5, found the end"),
    ],
)
def test_a_difference_fails_and_is_named(tokens, words):
    found = greedily([answer(tokens), *SAME[1:]], EXACT)
    assert (found.status, len(found.examples)) == ((CheckOutcome.FAILED, 1) if words else (CheckOutcome.PASSED, 0))
    assert words is None or words in found.examples[0]
    assert (first_difference(0, answer(), answer(tokens)) is None) is (words is None)
    control = ControlAnswers(tuple(replace(one, top_logprobs=()) for one in SAME))
    bare = greedily([answer(tokens), *SAME[1:]], control)
    assert bare.status is found.status, "without log-probabilities every difference fails"
    assert all("nan" in example for example in bare.examples)


def test_texts_to_draft_from_and_to_stop_at():
    assert half_right_draft(TEXT) == (3, 4, 5, 5, 7, 8)
    assert half_right_draft((5, 5, 5, 5)) == (5, 5, 5, 5)
    assert [stop_within(text) for text in ("abcdef", "ab", " ", "")] == ["def", "b", "\n", "\n"]


@pytest.mark.parametrize(("gap", "noise", "ties"), [(5e-5, 0.0, 1), (0.02, 0.0, 0), (0.02, 0.01, 1)])
def test_a_near_tie_is_rounding_and_the_controls_noise_widens_ties(gap, noise, ties):
    """In half precision the control's own log-probabilities depend on the batch."""
    control = ControlAnswers((answer(gap=gap), *SAME[1:]), noise=noise)
    found = greedily([answer((3, 99, 5, 6, 7, 8)), *SAME[1:]], control)
    assert found.status is (CheckOutcome.PASSED if ties else CheckOutcome.FAILED)
    assert f"{ties} near ties" in found.summary


def test_too_many_near_ties_fail():
    """Each of them could be rounding, but the control never differs from itself."""
    control = ControlAnswers(tuple(answer(gap=1e-6) for _ in PROMPTS))
    wrong = [answer((99, *TEXT[1:]))] * len(PROMPTS)
    assert greedily(wrong, control, [answer((99,))] * len(PROMPTS)).status is CheckOutcome.FAILED


def test_noise_is_measured_until_texts_part():
    one, other = answer(gap=1.0), answer((3, 4, 6, 6, 7, 8), gap=1.25)
    assert noise([one], [other]) == (0.25, 1)
    far = answer((9,), gap=9.0)
    assert noise([one], [far])[0] == 8.0  # at the first token both saw the same text
    assert noise([one], [one]) == (0.0, 0)
    both = [answer((token,), top_logprobs=({3: -0.5, 4: -0.5625},)) for token in (3, 4)]
    assert noise(both[:1], both[1:]) == (0.0625, 1), "rounding decided between tokens so far apart"


@pytest.mark.parametrize(
    ("tokens", "drafts", "status"),
    [
        (TEXT, DraftCounts(0, 5), "unproven"),
        (TEXT, DraftCounts(1, 5), "passed"),
        (TEXT, None, "unproven"),
        ((3,), DraftCounts(0, 0), "failed"),
    ],
)
def test_a_check_without_accepted_drafts_proves_nothing(tokens, drafts, status):
    assert greedily([answer(tokens), *SAME[1:]], EXACT).with_drafts(drafts).status == status


REFUSED, BROKEN = Answer(error="HTTP 400", refused=True), Answer(error="HTTP 500")


@pytest.mark.parametrize(
    ("answers", "status"), [((REFUSED,) * 2, "not run"), ((BROKEN,) * 2, "failed"), ((REFUSED, answer()), "failed")]
)
def test_unanswered_probes(answers, status):
    assert check_answers("x", (answer(),), "the control") is None
    assert check_answers("x", answers, "the control").status == status


# -- other checks ------------------------------------------------------------------------------------------------------


def test_stops_compare_text_and_reason():
    stopped = [answer(finish_reason="stop")] * len(PROMPTS)
    judge = Stops().judge
    assert judge(material(SAME), stopped, stopped, EXACT).status is CheckOutcome.PASSED
    assert judge(material(SAME), SAME, SAME, EXACT).status is CheckOutcome.UNPROVEN
    late = [replace(stopped[0], text="later"), *stopped[1:]]
    assert judge(material(SAME), late, stopped, EXACT).status is CheckOutcome.FAILED


def test_a_near_tie_before_a_stop_is_rounding_in_that_round_too():
    stopped = [answer(finish_reason="stop")] * len(PROMPTS)
    control = ControlAnswers(tuple([answer(gap=1e-5)] * len(PROMPTS)))
    other = answer((3, 99, 5, 6, 7, 8), finish_reason="length")
    judge = Stops().judge
    assert judge(material(SAME), [other, *stopped[1:]], stopped, control).status is CheckOutcome.PASSED
    assert judge(material(SAME), [other, *stopped[1:]], stopped, EXACT).status is CheckOutcome.FAILED
    found = judge(material(SAME), [*[other] * 5, stopped[0]], stopped, control)
    assert "too frequent for rounding" in found.examples[0]


def seeded(found: Sequence[Answer], again: Sequence[Answer] | None = None) -> Finding:
    """Judge answers by a control that answers `TEXT` to all, the second time perhaps other texts."""
    count = len(PROMPTS) * len(SEEDS)
    control = [answer()] * count
    return Seeds().judge(material(SAME), found, [*control, *reversed(again or control)], EXACT)


def test_texts_of_seeds_must_be_the_controls():
    count = len(PROMPTS) * len(SEEDS)
    other = answer((3, 4, 9))
    assert seeded([answer()] * count).status is CheckOutcome.PASSED
    found = seeded([other] * count)
    assert found.status is CheckOutcome.FAILED
    assert found.examples[1] == "prompt 0, seed 2: texts part at output token 2"
    assert seeded([other, *[answer()] * (count - 1)]).status is CheckOutcome.UNPROVEN
    assert seeded([other] * count, [other] * count).status is CheckOutcome.UNPROVEN, (
        "the control does not repeat either"
    )


def test_each_prompt_has_its_seeds_and_the_control_answers_twice():
    mine = Seeds().probes(material(SAME))
    theirs = Seeds().control_probes(material(SAME), [], EXACT)
    assert [probe.seed for probe in mine] == [*SEEDS] * len(PROMPTS)
    assert theirs == mine + mine[::-1]
    assert {probe.prompt for probe in mine} == set(PROMPTS)


def test_log_probabilities_must_be_there_and_equal():
    judge = Logprobs().judge
    assert judge(material(SAME), SAME, [], EXACT).status is CheckOutcome.PASSED
    wrong = [answer(gap=1.1), *SAME[1:]]
    assert judge(material(SAME), wrong, [], EXACT).status is CheckOutcome.FAILED
    missing = [replace(SAME[0], top_logprobs=SAME[0].top_logprobs[1:]), *SAME[1:]]
    assert "5 log-probabilities for 6 tokens" in judge(material(SAME), missing, [], EXACT).examples[0]
    bare = ControlAnswers(tuple(replace(one, top_logprobs=()) for one in SAME))
    assert judge(material(SAME), SAME, [], bare).status is CheckOutcome.NOT_RUN


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ({3: -0.5}, "prompt 0, output token 0: 1 log-probabilities; expected 2"),
        ({3: -0.5, 42: -0.7}, r"tokens \[42\] are listed"),
        ({3: -0.5, 99: -1.4}, "differ by 0.1"),
        ({42: -7.0, 43: -7.5}, r"tokens \[3, 99\] are not listed"),
        ({3: -0.5, 42: -7.0}, r"tokens \[99\] are not listed"),
    ],
)
def test_as_many_log_probabilities_are_listed_as_requested_and_the_likeliest(listed, words):
    wrong = [replace(SAME[0], top_logprobs=(listed, *SAME[0].top_logprobs[1:])), *SAME[1:]]
    found = Logprobs().judge(material(SAME), wrong, [], EXACT)
    assert found.status is CheckOutcome.FAILED
    assert re.search(words, found.examples[0])


def test_rounding_is_measured_on_batches_of_two_even_where_one_request_is_sent_at_a_time():
    class Recorded:
        def __init__(self) -> None:
            self.together: list[int] = []

        def tokenize(self, text: str) -> tuple[int, ...]:
            return (1, 2)

        def answer(self, probes, together, done) -> list[Answer]:
            self.together.append(together)
            return [answer() for _ in probes]

        def draft_counts(self) -> None:
            return None

        def describe(self) -> str:
            return ""

        def flags(self) -> dict[str, object]:
            return {}

    sides = audited, control = Recorded(), Recorded()
    opened = {name: partial(nullcontext, side) for name, side in zip(("audited", "control"), sides, strict=True)}
    given = {"texts": ["a", "b"], "checks": [], "max_tokens": 6, "together": 1}
    run(**opened, **given, progress=lambda title, count: lambda: None)
    assert (audited.together, control.together) == ([1], [2, 1])


def structured(text: str) -> Answer:
    return answer(tuple(map(ord, text)), text=text, finish_reason="stop")


VALID = '{"kind": "class", "line": 3, "ok": true}'


def test_all_outputs_under_a_schema_that_differ_are_no_rounding():
    right = [structured(text) for text in [VALID, '"read 12 lines of main"', '["red", "blue"]'] * 2]
    others = ['{"kind": "module", "line": 77, "ok": false}', '"write 99 characters of notes"', '["green", "red"]']
    found = Structured().judge(
        material(SAME), [structured(text) for text in others * 2], right, replace(EXACT, self_differences=1)
    )
    assert "too frequent for rounding" in found.examples[0]


def test_structured_output_is_validated_where_the_controls_is_valid():
    texts = [VALID, '"read 12 lines of main"', '["red", "blue"]'] * 2
    good = [structured(text) for text in texts]
    judge = Structured().judge
    assert judge(material(SAME), good, good, EXACT).status is CheckOutcome.PASSED
    torn = [structured(VALID[:-1]), *good[1:]]
    found = judge(material(SAME), torn, good, EXACT)
    assert found.status is CheckOutcome.FAILED
    assert "does not follow its schema" in found.examples[0]
    assert judge(material(SAME), torn, torn, EXACT).status is CheckOutcome.PASSED  # the engine's own mistake
    none = [structured("x")] * len(texts)
    assert judge(material(SAME), none, none, EXACT).status is CheckOutcome.UNPROVEN


def chat(arguments: str = '{"city": "Oslo", "unit": "C"}', **more: object) -> Answer:
    return Answer(**{"finish_reason": "tool_calls", "tool_calls": (ToolCall("weather", arguments),), **more})


@pytest.fixture
def tools() -> Chat:
    found = all_checks(1)["tools"]
    assert isinstance(found, Chat)
    return found


def test_calls_are_compared_by_value(tools):
    right = [chat()] * 12
    spaced = [chat('{"unit":"C","city":"Oslo"}')] * 12
    assert tools.judge(material(SAME), spaced, right * 2, EXACT).status is CheckOutcome.PASSED
    lost = [chat(""), *right[1:]]
    found = tools.judge(material(SAME), lost, right * 2, EXACT)
    assert found.status is CheckOutcome.FAILED
    assert "whole: arguments ''" in found.examples[0]


def test_either_answer_of_an_unstable_control_will_do(tools):
    right, other = [chat()] * 12, [chat(reasoning="<think>")] * 12
    found = tools.judge(material(SAME), right, other + right, EXACT)
    assert found.status is CheckOutcome.PASSED
    assert "the control differs from itself on 12" in found.summary


def test_in_half_precision_only_malformed_calls_fail(tools):
    right, noisy = [chat()] * 12, ControlAnswers(tuple(SAME), noise=0.01)
    other = [chat('{"city": "Paris", "unit": "C"}')] * 12
    assert tools.judge(material(SAME), other, right * 2, noisy).status is CheckOutcome.PASSED
    unknown = [chat('{"city": "Rome", "unit": "C"}')] * 12
    assert tools.judge(material(SAME), unknown, right * 2, noisy).status is CheckOutcome.FAILED
    lost = Answer(text='{"name": "weather"}', finish_reason="stop")  # by the parser
    found = tools.judge(material(SAME), [lost] * 12, right * 2, noisy)
    assert (found.status, found.examples[0][:22]) == (CheckOutcome.FAILED, "12 chats have no tool ")
    assert tools.judge(material(SAME), [lost, *right[1:]], right * 2, noisy).status is CheckOutcome.PASSED


def test_a_control_without_calls_shows_nothing(tools):
    silent = [Answer(text="no", finish_reason="stop")] * 12
    assert tools.judge(material(SAME), silent, silent * 2, EXACT).status is CheckOutcome.NOT_RUN


def test_unknown_checks_are_refused():
    assert [check.name for check in choose_checks(["stops", "greedy"], 1)] == ["greedy", "stops"]
    assert {check.name for check in choose_checks([], 1)} == all_checks(1).keys() - {"seeds"}
    with pytest.raises(SettingsError, match="Did you mean 'greedy'"):
        choose_checks(["gredy"], 1)
