"""The lookup in compiled code that is launched like kernels, so that an engine on a CPU makes launches again."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch

from specplug import launching
from specplug.interfaces import PluginContext
from specplug.lookup import compiled, steps, storage
from specplug.lookup import layout as at
from specplug.lookup.proposer import LookupProposer

DTYPES = {"slots": torch.int64, "rows": torch.int64}
"""Types in which compiled code takes what tells of rows, int32 but for these."""


def array(argument: Any) -> Any:
    """Return an argument of a kernel as compiled code takes it."""
    if isinstance(argument, at.Rows | at.Source):
        named = {
            name: it if name == "table" else it.to(DTYPES.get(name, torch.int32))
            for name, it in argument._asdict().items()
        }
        return type(argument)(**{name: steps.whole_rows(it) for name, it in named.items()})
    if isinstance(argument, at.State):
        return storage.views(argument)
    if isinstance(argument, at.Drafts):
        return at.Drafts(*map(steps.whole_rows, argument))
    return steps.whole_rows(argument) if isinstance(argument, torch.Tensor) else argument


def launched(name: str, *arguments: Any) -> None:
    """Launch a function of compiled code, as a kernel that takes tensors, and what is to begin or finish with it."""
    work = [it for it in arguments if isinstance(it, launching.RowWork)]
    rest = [it for it in arguments if not isinstance(it, launching.RowWork)]
    run = getattr(compiled, name)
    for each in work if name == "ingest" else ():
        each.launch()
    launching.launch(lambda *given: run(*map(array, given)), rest)
    for each in work if name == "draft" else ():
        each.launch()


FORM = ModuleType("launched")
for name in ("ingest", "scan", "search", "draft", "append", "remember"):
    setattr(FORM, name, partial(launched, name))


class Launched(LookupProposer):
    """`ngram`, launched."""

    def __init__(self, context: PluginContext) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(steps, "form_for", lambda device: FORM)
            super().__init__(context)
