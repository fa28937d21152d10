"""Errors that specplug raises on purpose.

Every message answers five questions: what went wrong, who caused it, what was found, what was expected, and what to do
about it.  `SpecplugError.build` keeps that order, so all messages read alike.
"""

from __future__ import annotations

import difflib
import itertools
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_LONGEST_TEXT = 4000  # characters of an object's text and of a traceback
_LONGEST_VALUE = 80  # characters of a value that a user wrote
_DEEPEST_VALUE = 8
_LONGEST_COMPARED = 256  # characters of a name: comparing takes 0.1 s per million, and clients send names


class SpecplugError(Exception):
    """Base class of all errors that specplug raises on purpose.

    Attributes:
        ends_start: whether it was raised while a server started, and is its last line if it ends the process.
    """

    ends_start = False

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
        parts = [what if who is None else f"{text_of(who)}: {what}"]
        if found is not None:
            parts.append(f"found {text_of(found)}")
        if expected is not None:
            parts.append(f"expected {text_of(expected)}")
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


def own_error(error: BaseException) -> SpecplugError | None:
    """Return specplug's own error in an exception, which an engine may have raised from it; None if there is none."""
    return next((each for each in (error, error.__cause__) if isinstance(each, SpecplugError)), None)


def ends_process(error: BaseException) -> bool:
    """Return whether an exception must end the process and is not a fault of the plug-in that it was raised in.

    This holds for Ctrl-C and for exceptions from a signal handler, which interrupt the main thread wherever it is, even
    in a plug-in.  Engines exit on SIGTERM by such a `SystemExit`.  Any other one is a plug-in's own fault, and so is a
    panic of a Rust extension, which derives from `BaseException`.
    """
    kind = type(error)  # the exception's own attributes, `__class__` and `__traceback__` included, may raise
    if issubclass(kind, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    frames = traceback.walk_tb(_traceback(error))
    return kind is KeyboardInterrupt or any(frame.f_code in codes for frame, _ in frames)


def text_of(value: object, how: Callable[[Any], str] = str) -> str:
    """Return the text of a plug-in's object, or of an exception, by `str` or `repr`, shortened and valid UTF-8.

    Its own methods may raise, or return a subclass of `str` whose methods do; then its type's name stands for it.
    """
    try:
        text = str.__str__(how(value))
    except BaseException as error:
        if ends_process(error):
            raise
        text = f"<{_type_name(value)} without a text>"
    return _shortened(text)


def quote(value: object) -> str:
    """Return a value as messages quote it: on one line and shortened."""
    try:
        text = text_of(excerpt(value), repr)
    except Exception:  # a mapping of a user's own class may raise, too
        text = text_of(value, repr)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def excerpt(value: object, depth: int = _DEEPEST_VALUE) -> object:
    """Return the part of a large or deep value that messages show; its full `repr` could take a second, or fail."""
    if not depth and isinstance(value, (Mapping, list, tuple)):
        return "..."
    if isinstance(value, Mapping):
        return {key: excerpt(item, depth - 1) for key, item in itertools.islice(value.items(), _LONGEST_VALUE)}
    if isinstance(value, (list, tuple)):
        items = [excerpt(item, depth - 1) for item in value[: _LONGEST_VALUE + 1]]
        return items if isinstance(value, list) else tuple(items)
    return value[: _LONGEST_VALUE + 1] if isinstance(value, str) else value


def describe(error: BaseException) -> str:
    """Return an exception's type and text, whatever its own methods do; messages and logs use nothing else."""
    return f"{_shortened(_type_name(error))}: {text_of(error)}"


def first_line(error: BaseException) -> str:
    """Return the first line of `describe`, without a full stop: libraries of models explain themselves at length."""
    return describe(error).splitlines()[0].rstrip(".: ")


def traceback_of(error: BaseException) -> str:
    """Return an exception's traceback as text, whatever its own methods and attributes do."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as failed:
        if ends_process(failed):
            raise
        text = "".join([*traceback.format_tb(_traceback(error)), describe(error)])
    return _shortened(text.rstrip(), from_end=True)


def drop_traceback(error: BaseException) -> None:
    """Remove the tracebacks of a contained exception and of its causes, whatever its own methods and attributes do.

    A traceback keeps its frames and their callers alive, and so the step's tensors.  An exception of a future forms a
    reference cycle with the frame that waited for it, which only a full garbage collection would free.
    """
    waiting: list[BaseException | None] = [error]
    seen = set()
    while waiting:
        found = waiting.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            _members["__traceback__"].__set__(found, None)
            waiting += [_members[name].__get__(found) for name in ("__cause__", "__context__")]


_members = BaseException.__dict__
_traceback = _members["__traceback__"].__get__


def _type_name(value: object) -> str:
    return str.__str__(type.__dict__["__name__"].__get__(type(value)))


def _shortened(text: str, *, from_end: bool = False) -> str:
    cut = text if len(text) <= _LONGEST_TEXT else text[-_LONGEST_TEXT:] if from_end else text[:_LONGEST_TEXT] + "..."
    return cut.encode("utf-8", "backslashreplace").decode()


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``Did you mean 'x'?`` if `name` is close to a known name or continues it, and the list of known names."""
    names = sorted(known)
    close = [each for each in names if name.startswith(f"{each}-")]
    if not close and len(name) <= _LONGEST_COMPARED:
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"Did you mean {close[-1]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names) if names else 'none'}"
