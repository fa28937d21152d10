"""The error for invalid specplug fields, which SGLang reports as HTTP 400."""

from __future__ import annotations

from specplug.errors import RequestError


class RefusedRequest(RequestError, ValueError):
    """A request's specplug fields are invalid.  SGLang returns 400 for a `ValueError`, and 500 for other errors."""
