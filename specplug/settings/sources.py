"""Sources of settings: layers merged in order of precedence, with the origin of every value, checked with plug-ins."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from specplug.errors import SettingsError, quote
from specplug.input_errors import Mistake, flatten, from_pydantic, join_mistakes, json_object
from specplug.plugins.registry import Registry
from specplug.plugins.specs import HYBRID, ProposerSpec
from specplug.settings.checks import plugin_mistakes, plugin_options
from specplug.settings.model import Settings, expanded_path

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
    if not isinstance(flags, Mapping | None):
        expected = "a mapping of settings"
        raise SettingsError.build("malformed settings", who=flags_origin, found=quote(flags), expected=expected)
    merged: dict[str, Any] = {}
    layer_of: dict[str, str] = {}
    for origin, layer in (_from_environment(env), (flags_origin, flags or {})):
        _check_depth(layer, origin)
        merged = _merge(merged, layer)
        layer_of.update((key, origin) for key, _ in flatten(layer))
    layer_of.update((key, origin) for key, origin in origins_of.items() if key in layer_of)
    settings, mistakes = _validate(merged, registry, engine_drafts)
    if mistakes:
        lines = [mistake.line(_origin(mistake.key, layer_of)) for mistake in mistakes]
        raise SettingsError(join_mistakes(lines, "setting"))
    origins = {key: layer_of.get(key, DEFAULT_ORIGIN) for key, _ in flatten(settings.model_dump())}
    return ResolvedSettings(settings, MappingProxyType(origins))


def _validate(
    merged: Mapping[str, Any], registry: Registry | None, engine_drafts: bool
) -> tuple[Settings, list[Mistake]]:
    """Validate the merged layers; the returned settings are the given ones only if there are no mistakes."""
    mistakes: list[Mistake] = []
    wrong: set[object] = set()
    settings = Settings()
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        mistakes = from_pydantic(error, Settings, "setting")
        wrong = {item["loc"][0] for item in error.errors()}
        # Keep the valid values, so that the names of plug-ins are checked in the same pass.
        with suppress(ValidationError):  # without the wrong ones they may not fit together
            settings = Settings.model_validate({key: value for key, value in merged.items() if key not in wrong})
    if registry is not None:
        found = plugin_mistakes(settings, registry, engine_drafts)
        mistakes += [mistake for mistake in found if mistake.key.split(".")[0] not in wrong]
    return settings, mistakes


def _from_environment(env: Mapping[str, str]) -> tuple[str, Mapping[str, Any]]:
    """Read `SPECPLUG_CONFIG`, which holds a path or the settings themselves; return (origin, settings)."""
    origin = CONFIG_VARIABLE
    text = env.get(CONFIG_VARIABLE, "").strip()
    # A comment may end like a path: `seed = 1  # as in a.toml`.
    is_text = "\n" in text or ({"=", "#"} <= set(text) and not os.path.exists(os.path.expanduser(text)))
    suffix = "" if is_text else Path(text).suffix.lower()
    if suffix in (".json", ".toml"):
        origin = f"{CONFIG_VARIABLE} ({text})"
        text = _read(text, origin)
    elif text.startswith("{"):
        suffix = ".json"
    elif text and "=" not in text:
        expected = "the path of a .json or .toml file, or JSON or TOML text"
        raise SettingsError.build("malformed settings", who=origin, found=quote(text), expected=expected)
    if suffix == ".json":
        return origin, json_object(text, SettingsError, "malformed settings", who=origin)
    try:
        return origin, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError.build("malformed settings", who=origin, found=str(error), expected="TOML") from error


def _read(path: str, origin: str) -> str:
    try:
        return Path(expanded_path(path)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError.build(
            "cannot read the settings file",
            who=origin,
            found=error.strerror if isinstance(error, OSError) else str(error),
            expected="a readable file in UTF-8",
            remedy=f"Correct or unset {CONFIG_VARIABLE}",
        ) from error


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


def _origin(key: str, layer_of: Mapping[str, str]) -> str:
    """Return the layers that set a key or anything below it, or else the layer that set a section above it."""
    below = dict.fromkeys(origin for leaf, origin in layer_of.items() if leaf == key or leaf.startswith(f"{key}."))
    above = (
        layer_of[key[:end]] for end in range(len(key), 0, -1) if key[:end] in layer_of and key[end:].startswith(".")
    )
    return " and ".join(below) or next(above, DEFAULT_ORIGIN)


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
        names = registry.entries(ProposerSpec)
        raise SettingsError.build(
            "the proposer does not continue the drafts of the engine's own drafter",
            who=f"options.{HYBRID}.lookup",
            found=options.lookup,
            expected=" or ".join(name for name in names if registry.get(ProposerSpec, name).caps_for("cpu").extends),
        )
    return replace(found, settings=settings.model_copy(update={"proposer": options.lookup})), options.model_tokens
