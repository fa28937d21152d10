"""vLLM's runners under test, and how requests name proposers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

RUNNERS: dict[str, dict[str, Any]] = {
    "v1": {"runner": "v1"},
    "v2": {"runner": "v2"},
    "v2_async": {"runner": "v2", "asynchronous": True},
}

ZOO = {
    "proposer": "ngram",
    "extra_proposers": ["oracle", "bigram", "recorder", "example", "spliced"],
    "policy": "fixed",
}
"""Settings of the engines whose requests name their proposers: host and device, with and without knowledge."""


def reported(answer: Sequence[int], **fields: Any) -> dict[str, Any]:
    """Return `extra_args` of a request whose drafts are `answer`, which the oracle takes for the truth."""
    reference = {"token_ids": list(answer)}
    return {"extra_args": {"specplug": {"proposer": "oracle", "references": [reference], **fields}}}


def fields(**given: Any) -> dict[str, Any]:
    """Return `extra_args` with specplug's fields of one request."""
    return {"extra_args": {"specplug": given}}
