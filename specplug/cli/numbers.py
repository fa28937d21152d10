"""Numbers separated by commas, as options take them."""

from __future__ import annotations

from specplug.errors import SettingsError


def ascending(text: str, what: str, who: str) -> list[int]:
    """Return positive integers, ascending, without repeats.

    Raises:
        SettingsError: a part is no positive integer; `what` names the numbers and `who` the option.
    """
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise SettingsError.build(f"bad {what}", who=who, found=repr(text), expected="such as 1,8,32")
    return found
