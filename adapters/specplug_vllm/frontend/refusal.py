"""The errors for specplug fields that are refused, which vLLM reports as HTTP 400 or 429."""

from __future__ import annotations

from vllm.exceptions import VLLMValidationError

from specplug.errors import RequestError


class InvalidRequest(RequestError, VLLMValidationError, ValueError):
    """A request's specplug fields are invalid.  vLLM returns 400 for its own error type, and 500 for others."""


class OverloadedRequest(InvalidRequest):
    """A request's references are too many at the moment.  It is a 429 where vLLM checks the model's name first."""
