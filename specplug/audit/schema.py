"""Validation by the library jsonschema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def violation(value: object, schema: Mapping[str, Any]) -> str | None:
    """Return how a JSON value breaks a schema; None if it follows it."""
    from jsonschema import Draft202012Validator

    errors = sorted(Draft202012Validator(schema).iter_errors(value), key=str)
    return errors[0].message if errors else None
