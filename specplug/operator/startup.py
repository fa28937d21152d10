"""What a server says at its start: one line of what it runs, or an error's message without a traceback."""

from __future__ import annotations

import atexit
import builtins
import logging
import multiprocessing
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from specplug.errors import SettingsError, SpecplugError, describe, own_error
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import PluginSpec, PolicySpec
from specplug.types.caps import EngineCaps

if TYPE_CHECKING:
    from specplug.settings.model import Settings

_log = logging.getLogger(__name__)

DEBUG_VARIABLE = "SPECPLUG_DEBUG"
"""Environment variable that shows tracebacks, as the command line's ``--debug`` does."""

_PLACE = "_SPECPLUG_LAST_MESSAGE"
"""Environment variable for a server's children: the id of its first process, and the file of what ended a child."""


@contextmanager
def message_only() -> Iterator[None]:
    """Let a specplug error that is raised within and ends this process be its last line, without a traceback.

    Engines build their configuration deep inside their own code, whose traceback of forty lines does not help a user
    who misspelt a setting.  It has no effect on code that catches the error.
    """
    try:
        yield
    except SpecplugError as error:
        error.ends_start = True
        _replace_hook()
        raise


def expect_children(*, ours: bool = True) -> None:
    """Let this process, a server's first, print last what ends one of its children, and nothing else.

    Engines build workers in child processes, and then know no more than that one has ended.  Where nobody would see the
    last line, as in a notebook or a thread, children print their own tracebacks.

    Args:
        ours: whether the engine that starts now uses specplug; without it, messages for one before are dropped.
    """
    if multiprocessing.parent_process() is not None:
        return
    _left_message()
    os.environ.pop(_PLACE, None)
    unseen = hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")
    in_thread = threading.current_thread() is not threading.main_thread()
    if not ours or unseen or in_thread or os.environ.get(DEBUG_VARIABLE):
        return
    _replace_hook()
    atexit.unregister(_print_left_message)
    atexit.register(_print_left_message)
    name = f"specplug-{secrets.token_hex(8)}"
    os.environ[_PLACE] = f"{os.getpid()} {Path(tempfile.gettempdir()) / name}"


@contextmanager
def told_by_parent(*, direct: bool = False) -> Iterator[None]:
    """End a child process that a specplug error is raised in, and leave the message to the server's first process.

    A child whose own child has ended so ends, too.  Where there is no such process, as in an engine within one process,
    errors are raised as they are; so are they in children of children if only `direct` ones are noticed when they end.
    """
    try:
        yield
    except Exception as error:
        pid, _, path = os.environ.get(_PLACE, "").partition(" ")
        own = own_error(error)
        is_first = not path or int(pid) == os.getpid()
        if own is not None and is_first:
            own.ends_start = True
        if is_first or (direct and int(pid) != os.getppid()) or not (own or Path(path).exists()):
            raise
        if not _leave(Path(path), str(own)):
            raise
        raise SystemExit(1) from None


def _leave(path: Path, message: str) -> bool:
    """Write a message for the first process; return whether one is there, if another rank's of the same mistake."""
    try:
        path.touch(0o600, exist_ok=False)
        path.write_text(message, encoding="utf-8")
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def _replace_hook() -> None:
    if os.environ.get(DEBUG_VARIABLE) or hasattr(sys.excepthook, "_specplug"):
        return
    original = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        own = own_error(error)
        message = str(own) if own is not None and own.ends_start else ""
        if not message and issubclass(kind, Exception):
            message = _left_message()
        if message:
            print(f"error: {message}", file=sys.stderr)
        else:
            original(kind, error, traceback)

    show._specplug = True  # type: ignore[attr-defined]
    sys.excepthook = show


def _left_message() -> str:
    """Return what ended a child of this process, and remove the file; "" if nothing of specplug's did."""
    pid, _, path = os.environ.get(_PLACE, "").partition(" ")
    if pid != str(os.getpid()):
        return ""
    try:
        text = Path(path).read_text(encoding="utf-8")
        Path(path).unlink()
    except OSError:
        return ""
    return text


def _print_left_message() -> None:
    """Print what ended a child at the end of a process that no exception ends, as of a node without an API server."""
    if message := _left_message():
        print(f"error: {message}", file=sys.stderr)


def require_startable(settings: Settings, device: str) -> None:
    """Refuse what a worker would refuse minutes later, such as a missing draft model, before any weights are loaded.

    Proposers say so where they declare their memory, policies where they are built, by a `SettingsError`.  Other errors
    there are the workers', whose context has more.

    Args:
        settings: the server's settings.
        device: the type of the target's device.

    Raises:
        SpecplugError: a proposer lacks what it needs, a policy's options do not fit the server's settings, or the place
            of the corpus store has something else in it.
    """
    import torch

    from specplug.assembly import context_for
    from specplug.corpus.store import require_place
    from specplug.interfaces import PluginContext
    from specplug.settings.checks import proposers_of

    registry = default_registry()
    context = PluginContext(EngineCaps(max_draft_length=settings.num_speculative_tokens), device=torch.device(device))
    proposers = proposers_of(settings, registry)
    tries: list[tuple[PluginSpec, Callable[[PluginContext], object]]] = []
    tries += [(spec, spec.memory_for) for spec in proposers]
    tries += [(spec, spec.build) for spec in (registry.get(PolicySpec, name) for name in settings.policies)]
    for spec, ask in tries:
        try:
            ask(context_for(spec, settings, context))
        except SpecplugError as error:
            if isinstance(spec, PolicySpec) and not isinstance(error, SettingsError):
                continue
            raise
        except Exception as error:
            _log.debug("whether %s starts is not known yet: %s", spec.name, describe(error))
    if settings.corpora.store is not None and any("corpora" in spec.sections for spec in proposers):
        require_place(Path(settings.corpora.store))


def start_line(settings: Settings, most: int, *engine: str, status: str = "") -> str:
    """Return the line: proposers, policy, draft length, engine facts, and the state of the status route.

    Args:
        settings: the server's settings.
        most: most draft tokens per request and step, as resolved by the engine.
        engine: facts on how this engine runs, in a word or two each.
        status: state of ``/specplug/status``: on, or off and how to turn it on; empty without HTTP.
    """
    proposers = " + ".join((settings.proposer, *settings.extra_proposers))
    parts = [proposers, f"policy {settings.policy}", f"up to {most} draft tokens", *engine]
    if settings.mode == "off":
        parts.append("switched off by mode 'off'")
    line = f"specplug {version('specplug')}: {', '.join(parts)}"
    return f"{line}; /specplug/status: {status}" if status else line
