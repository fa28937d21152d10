"""The errors for specplug fields that are refused, which SGLang reports as HTTP 400 or 429."""

from __future__ import annotations

from fastapi import HTTPException

from specplug.errors import RequestError


class RefusedRequest(RequestError, ValueError):
    """A request's specplug fields are invalid.  SGLang returns 400 for a `ValueError`, and 500 for other errors."""


class BusyRequest(RequestError, HTTPException):
    """A request's references are too many at the moment."""

    def __init__(self, message: str) -> None:
        HTTPException.__init__(self, 429, message)

    def __str__(self) -> str:
        return str(self.detail)
