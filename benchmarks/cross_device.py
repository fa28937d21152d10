"""The part "forms" of `benchmarks.cross_tokenizer`: `crosstok` as it drafts on the host, and as it does on a GPU.

Both run on the CPU here, one with the tokenizers themselves and the other with tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import specplug.plugins.builtin
import specplug_crosstok.plugin
import specplug_fixed.plugin
from benchmarks.cross_engine import PLAIN, Answers, Check, answer, serving, settings
from specplug.plugins.hooks import hookimpl
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec
from specplug_crosstok.device.proposer import DeviceCrossTok

HOST, DEVICE = "host", "device"
FORMS = (HOST, DEVICE)


class DevicePlugin:
    """The plug-in `crosstok` in the form for GPUs."""

    @hookimpl
    def specplug_register_proposers(self, register: Callable[[ProposerSpec], None]) -> None:
        """Register it."""
        specplug_crosstok.plugin.specplug_register_proposers(
            lambda spec: register(replace(spec, factory=DeviceCrossTok, caps=spec.caps_for("cuda"), memory=None))
        )


def registry_of(form: str) -> Registry | None:
    """Return the registry of a form; None for the installed plug-ins."""
    if form == HOST:
        return None
    registry = Registry()
    modules = {"core": specplug.plugins.builtin, "fixed": specplug_fixed.plugin, "device": DevicePlugin()}
    for name, module in modules.items():
        registry.add(module, Owner(name, "benchmarks", "0"))
    if registry.load_errors:
        raise RuntimeError(str(registry.load_errors))
    return registry


def forms(
    prompts: Sequence[Sequence[int]], arms: Sequence[tuple[str, str, float]], rounds: int, check: Check
) -> list[dict[str, Any]]:
    """Return one row for each arm and form: its figures, the forms in turn.

    Args:
        prompts: of the requests, answered together.
        arms: draft model, route and temperature.
        rounds: how often each form answers.
        check: compares greedy outputs with those of plain decoding.
    """
    rows = []
    with serving(PLAIN, len(prompts)) as engine:
        expected = answer(engine, prompts).token_ids
    for draft, route, heat in arms:
        found = {form: Answers() for form in FORMS}
        with ExitStack() as stack:
            engines = {
                form: stack.enter_context(serving(settings(draft, route), len(prompts), registry_of(form)))
                for form in FORMS
            }
            for number in range(rounds):
                for form, engine in engines.items():
                    found[form].add(answer(engine, prompts, heat, seed=1000 * number))
        for form, mine in found.items():
            if not heat:
                check.compare([*prompts] * rounds, expected * rounds, mine.token_ids)
            row = {"draft": draft, "route": route, "temperature": heat, "form": form}
            rows.append({**row, "to_host": mine.tau / found[HOST].tau, **mine.figures()})
    return rows
