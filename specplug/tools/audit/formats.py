"""The checks of formats: outputs under JSON schemas, and chats, in which servers parse tool calls and reasoning.

Servers parse streams step by step.  With speculation a step brings several tokens, and parsers that expect one lose
markers between them, so every chat is sent both as a stream and as a whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from specplug.tools.audit.probe import (
    LEAST_TOLERANCE,
    TOP_LOGPROBS,
    Check,
    CheckOutcome,
    ControlAnswers,
    Finding,
    Material,
    Probe,
    report_finding,
)
from specplug.tools.audit.texts import SURPRISING, first_difference, is_near_tie, surprise_probability
from specplug.tools.client.answers import Answer

COARSE = 10 * LEAST_TOLERANCE
"""Above this tolerance, outputs of the control itself depend on rounding, and only malformed chats are failures."""

LEAST_STRUCTURED_TOKENS = 96
LEAST_CHAT_TOKENS = 128


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object of exactly these properties."""
    closed = {"required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


def _tool(name: str, description: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": _object(**properties)}
    return {"type": "function", "function": function}


SCHEMAS: tuple[dict[str, Any], ...] = (
    _object(
        kind={"enum": ["function", "class", "module"]},
        line={"type": "integer", "minimum": 0, "maximum": 99},
        ok={"type": "boolean"},
    ),
    {"type": "string", "pattern": "^(read|write) [0-9]{2} (lines|characters) of (main|notes)$"},
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4},
)
"""Schemas with forced tokens and few choices; the second has no place for white space, in which small models loop."""

TOOLS = (
    _tool(
        "read_lines",
        "Read lines of a file.",
        file={"enum": ["main.py", "notes.txt"]},
        first={"type": "integer", "minimum": 1, "maximum": 99},
    ),
    _tool("weather", "Look up the weather.", city={"enum": ["Paris", "Oslo"]}, unit={"enum": ["C", "F"]}),
)


def problem_of(text: str, schema: Mapping[str, Any]) -> str | None:
    """Return why a text is no JSON that follows a schema; None if it is."""
    from jsonschema import Draft202012Validator

    try:
        errors = sorted(Draft202012Validator(schema).iter_errors(json.loads(text)), key=str)
    except ValueError as error:
        return str(error)
    return errors[0].message if errors else None


class Structured(Check):
    """Constrains the answers to the prompts by JSON schemas, in turn; they must follow them and equal the control's."""

    name = "structured"

    def probes(self, material: Material, top_logprobs: int = 0) -> list[Probe]:
        most = max(LEAST_STRUCTURED_TOKENS, material.max_tokens)
        return [
            Probe(prompt=prompt, max_tokens=most, json_schema=_schema(number), top_logprobs=top_logprobs)
            for number, prompt in enumerate(material.prompts)
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: ControlAnswers) -> list[Probe]:
        return self.probes(material, TOP_LOGPROBS if control.gives_logprobs else 0)

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: ControlAnswers
    ) -> Finding:
        """Compare all outputs, and validate those that are complete and valid on the control."""
        invalid = []
        differences = []
        ties = 0
        valid = 0
        for number, (found, wanted) in enumerate(zip(answers, expected, strict=True)):
            problem = problem_of(found.text, _schema(number))
            valid += problem is None
            if problem is not None and problem_of(wanted.text, _schema(number)) is None:
                invalid.append(f"prompt {number}: {found.text[:80]!r} does not follow its schema: {problem}")
            difference = first_difference(number, wanted, found)
            if difference is None:
                continue
            if is_near_tie(difference, control) or (math.isinf(difference.gap) and control.self_differences):
                ties += 1  # a grammar's tokens need not be among the likeliest ones
            else:
                differences.append(f"prompt {number}: {difference}".replace(f"request {number}, ", ""))
        summary = (
            f"{valid} of {len(answers)} outputs are complete and follow their schema, {len(invalid)} do not where the "
            f"control's do; {len(differences)} outputs differ from the control's, {ties} near ties"
        )
        failures = [*invalid, *differences]
        p = surprise_probability(ties, len(answers), control.self_differences, len(control.greedy))
        if p < SURPRISING:
            failures.append(f"near ties are too frequent for rounding: p = {p:.2g}")
        return report_finding(self.name, failures, summary, proves=valid > 0, valid=valid, near_ties=ties)


def _schema(number: int) -> dict[str, Any]:
    return SCHEMAS[number % len(SCHEMAS)]


class Chat(Check):
    """Sends prompts as chats, as a stream and as a whole, and compares what the server parsed.

    `choices` are values of `tool_choice`, in turn; none sends no tools.  Unless the control has `parsed` "tool calls"
    or "reasoning" at least once, `remedy` is shown.
    """

    def __init__(self, name: str, choices: Sequence[str], parsed: str, remedy: str) -> None:
        self.name = name
        self._choices = choices
        self._parsed = parsed
        self._remedy = remedy

    def probes(self, material: Material) -> list[Probe]:
        """Return two probes for each prompt."""
        choices = self._choices or ("auto",)
        return [
            Probe(
                messages=({"role": "user", "content": text},),
                max_tokens=max(LEAST_CHAT_TOKENS, material.max_tokens),
                tools=TOOLS if self._choices else (),
                tool_choice=choices[number % len(choices)],
                stream=stream,
            )
            for number, text in enumerate(material.texts)
            for stream in (False, True)
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: ControlAnswers) -> list[Probe]:
        """Return the same probes twice: how servers split a stream depends on their load, and parsers on the split."""
        return self.probes(material) * 2

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: ControlAnswers
    ) -> Finding:
        """Compare reasoning, content and calls with both answers of the control, and validate complete calls."""
        if not any(map(self._has_parts, expected)):
            return Finding(self.name, CheckOutcome.NOT_RUN, f"the control parsed no {self._parsed}. {self._remedy}")
        malformed = []
        differences = []
        calls = 0
        unstable = 0
        lost = 0
        own = zip(expected[: len(answers)], expected[len(answers) :], strict=True)
        for probe, found, pair in zip(self.probes(material), answers, own, strict=True):
            where = f"{probe.messages[0]['content'][-30:]!r}, {'streamed' if probe.stream else 'whole'}"
            calls += len(found.tool_calls)
            unstable += _parts(pair[0]) != _parts(pair[1])
            lost += all(map(self._has_parts, pair)) and not self._has_parts(found)
            if found.finish_reason != "length" and not any(map(_bad_call, pair)) and (problem := _bad_call(found)):
                malformed.append(f"{where}: {problem}")
            if _parts(found) not in map(_parts, pair):
                differences.append(f"{where}: expected {_parts(pair[0])}, found {_parts(found)}")
        summary = (
            f"{len(answers) - len(differences)} of {len(answers)} chats are parsed as the control's, "
            f"{len(malformed)} malformed, {calls} tool calls; the control differs from itself on {unstable}"
        )
        failures = malformed if control.tolerance > COARSE else [*malformed, *differences]
        p = surprise_probability(lost, len(answers), 0, len(answers))
        if p < SURPRISING:
            failures.append(f"{lost} chats have no {self._parsed} where the control's have: p = {p:.2g}")
        chats = len(answers)
        bad = len(malformed)
        return report_finding(self.name, failures, summary, chats=chats, malformed=bad, tool_calls=calls)

    def _has_parts(self, answer: Answer) -> bool:
        return bool(answer.tool_calls if self._parsed == "tool calls" else answer.reasoning)


def _parts(answer: Answer) -> tuple[object, ...]:
    """Return what was parsed, with arguments as values."""
    calls = tuple((call.name, _value(call.arguments)) for call in answer.tool_calls)
    return answer.reasoning, answer.text, calls, answer.finish_reason


def _value(arguments: str) -> object:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def _bad_call(answer: Answer) -> str | None:
    """Return what is wrong with an answer's calls, or None."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    for call in answer.tool_calls:
        if call.name not in schemas:
            return f"unknown tool {call.name!r}"
        if (problem := problem_of(call.arguments, schemas[call.name])) is not None:
            return f"arguments {call.arguments[:80]!r}: {problem}"
    return None
