"""The error that SGLang answers with a 400."""

from __future__ import annotations

from specplug.errors import RequestError


class RefusedRequest(RequestError, ValueError):
    """A request's specplug fields are wrong.  SGLang answers a `ValueError` with a 400, and others with a 500."""
