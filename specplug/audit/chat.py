"""Chats must be parsed as the control's: tool calls, and the boundary between reasoning and answer.

Servers parse streams step by step.  With speculation a step brings several tokens, and parsers that expect one lose
markers between them, so every chat is sent both as a stream and as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from specplug.audit.finding import Finding, Status, judged
from specplug.audit.probe import LEAST_TOLERANCE, Answer, Control, Material, Probe
from specplug.audit.schema import violation

COARSE = 10 * LEAST_TOLERANCE
"""Above this tolerance, outputs of the control itself depend on rounding, and only malformed ones are failures."""


def _tool(name: str, description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = (
    _tool(
        "read_lines",
        "Read lines of a file.",
        file={"enum": ["main.py", "notes.txt"]},
        first={"type": "integer", "minimum": 1, "maximum": 99},
    ),
    _tool("weather", "Look up the weather.", city={"enum": ["Paris", "Oslo"]}, unit={"enum": ["C", "F"]}),
)


class Chat:
    """Sends prompts as chats, as a stream and as a whole, and compares what the server parsed.

    Args:
        name, summary: of the check.
        choices: values of `tool_choice`, in turn; none sends no tools.
        parsed: what the control must have parsed at least once, "tool calls" or "reasoning".
        remedy: what to do if it has not.
    """

    def __init__(self, name: str, summary: str, *, choices: Sequence[str], parsed: str, remedy: str) -> None:
        self.name, self.summary = name, summary
        self._choices, self._parsed, self._remedy = choices, parsed, remedy

    def probes(self, material: Material) -> list[Probe]:
        """Return two probes for each prompt."""
        return [
            Probe(
                messages=({"role": "user", "content": text},),
                max_tokens=max(128, material.max_tokens),
                tools=TOOLS if self._choices else (),
                tool_choice=self._choices[number % len(self._choices)] if self._choices else "auto",
                stream=stream,
            )
            for number, text in enumerate(material.texts)
            for stream in (False, True)
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: Control) -> list[Probe]:
        """Return the same probes twice: how servers split a stream depends on their load, and parsers on the split."""
        return self.probes(material) * 2

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: Control
    ) -> Finding:
        """Compare reasoning, content and calls with both answers of the control, and validate complete calls."""
        malformed, differences, calls, unstable = [], [], 0, 0
        own = zip(expected[: len(answers)], expected[len(answers) :], strict=True)
        for probe, found, pair in zip(self.probes(material), answers, own, strict=True):
            where = f"{probe.messages[0]['content'][-30:]!r}, {'streamed' if probe.stream else 'whole'}"
            calls += len(found.tool_calls)
            unstable += _parts(pair[0]) != _parts(pair[1])
            if found.finish_reason != "length" and not any(map(_problem, pair)) and (problem := _problem(found)):
                malformed.append(f"{where}: {problem}")
            if _parts(found) not in map(_parts, pair):
                differences.append(f"{where}: expected {_parts(pair[0])}, found {_parts(found)}")
        coarse = control.tolerance > COARSE
        summary = (
            f"{len(answers) - len(differences)} of {len(answers)} chats are parsed as the control's, "
            f"{len(malformed)} malformed, {calls} tool calls; the control differs from itself on {unstable}"
        )
        if not any(one.tool_calls if self._parsed == "tool calls" else one.reasoning for one in expected):
            return Finding(self.name, Status.NOT_RUN, f"the control parsed no {self._parsed}. {self._remedy}")
        return judged(
            self.name,
            [*malformed, *([] if coarse else differences)],
            summary,
            chats=len(answers),
            malformed=len(malformed),
            tool_calls=calls,
        )


def _parts(answer: Answer) -> tuple[object, ...]:
    """Return what was parsed, with arguments as values."""
    calls = tuple((call.name, _value(call.arguments)) for call in answer.tool_calls)
    return answer.reasoning, answer.text, calls, answer.finish_reason


def _value(arguments: str) -> object:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def _problem(answer: Answer) -> str | None:
    """Return what is wrong with an answer's calls, or None."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    for call in answer.tool_calls:
        if call.name not in schemas:
            return f"unknown tool {call.name!r}"
        try:
            problem = violation(json.loads(call.arguments), schemas[call.name])
        except ValueError as error:
            problem = str(error)
        if problem is not None:
            return f"arguments {call.arguments[:80]!r}: {problem}"
    return None
