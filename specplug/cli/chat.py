"""Options and notes of the commands that put plain prompts into a model's chat template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from specplug.cli.launch import find_model
from specplug.cli.output import console
from specplug.errors import RequestError, SettingsError

Raw = Annotated[bool, typer.Option("--raw", help="Send plain prompts as they are, without the model's chat template.")]

TEMPLATE = "prompts are in the model's chat template; --raw sends them as they are"
AS_GIVEN = "prompts are sent as they are, since the model has no chat template that marks roles"
RAW = "prompts are sent as they are (--raw)"


def prompt_form(model: str, *, raw: bool, system: str | None = None) -> tuple[Callable[[str], Any], str]:
    """Return what makes a prompt of a text, and a sentence that says so.

    Args:
        model: a folder, a model id, or the name of a shipped model.
        raw: leave prompts as they are.
        system: a system prompt for the template.

    Raises:
        RequestError: the model's tokenizer cannot be read, or there is a system prompt but no template to put it in.
    """
    from specplug.text.chat import chat_ids, has_chat_template
    from specplug.text.loading import automatic

    try:
        tokenizer = None if raw else automatic(find_model(model))
    except SettingsError as error:
        remedy = "Send prompts as they are with --raw"
        raise RequestError.build("no chat template can be read", who=model, found=error, remedy=remedy) from error
    if has_chat_template(tokenizer):
        return lambda text: chat_ids(tokenizer, text, system), TEMPLATE
    if system is not None:
        raise RequestError.build(
            "a system prompt needs a chat template", who="--system", found=RAW if raw else f"none of {model!r}"
        )
    return lambda text: text, RAW if raw else AS_GIVEN


def server_form(has_template: bool, *, raw: bool) -> str:
    """Return a sentence that says what is made of the prompts for a server."""
    return RAW if raw else TEMPLATE if has_template else AS_GIVEN


def note(text: str) -> None:
    """Print a sentence to standard error."""
    console(stderr=True).print(Text(text, style="dim"))
