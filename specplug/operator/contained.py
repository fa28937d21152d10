"""An engine's code in the process of a tool, which it leaves as it was."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGQUIT", "SIGCHLD") if hasattr(signal, name)]


@contextmanager
def isolated_process(variables: Mapping[str, str]) -> Iterator[io.StringIO]:
    """Run what imports and configures an engine, with further environment variables; yield what it prints.

    Engines print, configure logging, and set variables, signal handlers and the hook of exceptions.  All of it is put
    back; loggers of the engine's own go on writing to what is yielded.  What C code prints goes to standard error.
    """
    printed = io.StringIO()
    environment = dict(os.environ)
    hook = sys.excepthook
    root = logging.getLogger()
    level = root.level
    outputs = list(root.handlers)
    in_main_thread = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if in_main_thread else {}
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    os.environ.update(variables)
    try:
        with redirect_stdout(printed), redirect_stderr(printed), warnings.catch_warnings():
            yield printed
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.environ.clear()
        os.environ.update(environment)
        sys.excepthook = hook
        root.handlers[:] = outputs
        root.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def logged_messages(name: str) -> Iterator[list[str]]:
    """Yield the list that a logger's warnings are added to, whatever level its parents have."""
    found: list[str] = []
    logger = logging.getLogger(name)
    level = logger.level
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
