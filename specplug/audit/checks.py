"""The checks of an audit, by name."""

from __future__ import annotations

from collections.abc import Sequence

from specplug.audit.formats import Chat, Structured
from specplug.audit.probe import Check
from specplug.audit.sampled import Sampled
from specplug.audit.texts import Greedy, Logprobs, Seeds, Stops
from specplug.errors import SettingsError, suggest


def all_checks(samples: int) -> dict[str, Check]:
    """Return every check by name, in the order in which they run, with so many `samples` of each prompt and kind."""
    checks: list[Check] = [
        Greedy(),
        Sampled(samples),
        Stops(),
        Logprobs(),
        Structured(),
        Chat(
            "tools", ("required", "weather"), "tool calls", "Start both servers with a chat template that takes tools"
        ),
        Chat(
            "auto-tools",
            ("auto",),
            "tool calls",
            "Start both servers with their tool-call parser, and send prompts that call for tools",
        ),
        Chat("reasoning", (), "reasoning", "Start both servers with their reasoning parser"),
        Seeds(),
    ]
    return {check.name: check for check in checks}


def chosen(names: Sequence[str], samples: int) -> list[Check]:
    """Return the named checks, or, if none is named, all that every lossless engine must pass.

    Raises:
        SettingsError: a name is unknown.
    """
    known = all_checks(samples)
    for name in names:
        if name not in known:
            raise SettingsError.build("unknown check", who="--check", found=repr(name), remedy=suggest(name, known))
    requested = names or [name for name in known if name != Seeds.name]
    return [check for name, check in known.items() if name in requested]
