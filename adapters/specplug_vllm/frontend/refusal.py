"""The error for invalid specplug fields, which vLLM reports as HTTP 400."""

from __future__ import annotations

from vllm.exceptions import VLLMValidationError

from specplug.errors import RequestError


class RefusedRequest(RequestError, VLLMValidationError, ValueError):
    """A request's specplug fields are invalid.  vLLM returns 400 for its own error type, and 500 for others."""
