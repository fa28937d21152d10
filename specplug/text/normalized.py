"""Texts to draft from in the form in which models write them."""

from __future__ import annotations

NO_BREAK_SPACE = "\u00a0"


def normalized(text: str) -> str:
    """Return a text with new lines for CRLF and spaces for no-break ones.

    Models write the former even when they quote the latter, and a draft would be rejected at each of them.
    """
    return text.replace("\r\n", "\n").replace(NO_BREAK_SPACE, " ")
