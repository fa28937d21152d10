"""Construction of the pipeline's stages from settings, which every adapter does once, at start-up.

An engine that plans and drafts in different processes builds the plan stage in one and the draft stage in each worker;
they share only settings.  Faults are not contained here: a plug-in that cannot be built stops start-up, with one
message that names it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specplug.corpus.store import STORE_FILE
from specplug.errors import PluginError, SpecplugError, describe, ends_process, quote
from specplug.faults import FaultGuard, FaultSink
from specplug.grammar.drafts import SOURCE
from specplug.interfaces import Planner, PluginContext, Proposer, Trimmer, Verifier
from specplug.metrics import SpecMetrics
from specplug.plugins import specs
from specplug.plugins.registry import Registry
from specplug.plugins.specs import PluginSpec, PolicySpec, ProposerSpec, VerifierSpec, trimming_policy
from specplug.settings.checks import plugin_options
from specplug.settings.model import Section, Settings
from specplug.steps import memory
from specplug.steps.draft_buffers import checked_draft_vocab
from specplug.steps.draft_stage import DraftStage
from specplug.steps.handles import ProposerHandle, make_handle
from specplug.steps.plan_stage import JoinedPlanner, PlanStage
from specplug.steps.proposer_runner import ProposerRunner
from specplug.trace import TraceWriter
from specplug.types.caps import Distribution
from specplug.types.step import Draft
from specplug.verify.draft_distribution import FittedVerifier

_CALLERS = (__file__, specs.__file__)
_FRAMES_SHOWN = 3
"""Number of last traceback frames to show, enough to find the line in the plug-in's code."""


def build_plan_stage(settings: Settings, registry: Registry, context: PluginContext, sink: FaultSink) -> PlanStage:
    """Build the host half of the policies that the settings name; `sink` counts their faults."""
    parts: dict[str, PlanStage] = {}
    for spec in _policies(settings, registry):
        with _starting(spec):
            planner: Planner = _checked(spec.build(context_for(spec, settings, context)), Planner, spec)
            parts[spec.name] = PlanStage(planner, context.caps, _guard(settings, f"policy {spec.name}", sink))
    if len(parts) > 1:
        stage = PlanStage(JoinedPlanner(parts), context.caps, _guard(settings, f"policy {settings.policy}", sink))
    else:
        (stage,) = parts.values()
    stage.ceiling = 0 if settings.mode == "off" else None
    return stage


def build_draft_stage(
    settings: Settings, registry: Registry, context: PluginContext, *, grammars: bool = False
) -> DraftStage:
    """Build proposers, trim half, metrics and trace.  Allocates all draft buffers and warms up the proposers.

    If `grammars`, the engine's grammars also draft, after the proposers; see `specplug.grammar`.
    """

    def sink(name: str, kind: str) -> None:
        metrics.count_fault(name, kind)

    names = (settings.proposer, *settings.extra_proposers)
    handles = [_handle(name, settings, registry, context, sink) for name in names]
    policy = trimming_policy(_policies(settings, registry))
    with _starting(policy):
        trimmer: Trimmer = _checked(policy.build_trimmer(context_for(policy, settings, context)), Trimmer, policy)
    sources = tuple(source for handle in handles for source in handle.sources)
    counted = (*sources, SOURCE) if grammars and SOURCE not in sources else sources
    metrics = SpecMetrics(counted, context.caps.max_draft_length, context.device)
    contains = settings.draft_ranks == "first" or context.caps.tensor_parallel_size == 1
    return DraftStage(
        handles,
        [_guard(settings, handle.spec.name, metrics.count_fault, contains=contains) for handle in handles],
        trimmer,
        _guard(settings, f"policy {policy.name}", metrics.count_fault, contains=contains),
        caps=context.caps,
        max_slots=context.max_slots,
        vocab_size=context.vocab_size,
        device=context.device,
        metrics=metrics,
        trace=None if settings.trace.path is None else TraceWriter(settings.trace.path),
    )


def build_verifier(settings: Settings, registry: Registry, context: PluginContext) -> Verifier:
    """Build the verifier that the settings name, wrapped to convert drafts to the distributions that it declares."""
    spec = registry.get(VerifierSpec, settings.verifier)
    with _starting(spec):
        verifier: Verifier = _checked(spec.build(context_for(spec, settings, context)), Verifier, spec)
    return FittedVerifier(verifier, spec.caps)


def try_to_build(spec: PluginSpec, settings: Settings, registry: Registry, context: PluginContext) -> None:
    """Build one plug-in as a server would, warm it up if it is a proposer, and release it; skip checks.

    A corpus store that does not exist is not created: only a server knows its tokenizer.

    Raises:
        SpecplugError: it does not start; the message names it and the place of the failure.
    """
    chosen = settings.model_copy(update={spec.kind: spec.name})
    if (store := settings.corpora.store) is not None and not (Path(store) / STORE_FILE).exists():
        chosen = chosen.model_copy(update={"corpora": settings.corpora.model_copy(update={"store": None})})
    with _starting(spec):
        if isinstance(spec, ProposerSpec):
            _handle(spec.name, chosen, registry, context, lambda _name, _kind: None).close()
        elif isinstance(spec, PolicySpec):
            own = context_for(spec, chosen, context)
            _checked(spec.build(own), Planner, spec)
            _checked(spec.build_trimmer(own), Trimmer, spec)
        elif isinstance(spec, VerifierSpec):
            build_verifier(chosen, registry, context)


def build_part(
    name: str,
    settings: Settings,
    registry: Registry,
    context: PluginContext,
    sink: FaultSink,
    within: tuple[str, ...],
    *,
    states: bool = False,
) -> ProposerRunner:
    """Build a proposer as a part of another one.

    Args:
        name: name of the part.
        settings, registry, context: as in `build_draft_stage`.
        sink: counts its faults, under the names of the enclosing proposers and its own.
        within: names of the enclosing proposers, outermost first.
        states: whether its drafts keep the logits that they are drawn from, if the engine takes any distribution; by
            default they are one-hot.

    Raises:
        PluginError: it is not registered, does not start, or is one of the enclosing proposers.
    """
    path = (*within, name)
    if name in within:
        raise PluginError.build(
            f"proposer {name!r} is made of itself",
            found=" made of ".join(map(repr, path)),
            expected="parts that are made of others",
        )
    context = replace(context, caps=replace(context.caps, trees=False))  # composed drafts are chains
    handle = _handle(name, settings, registry, context, sink, within)
    states &= handle.caps.distribution is Distribution.LOGITS and context.caps.draft_input is not Distribution.ONE_HOT
    buffer = Draft.allocate(
        context.max_slots,
        context.caps.max_draft_length,
        device=context.device,
        trees=handle.caps.trees,
        distribution=Distribution.LOGITS if states else Distribution.ONE_HOT,
        vocab_size=context.vocab_size,
        draft_vocab=checked_draft_vocab(name, handle.proposer, context.vocab_size) if states else None,
        sources=handle.sources,
    )
    return ProposerRunner(handle, _guard(settings, "/".join(path), sink), buffer)


def _handle(
    name: str,
    settings: Settings,
    registry: Registry,
    context: PluginContext,
    sink: FaultSink,
    within: tuple[str, ...] = (),
) -> ProposerHandle:
    spec = registry.get(ProposerSpec, name)
    own = context_for(spec, settings, context)
    with _starting(spec):
        if spec.caps_for(context.device.type).needs_host:
            own = replace(own, device=torch.device("cpu"))
        around = replace(context, device=own.device)
        parts: list[ProposerRunner] = []

        def part(other: str, *, states: bool = False) -> ProposerRunner:
            parts.append(build_part(other, settings, registry, around, sink, (*within, name), states=states))
            return parts[-1]

        own = replace(own, part=part)
        declared = spec.memory_for(own)
        before = memory.allocated_bytes(own.device)
        if declared:
            memory.require(name, declared, memory.free_bytes(own.device))
        proposer: Proposer = _checked(spec.build(own), Proposer, spec)
        proposer.warmup()
        deadline = settings.faults.host_deadline_ms
        seconds = None if deadline is None else deadline / 1000
        handle = make_handle(spec, proposer, seconds, context.device, takes_trees=context.caps.trees)
    if own.device == context.device:
        handle.declared = declared + sum(part.handle.declared for part in parts)
        handle.to_allocate = max(0, handle.declared - (memory.allocated_bytes(own.device) - before))
    return handle


def _policies(settings: Settings, registry: Registry) -> list[PolicySpec]:
    return [registry.get(PolicySpec, name) for name in settings.policies]


@contextmanager
def _starting(spec: PluginSpec) -> Iterator[None]:
    """Convert an exception in a plug-in's code at start-up to an error that names the plug-in and the failing line.

    Engines do not always show an exception's traceback, so its last lines are part of the message.
    """
    try:
        yield
    except SpecplugError:
        raise
    except BaseException as error:
        if ends_process(error):
            raise
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in _CALLERS]
        lines = "".join(traceback.format_list(frames[-_FRAMES_SHOWN:])).rstrip()
        raise PluginError.build(
            f"{spec.kind} {spec.name!r} does not start",
            found=describe(error),
            remedy="Report it to the plug-in's author, or choose another one"
            + (f". It was raised here:\n{lines}" if lines else ""),
        ) from error


def _checked(made: Any, expected: type, spec: PluginSpec) -> Any:
    """Return the object made by a plug-in's factory; raise if it is not of the registered kind, or of an old form."""
    old = [name for name in ("host_step", "host_trim") if hasattr(made, name)]
    if old:
        raise PluginError.build(
            "compiled steps of batches in host memory are gone",
            who=f"{spec.kind} {spec.name!r}",
            found=f"a method {old[0]}",
            expected="`step` on the engine's device, or `needs_host`; of trim halves `trim`",
            remedy="Remove the method; see docs/upgrading.md",
        )
    if isinstance(made, expected):
        return made
    raise PluginError.build(
        f"{spec.kind} {spec.name!r} does not start",
        found=f"{quote(made)} from its factory",
        expected=f"a specplug.{expected.__name__}",
        remedy="Derive its class from that one, and let the factory return an instance",
    )


def context_for(spec: PluginSpec, settings: Settings, context: PluginContext) -> PluginContext:
    """Return the context with the plug-in's own settings, parsed by its registered model, and the shared sections."""
    known = [name for name in Settings.model_fields if isinstance(getattr(settings, name), Section)]
    unknown = [name for name in spec.sections if name not in known]
    if unknown:
        raise PluginError.build(
            "no such section of settings",
            who=f"{spec.kind} {spec.name!r}",
            found=unknown,
            expected=f"names among {', '.join(known)}",
        )
    sections = {name: getattr(settings, name) for name in spec.sections}
    return replace(context, options=plugin_options(settings, spec), sections=sections)


def _guard(settings: Settings, name: str, sink: FaultSink, *, contains: bool = True) -> FaultGuard:
    faults = settings.faults
    limits = {"max_consecutive": faults.max_consecutive, "cooldown_steps": faults.cooldown_steps}
    return FaultGuard(name, **limits, sink=sink, contains=contains)
