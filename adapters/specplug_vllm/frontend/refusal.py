"""The error that vLLM answers with a 400."""

from __future__ import annotations

from vllm.exceptions import VLLMValidationError

from specplug.errors import RequestError


class RefusedRequest(RequestError, VLLMValidationError, ValueError):
    """A request's specplug fields are wrong.  vLLM answers its own kind of error with a 400, and others with a 500."""
