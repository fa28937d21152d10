"""Structured output must follow its schema, and be the control's."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from specplug.audit.differences import first_difference, is_near_tie
from specplug.audit.finding import Finding, Status, judged
from specplug.audit.probe import TOP_LOGPROBS, Answer, Control, Material, Probe
from specplug.audit.schema import violation

SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {
            "kind": {"enum": ["function", "class", "module"]},
            "line": {"type": "integer", "minimum": 0, "maximum": 99},
            "ok": {"type": "boolean"},
        },
        "required": ["kind", "line", "ok"],
        "additionalProperties": False,
    },
    {"type": "string", "pattern": "^(read|write) [0-9]{2} (lines|characters) of (main|notes)$"},
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4},
)
"""Schemas with forced tokens and few choices; the second has no place for white space, in which small models loop."""

LEAST_TOKENS = 96


class Structured:
    """Constrains the answers to the prompts by JSON schemas, in turn."""

    name = "structured"
    summary = "JSON-schema outputs follow their schema and equal the control's"

    def probes(self, material: Material) -> list[Probe]:
        """Return one probe for each prompt."""
        return [
            Probe(prompt=prompt, max_tokens=max(LEAST_TOKENS, material.max_tokens), json_schema=_schema(number))
            for number, prompt in enumerate(material.prompts)
        ]

    def control_probes(self, material: Material, answers: Sequence[Answer], control: Control) -> list[Probe]:
        """Return the same probes, with log-probabilities if the control gives them."""
        top = TOP_LOGPROBS if control.gives_logprobs else 0
        return [
            Probe(prompt=probe.prompt, max_tokens=probe.max_tokens, json_schema=probe.json_schema, top_logprobs=top)
            for probe in self.probes(material)
        ]

    def judge(
        self, material: Material, answers: Sequence[Answer], expected: Sequence[Answer], control: Control
    ) -> Finding:
        """Compare all outputs, and validate those that are complete and valid on the control."""
        invalid, differences, ties, valid = [], [], 0, 0
        for number, (found, wanted) in enumerate(zip(answers, expected, strict=True)):
            problem = _problem(found, _schema(number))
            valid += problem is None
            if problem is not None and _problem(wanted, _schema(number)) is None:
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
        finding = judged(self.name, [*invalid, *differences], summary, valid=valid, near_ties=ties)
        if finding.status is Status.PASSED and not valid:
            return Finding(self.name, Status.UNPROVEN, summary, figures=finding.figures)
        return finding


def _schema(number: int) -> dict[str, Any]:
    return SCHEMAS[number % len(SCHEMAS)]


def _problem(answer: Answer, schema: dict[str, Any]) -> str | None:
    """Return what is wrong with an output, or None."""
    try:
        return violation(json.loads(answer.text), schema)
    except ValueError as error:
        return str(error)
