"""Sources of settings: layers merged in order of precedence, with the origin of every value, checked with plug-ins."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from specplug.errors import PluginError, SettingsError, describe, suggest
from specplug.plugins.registry import Registry
from specplug.plugins.specs import (
    HYBRID,
    LISTED_DEVICES,
    SURVIVAL_TRIMMER,
    CheckSpec,
    PluginSpec,
    PolicySpec,
    ProposerSpec,
    VerifierSpec,
    trimming,
)
from specplug.settings.mistakes import Mistake, flatten, from_pydantic, no_duplicates, shown, together, unknown
from specplug.settings.model import Settings, expanded_path

KINDS: dict[str, type[PluginSpec]] = {spec.kind: spec for spec in (ProposerSpec, PolicySpec, VerifierSpec, CheckSpec)}
"""Every kind of plug-in, in the order of listings."""

CONFIG_VARIABLE = "SPECPLUG_CONFIG"
DEFAULT_ORIGIN = "default"
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """A server's settings and the origin of each value.

    Attributes:
        settings: the values.
        origins: the layer that gave each value, by dotted key: ``origins["faults.cooldown_steps"]`` is "default",
            "SPECPLUG_CONFIG (/etc/specplug.toml)", or the name of the engine's flag.
    """

    settings: Settings
    origins: Mapping[str, str]

    def was_set(self, key: str) -> bool:
        """Return whether any layer gave the setting `key` (dotted), even if to its default value."""
        return self.origins[key] != DEFAULT_ORIGIN


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    flags_origin: str = "engine flag",
    origins_of: Mapping[str, str] = MappingProxyType({}),
    env: Mapping[str, str] = os.environ,
    registry: Registry | None = None,
    engine_drafts: bool = False,
) -> ResolvedSettings:
    """Resolve the settings: defaults, then `SPECPLUG_CONFIG`, then `flags`.

    Args:
        flags: the settings given by the engine's own flag or by the command line.
        flags_origin: the name of that layer in origins and messages.
        origins_of: by dotted key, the name to use instead for settings that come from another flag of the engine.
        env: the environment that `SPECPLUG_CONFIG` is read from.
        registry: when given, names and options of plug-ins are checked against it.
        engine_drafts: whether the engine may have a drafter of its own: the proposer may be `ENGINE_DRAFTER`, or
            `HYBRID` with that as its model.

    Raises:
        SettingsError: a layer cannot be read, or keys are unknown or values bad; one message lists all of them.
    """
    layers = [layer for layer in (_from_environment(env), _from_flags(flags, flags_origin)) if layer is not None]
    merged: dict[str, Any] = {}
    given: dict[str, str] = {}
    for origin, layer in layers:
        _check_depth(layer, origin)
        merged = _merge(merged, layer)
        given.update((key, origin) for key, _ in flatten(layer))
    given.update((key, origin) for key, origin in origins_of.items() if key in given)
    settings, mistakes = _validate(merged, registry, engine_drafts)
    if mistakes:
        lines = [mistake.line(_origin(mistake.key, given)) for mistake in mistakes]
        raise SettingsError(together(lines, "setting"))
    origins = {key: given.get(key, DEFAULT_ORIGIN) for key, _ in flatten(settings.model_dump())}
    return ResolvedSettings(settings, MappingProxyType(origins))


def _validate(
    merged: Mapping[str, Any], registry: Registry | None, engine_drafts: bool
) -> tuple[Settings, list[Mistake]]:
    """Validate the merged layers; the returned settings are valid only if there are no mistakes."""
    mistakes: list[Mistake] = []
    wrong: set[object] = set()
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        mistakes = from_pydantic(error, Settings, "setting")
        wrong = {item["loc"][0] for item in error.errors()}
        # Keep the valid values, unvalidated, so that the names of plug-ins are checked in the same pass.
        settings = Settings.model_construct(**{key: value for key, value in merged.items() if key not in wrong})
    if registry is not None:
        found = _plugin_mistakes(settings, registry, engine_drafts)
        mistakes += [mistake for mistake in found if mistake.key.split(".")[0] not in wrong]
    return settings, mistakes


def _from_flags(flags: Mapping[str, Any] | None, origin: str) -> tuple[str, Mapping[str, Any]] | None:
    if flags is None or isinstance(flags, Mapping):
        return None if flags is None else (origin, flags)
    raise SettingsError.build("malformed settings", who=origin, found=shown(flags), expected="a mapping of settings")


def _from_environment(env: Mapping[str, str]) -> tuple[str, Mapping[str, Any]] | None:
    """Read `SPECPLUG_CONFIG`, which holds a path or the settings themselves."""
    text = env.get(CONFIG_VARIABLE, "").strip()
    if not text:
        return None
    if "\n" not in text and Path(text).suffix.lower() in (".json", ".toml"):
        origin = f"{CONFIG_VARIABLE} ({text})"
        return origin, _parse(_read(text, origin), origin, Path(text).suffix.lower() == ".json")
    if text.startswith("{") or "=" in text:
        return CONFIG_VARIABLE, _parse(text, CONFIG_VARIABLE, text.startswith("{"))
    expected = "the path of a .json or .toml file, or JSON or TOML text"
    raise SettingsError.build("malformed settings", who=CONFIG_VARIABLE, found=shown(text), expected=expected)


def _read(path: str, origin: str) -> str:
    try:
        return Path(expanded_path(path)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        found = error.strerror if isinstance(error, OSError) else str(error)
        remedy = f"Correct or unset {CONFIG_VARIABLE}"
        what = "cannot read the settings file"
        expected = "a readable file in UTF-8"
        raise SettingsError.build(what, who=origin, found=found, expected=expected, remedy=remedy) from error


def _parse(text: str, origin: str, is_json: bool) -> Mapping[str, Any]:
    try:
        layer = json.loads(text, object_pairs_hook=no_duplicates) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        language = "JSON" if is_json else "TOML"
        raise SettingsError.build("malformed settings", who=origin, found=str(error), expected=language) from error
    if not isinstance(layer, dict):
        raise SettingsError.build("malformed settings", who=origin, found=shown(layer), expected="a JSON object")
    return layer


def _check_depth(layer: Mapping[str, Any], origin: str) -> None:
    """Refuse settings that are nested deeper than any model of theirs; everything that walks them is recursive."""
    level: list[Any] = [layer]
    for _ in range(_DEEPEST):
        inner = [list(each.values() if isinstance(each, Mapping) else each) for each in level]
        level = [each for items in inner for each in items if isinstance(each, (Mapping, list, tuple))]
        if not level:
            return
    raise SettingsError.build("malformed settings", who=origin, found=f"more than {_DEEPEST} levels of nesting")


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Return `low` overlaid with `high`; nested mappings are merged recursively."""
    merged = dict(low)
    for key, value in high.items():
        if isinstance(value, Mapping):
            below = merged.get(key)
            value = _merge(below if isinstance(below, Mapping) else {}, value)
        merged[key] = value
    return merged


def _origin(key: str, given: Mapping[str, str]) -> str:
    """Return the layers that set a key or anything below it, or else the layer that set a section above it."""
    below = dict.fromkeys(origin for leaf, origin in given.items() if leaf == key or leaf.startswith(f"{key}."))
    above = (given[key[:end]] for end in range(len(key), 0, -1) if key[:end] in given and key[end:].startswith("."))
    return " and ".join(below) or next(above, DEFAULT_ORIGIN)


def plugin_options(settings: Settings, spec: PluginSpec) -> Any:
    """Return a plug-in's own settings as an instance of the model that it registered; None when it has none.

    Raises:
        SettingsError: a key is unknown or a value bad.
        PluginError: the model does not load or is no pydantic model.
    """
    options, mistakes = _parse_options(spec, settings.options.get(spec.name, {}))
    if mistakes:
        raise SettingsError(together([mistake.line() for mistake in mistakes], "setting"))
    return options


def after_engine(found: ResolvedSettings, registry: Registry) -> tuple[ResolvedSettings, int]:
    """Return the settings of the lookup that continues the drafts of the engine's own drafter, and how far that drafts.

    Args:
        found: settings with `Settings.extends_engine`.
        registry: where the proposers are registered.

    Raises:
        SettingsError: nothing is left to draft after so many tokens, or the lookup cannot continue others' tokens.
    """
    settings = found.settings
    options = plugin_options(settings, registry.get(ProposerSpec, HYBRID))
    if options.model_tokens >= settings.num_speculative_tokens:
        raise SettingsError.build(
            "nothing is left to draft after the engine's own drafter",
            who=f"options.{HYBRID}.model_tokens ({_origin(f'options.{HYBRID}.model_tokens', found.origins)})",
            found=f"{options.model_tokens} of {settings.num_speculative_tokens} draft tokens",
            expected="fewer than num_speculative_tokens, which counts both",
            remedy="Raise num_speculative_tokens, for example to 15, or lower model_tokens",
        )
    if not registry.get(ProposerSpec, options.lookup).caps_for("cpu").extends:
        extending = [entry.spec.name for entry in registry.entries(ProposerSpec).values() if _extends(entry.spec)]
        raise SettingsError.build(
            "the proposer does not continue the drafts of the engine's own drafter",
            who=f"options.{HYBRID}.lookup",
            found=options.lookup,
            expected=" or ".join(sorted(extending)),
        )
    return replace(found, settings=settings.model_copy(update={"proposer": options.lookup})), options.model_tokens


def _extends(spec: PluginSpec) -> bool:
    return isinstance(spec, ProposerSpec) and spec.caps_for("cpu").extends


def acceptance_thresholds(settings: Settings, registry: Registry) -> Mapping[str, float] | None:
    """Return the thresholds that requests may name; None if the server's verifier takes none."""
    takes = registry.get(VerifierSpec, settings.verifier).caps.thresholds
    return settings.acceptance_thresholds if takes else None


def _plugin_mistakes(settings: Settings, registry: Registry, engine_drafts: bool) -> Iterator[Mistake]:
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
    for key, kind, name in _named(settings):
        if own and kind is ProposerSpec:
            continue
        try:
            spec = registry.get(kind, name)
            if settings.draft_ranks == "each":
                yield from _differing(spec)
            if isinstance(spec, PolicySpec):
                policies.append(spec)
                trimming(policies)
            if name not in settings.options:  # the plug-in may have a required option
                yield from _parse_options(spec, {})[1]
        except PluginError as error:
            yield Mistake(key, f"bad value for setting {key!r}", shown(name), remedy=str(error))
    if settings.draft_ranks == "each" and settings.trace.path is not None:
        yield Mistake("draft_ranks", _EACH.format("no trace, as every rank would write it"), remedy="Remove trace.path")
    for name, raw in settings.options.items():
        yield from _option_mistakes(name, raw, registry)
    given = settings.acceptance_thresholds
    is_known = settings.verifier in registry.entries(VerifierSpec)
    if given and is_known and acceptance_thresholds(settings, registry) is None:
        what = f"setting 'acceptance_thresholds' has no effect: verifier {settings.verifier!r} takes no thresholds"
        remedy = "Remove them, or name a lossy verifier that takes them; `specplug list` shows which"
        yield Mistake("acceptance_thresholds", what, shown(given), remedy=remedy)


def _named(settings: Settings) -> Iterator[tuple[str, type[PluginSpec], str]]:
    """Yield (setting, kind, name) for every plug-in that the settings name."""
    yield "proposer", ProposerSpec, settings.proposer
    for index, name in enumerate(settings.extra_proposers):
        yield f"extra_proposers.{index}", ProposerSpec, name
    for name in settings.policies:
        yield "policy", PolicySpec, name
    yield "verifier", VerifierSpec, settings.verifier


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
            yield Mistake(key, what, shown(value), remedy="Remove it, or draft with one of specplug's proposers")


def _option_mistakes(name: str, raw: Mapping[str, Any], registry: Registry) -> Iterator[Mistake]:
    """Check the options given under one plug-in's name."""
    key = f"options.{name}"
    entries = [entry.spec for kind in KINDS.values() for entry in registry.entries(kind).values()]
    named = [spec for spec in entries if spec.name == name]
    configurable = [spec for spec in named if spec.options is not None]
    if not named:
        remedy = suggest(name, {spec.name for spec in entries})
        yield Mistake(key, f"options for an unknown plug-in {name!r}", shown(raw), remedy=remedy)
    elif not configurable and raw:
        yield Mistake(key, f"{named[0].kind} {name!r} has no options", shown(raw), remedy=f"Remove {key!r}")
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
        raise PluginError.build("options are not a model", who=who, found=shown(model), expected=expected)
    prefix = f"options.{spec.name}."
    mistakes: list[Mistake] = []
    if model.model_config.get("extra", "ignore") == "ignore":  # pydantic's default would drop unknown keys silently
        known = {alias for name, field in model.model_fields.items() for alias in (name, field.alias) if alias}
        named = {prefix + name for name in known}
        mistakes = [unknown(prefix + key, raw[key], named, "setting") for key in raw if key not in known]
    try:
        return model.model_validate(dict(raw)), mistakes
    except ValidationError as error:
        return None, mistakes + from_pydantic(error, model, "setting", prefix)
    except Exception as error:  # a validator of the plug-in's own
        raise PluginError.build("its options cannot be validated", who=who, found=describe(error)) from error
