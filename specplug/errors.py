"""Errors that specplug raises on purpose.

Every message answers five questions: what went wrong, who caused it, what was found, what was expected, and what to do
about it.  `SpecplugError.build` keeps that order, so all messages read alike.
"""

from __future__ import annotations

import difflib
import signal
import threading
import traceback
from collections.abc import Iterable

_LONGEST_COMPARED = 256  # characters of a name: comparing takes 0.1 s per million, and clients send names


class SpecplugError(Exception):
    """Base class of all errors that specplug raises on purpose."""

    @classmethod
    def build(
        cls,
        what: str,
        *,
        who: str | None = None,
        found: object = None,
        expected: object = None,
        remedy: str | None = None,
    ) -> SpecplugError:
        """Build an error whose message joins the parts that are given."""
        parts = [what if who is None else f"{who}: {what}"]
        if found is not None:
            parts.append(f"found {found}")
        if expected is not None:
            parts.append(f"expected {expected}")
        message = "; ".join(parts)
        return cls(message if remedy is None else f"{message}. {remedy}")


class SettingsError(SpecplugError):
    """A setting is unknown, malformed or out of range."""


class RequestError(SpecplugError):
    """A request's own fields are wrong; the engine's front end answers 4xx."""


class PluginError(SpecplugError):
    """A plug-in is unknown, broken, or registered twice."""


class ContractError(SpecplugError):
    """A proposer, policy or verifier broke the contract of its interface."""


class EngineError(SpecplugError):
    """An engine is missing, has an unsupported version, or does not support the configuration."""


class TraceError(SpecplugError):
    """A trace file is torn, of a different format or of a different version."""


class CorpusError(SpecplugError):
    """A corpus store, or one of its files, is torn, of a different format, full or in use, or lacks an entry."""


def ends_process(error: BaseException) -> bool:
    """Return whether an exception must end the process and is not a fault of the plug-in that it was raised in.

    This holds for Ctrl-C and for exceptions from a signal handler, which interrupt the main thread wherever it is, even
    in a plug-in.  Engines exit on SIGTERM by such a `SystemExit`.  Any other one is a plug-in's own fault, and so is a
    panic of a Rust extension, which derives from `BaseException`.
    """
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    frames = traceback.walk_tb(error.__traceback__)
    return isinstance(error, KeyboardInterrupt) or any(frame.f_code in codes for frame, _ in frames)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``Did you mean 'x'?`` if `name` is close to a known name, followed by the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6) if len(name) <= _LONGEST_COMPARED else []
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names) if names else 'none'}"
