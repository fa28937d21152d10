"""Checks of settings against the registered plug-ins: their names and options, and what an engine's drafter reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from pydantic import BaseModel, ValidationError

from specplug.errors import PluginError, SettingsError, describe, quote, suggest
from specplug.input_errors import Mistake, from_pydantic, join_mistakes, unknown_key
from specplug.plugins.registry import KINDS, Registry
from specplug.plugins.specs import (
    ENGINE_DRAFTER,
    HYBRID,
    LISTED_DEVICES,
    SURVIVAL_TRIMMER,
    PluginSpec,
    PolicySpec,
    ProposerSpec,
    VerifierSpec,
    trimming_policy,
)
from specplug.settings.model import Settings


def plugin_options(settings: Settings, spec: PluginSpec) -> Any:
    """Return a plug-in's own settings as an instance of the model that it registered; None when it has none.

    Raises:
        SettingsError: a key is unknown or a value bad.
        PluginError: the model does not load or is no pydantic model.
    """
    options, mistakes = _parse_options(spec, settings.options.get(spec.name, {}))
    if mistakes:
        raise SettingsError(join_mistakes([mistake.line() for mistake in mistakes], "setting"))
    return options


def proposers_of(settings: Settings, registry: Registry) -> list[ProposerSpec]:
    """Return the proposers that draft, those that `HYBRID` is made of included; the engine's own drafter is none."""
    names = [settings.proposer, *settings.extra_proposers]
    if HYBRID in names:
        options = plugin_options(settings, registry.get(ProposerSpec, HYBRID))
        names += [options.lookup, options.model]
    return [registry.get(ProposerSpec, name) for name in dict.fromkeys(names) if name != ENGINE_DRAFTER]


def acceptance_thresholds(settings: Settings, registry: Registry) -> Mapping[str, float] | None:
    """Return the thresholds that requests may name; None if the server's verifier takes none."""
    takes = registry.get(VerifierSpec, settings.verifier).caps.thresholds
    return settings.acceptance_thresholds if takes else None


def plugin_mistakes(settings: Settings, registry: Registry, engine_drafts: bool) -> Iterator[Mistake]:
    """Yield the mistakes in plug-in names and options, checked against the registry.

    With `engine_drafts` the proposer may be the engine's own drafter; settings that only specplug's proposers and
    verifiers read are mistakes then.
    """
    own = engine_drafts and settings.drafts_in_engine
    if own:
        yield from _unread(settings, ("extra_proposers", "verifier", "corpora.store", "trace.path", "draft_ranks"))
    elif engine_drafts and settings.extends_engine:
        yield from _unread(settings, ("extra_proposers", "verifier", "trace.path", "draft_ranks"))
    policies: list[PolicySpec] = []
    for key, kind, name in _named(settings, registry):
        if own and kind is ProposerSpec:
            continue
        try:
            spec = registry.get(kind, name)
            if settings.draft_ranks == "each":
                yield from _differing(spec)
            if isinstance(spec, PolicySpec):
                policies.append(spec)
                trimming_policy(policies)
            if name not in settings.options:  # the plug-in may have a required option
                yield from _parse_options(spec, {})[1]
        except PluginError as error:
            yield Mistake(key, f"bad value for setting {key!r}", quote(name), remedy=str(error))
    if settings.draft_ranks == "each" and settings.trace.path is not None:
        yield Mistake("draft_ranks", _EACH.format("no trace, as every rank would write it"), remedy="Remove trace.path")
    for name, raw in settings.options.items():
        yield from _option_mistakes(name, raw, registry)
    thresholds = settings.acceptance_thresholds
    is_known = settings.verifier in registry.entries(VerifierSpec)
    if thresholds and is_known and acceptance_thresholds(settings, registry) is None:
        what = f"setting 'acceptance_thresholds' has no effect: verifier {settings.verifier!r} takes no thresholds"
        remedy = "Remove them, or name a lossy verifier that takes them; `specplug list` shows which"
        yield Mistake("acceptance_thresholds", what, quote(thresholds), remedy=remedy)


def _named(settings: Settings, registry: Registry) -> Iterator[tuple[str, type[PluginSpec], str]]:
    """Yield (setting, kind, name) for every plug-in that the settings name."""
    yield "proposer", ProposerSpec, settings.proposer
    for index, name in enumerate(settings.extra_proposers):
        yield f"extra_proposers.{index}", ProposerSpec, name
    if HYBRID in (settings.proposer, *settings.extra_proposers):
        for part, name in _parts_of_hybrid(settings, registry).items():
            yield f"options.{HYBRID}.{part}", ProposerSpec, name
    for name in settings.policies:
        yield "policy", PolicySpec, name
    yield "verifier", VerifierSpec, settings.verifier


def _parts_of_hybrid(settings: Settings, registry: Registry) -> dict[str, str]:
    """Return the names of the proposers that `HYBRID` is made of, by option; none if its options are wrong."""
    try:
        options, mistakes = _parse_options(registry.get(ProposerSpec, HYBRID), settings.options.get(HYBRID, {}))
    except PluginError:
        return {}
    names = {} if mistakes else {part: getattr(options, part, ENGINE_DRAFTER) for part in ("lookup", "model")}
    return {part: name for part, name in names.items() if name != ENGINE_DRAFTER}


_EACH = "setting 'draft_ranks' 'each' needs {}"


def _differing(spec: PluginSpec) -> Iterator[Mistake]:
    """Yield a mistake for a plug-in whose drafts may differ between ranks that each draft."""
    reason = None
    if isinstance(spec, ProposerSpec) and not all(spec.caps_for(device).deterministic for device in LISTED_DEVICES):
        reason = "does not declare that its drafts are deterministic"
    elif isinstance(spec, PolicySpec) and spec.trimmer != SURVIVAL_TRIMMER:
        reason = "has a trim half of its own"
    if reason is not None:
        what = _EACH.format(f"equal drafts on all ranks, but {spec.kind} {spec.name!r} {reason}")
        yield Mistake("draft_ranks", what, remedy="Use 'first', or another plug-in")


def _unread(settings: Settings, keys: Sequence[str]) -> Iterator[Mistake]:
    """Yield those of the settings `keys` that are set, as nothing reads them if the engine's own drafter drafts."""
    defaults = Settings()
    for key in keys:
        value, default = (attrgetter(key)(each) for each in (settings, defaults))
        if value != default:
            what = f"setting {key!r} has no effect on the engine's own drafter"
            yield Mistake(key, what, quote(value), remedy="Remove it, or draft with one of specplug's proposers")


def _option_mistakes(name: str, raw: Mapping[str, Any], registry: Registry) -> Iterator[Mistake]:
    """Check the options given under one plug-in's name."""
    key = f"options.{name}"
    entries = [entry.spec for kind in KINDS.values() for entry in registry.entries(kind).values()]
    named = [spec for spec in entries if spec.name == name]
    configurable = [spec for spec in named if spec.options is not None]
    if not named:
        remedy = suggest(name, {spec.name for spec in entries})
        yield Mistake(key, f"options for an unknown plug-in {name!r}", quote(raw), remedy=remedy)
    elif not configurable and raw:
        yield Mistake(key, f"{named[0].kind} {name!r} has no options", quote(raw), remedy=f"Remove {key!r}")
    elif len(configurable) > 1:
        kinds = " and ".join(spec.kind for spec in configurable)
        yield Mistake(key, f"{name!r} is the name of a {kinds}, both with options", remedy="Rename one of them")
    for spec in configurable[:1]:
        try:
            yield from _parse_options(spec, raw)[1]
        except PluginError as error:
            yield Mistake(key, str(error))


def _parse_options(spec: PluginSpec, raw: Mapping[str, Any]) -> tuple[Any, list[Mistake]]:
    """Build a plug-in's option model; return (model or None, mistakes)."""
    model = spec.options_model()
    who = f"{spec.kind} {spec.name!r}"
    if model is None:
        return None, []
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        expected = "a subclass of pydantic.BaseModel"
        raise PluginError.build("options are not a model", who=who, found=quote(model), expected=expected)
    prefix = f"options.{spec.name}."
    mistakes: list[Mistake] = []
    if model.model_config.get("extra", "ignore") == "ignore":  # pydantic's default would drop unknown keys silently
        known = {alias for name, field in model.model_fields.items() for alias in (name, field.alias) if alias}
        named = {prefix + name for name in known}
        mistakes = [unknown_key(prefix + key, raw[key], named, "setting") for key in raw if key not in known]
    try:
        return model.model_validate(dict(raw)), mistakes
    except ValidationError as error:
        return None, mistakes + from_pydantic(error, model, "setting", prefix)
    except Exception as error:  # a validator of the plug-in's own
        raise PluginError.build("its options cannot be validated", who=who, found=describe(error)) from error
