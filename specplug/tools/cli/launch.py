"""What commands share: settings from flags, the form of prompts, and the start of the embedded engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specplug.errors import RequestError, SettingsError
from specplug.plugins.embedded import TextEngine, embedded_engine
from specplug.plugins.registry import default_registry
from specplug.settings import Settings, load_settings
from specplug.tools.demo import MODEL_NAMES, model_path

TEMPLATE = "prompts are in the model's chat template; --raw sends them as they are"
AS_GIVEN = "prompts are sent as they are, since the model has no chat template that marks roles"
RAW = "prompts are sent as they are (--raw)"


def find_model(name: str) -> str:
    """Return the folder of the shipped model called `name`, or `name` itself if it is a path or a model id."""
    return str(model_path(name)) if name in MODEL_NAMES and not Path(name).exists() else name


def flags(**given: Any) -> dict[str, Any]:
    """Return the settings that were given on the command line."""
    return {key: value for key, value in given.items() if value is not None}


def nested_options(given: Iterable[str]) -> dict[str, Any]:
    """Return `plugin.key=value` as nested settings; values are JSON, or else text."""
    nested: dict[str, Any] = {}
    for text in given:
        path, separator, value = text.partition("=")
        *sections, key = path.split(".")
        if not (separator and sections and all(sections) and key):
            expected = "PLUGIN.KEY=VALUE, such as ngram.min_n=3"
            raise SettingsError.build("malformed option", who="--option", found=repr(text), expected=expected)
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        try:
            place[key] = json.loads(value)
        except ValueError:
            place[key] = value
    return nested


def settings_of(overrides: dict[str, Any]) -> Settings:
    """Return a server's settings, with those given on the command line. A wrong one raises `SettingsError`."""
    return load_settings(overrides, flags_origin="command line", registry=default_registry()).settings


def read_text(path: Path, who: str) -> str:
    """Return the text of a file that an option names. One that cannot be read raises `RequestError`."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or str(error)
        expected = "a readable text in UTF-8"
        raise RequestError.build("cannot read a file", who=who, found=found, expected=expected) from error


def start_engine(model: str, overrides: dict[str, Any], *, threads: int | None = None, **launch: Any) -> TextEngine:
    """Resolve the settings and start the embedded engine.

    A wrong setting or plug-in's name, or a wrong model, raises `SpecplugError`.
    """
    settings = settings_of(overrides)
    found = find_model(model)
    if threads is None and found != model:
        threads = 1
    return embedded_engine()(found, settings, threads=threads, **launch)


def prompt_form(model: str, *, raw: bool, system: str | None = None) -> tuple[Callable[[str], Any], str]:
    """Return what makes a prompt of a text, `raw` or by the model's chat template, and a sentence that says so.

    A tokenizer that cannot be read, and a system prompt without a template to put it in, raise `RequestError`.
    """
    from specplug.text.tokenizers import automatic, chat_ids, has_chat_template

    try:
        tokenizer = None if raw else automatic(find_model(model))
    except SettingsError as error:
        remedy = "Send prompts as they are with --raw"
        raise RequestError.build("no chat template can be read", who=model, found=error, remedy=remedy) from error
    if has_chat_template(tokenizer):
        return lambda text: chat_ids(tokenizer, text, system), TEMPLATE
    if system is not None:
        found = RAW if raw else f"none of {model!r}"
        raise RequestError.build("a system prompt needs a chat template", who="--system", found=found)
    return lambda text: text, RAW if raw else AS_GIVEN


def server_form(has_template: bool, *, raw: bool) -> str:
    """Return a sentence that says what is made of the prompts for a server."""
    return RAW if raw else TEMPLATE if has_template else AS_GIVEN


def parse_numbers(text: str, what: str, who: str) -> list[int]:
    """Return positive integers, ascending, without repeats.

    Anything else raises `SettingsError`; `what` names the numbers and `who` the option.
    """
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise SettingsError.build(f"bad {what}", who=who, found=repr(text), expected="such as 1,8,32")
    return found
