"""Memory that proposers declare: whether it is there, and what an engine must leave for later."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import specplug.plugins.builtin
import specplug_fixed.plugin
from specplug.assembly import build_draft_stage
from specplug.errors import PluginError
from specplug.interfaces import PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec, hookimpl
from specplug.settings import Settings
from specplug.steps import memory
from specplug.types.caps import EngineCaps, ProposerCaps
from tests.steps.tools import Recorder

GIB = 1 << 30


def stage_of(declares: Any, *, needs_host: bool = False, device: str = "cpu", part: bool = False) -> Any:
    context = PluginContext(EngineCaps(4), vocab_size=16, max_slots=2, max_length=32, device=torch.device(device))

    class Plugin:
        @hookimpl
        def specplug_register_proposers(self, register: Any) -> None:
            def factory(context: PluginContext) -> Recorder:
                if part:
                    context.part("small")
                return Recorder()

            caps = ProposerCaps(needs_host=needs_host)
            register(ProposerSpec(name="big", factory=factory, summary="", caps=caps, memory=declares))
            register(ProposerSpec(name="small", factory=lambda _: Recorder(), summary="", caps=caps, memory=declares))

    registry = Registry()
    for name, plugin in {"core": specplug.plugins.builtin, "fixed": specplug_fixed.plugin, "big": Plugin()}.items():
        registry.add(plugin, Owner(name, "tests", "0"))
    return build_draft_stage(Settings(proposer="big", policy="fixed"), registry, context)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(memory, "free_bytes", lambda _device: 2 * GIB)
    return 2 * GIB


def test_more_than_is_free_stops_start_up(free: int) -> None:
    with pytest.raises(PluginError) as error:
        stage_of(lambda context: 3 * GIB + context.max_slots)
    for part in ("big", "not enough memory", f"{3 * GIB + 2} bytes", f"{2 * GIB} bytes", "smaller draft model"):
        assert part in str(error.value)


def test_what_is_not_taken_at_start_up_is_left_out_of_the_engines_cache(free: int) -> None:
    stage = stage_of(lambda _: GIB)
    assert stage.bytes_to_allocate == GIB
    assert stage.leave_room(3 * GIB) == 2 * GIB
    with pytest.raises(PluginError, match="'big'"):
        stage.leave_room(GIB - 1)


@pytest.mark.parametrize(("taken", "later"), [(0, GIB), (GIB // 4, GIB - GIB // 4), (GIB, 0), (2 * GIB, 0)])
def test_what_it_has_allocated_is_the_engines_to_count(free: int, monkeypatch, taken: int, later: int) -> None:
    allocated = iter([5, 5 + taken])
    monkeypatch.setattr(memory, "allocated_bytes", lambda _device: next(allocated))
    assert stage_of(lambda _: GIB).bytes_to_allocate == later


def test_what_parts_declare_counts(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = iter([0, 0, GIB // 2, GIB])  # before the whole, around its part, after the whole
    monkeypatch.setattr(memory, "allocated_bytes", lambda _device: next(allocated))
    stage = stage_of(lambda _: GIB, part=True)
    assert stage.bytes_to_allocate == 2 * GIB - GIB


def test_a_awaited_proposers_memory_is_none_of_the_engines_device(free: int) -> None:
    assert stage_of(lambda _: GIB, needs_host=True, device="meta").bytes_to_allocate == 0


def test_free_memory_is_known_on_this_machine() -> None:
    found = memory.free_bytes(torch.device("cpu"))
    assert (found or 0) > 0 or sys.platform != "linux"
    assert memory.free_bytes(torch.device("meta")) is None
