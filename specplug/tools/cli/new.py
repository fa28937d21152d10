"""`specplug new` command: writes a package of one plug-in, with its tests and a workflow for continuous integration."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from specplug.errors import PluginError, SettingsError, suggest
from specplug.plugins.registry import KINDS, default_registry
from specplug.plugins.specs import ENGINE_DRAFTER
from specplug.tools.cli.output import AsJson, show

TEMPLATES = Path(__file__).parent / "templates"
"""Packages that work as they are, whose plug-in is called `example`: what all kinds share in `common`."""

MADE = tuple(kind for kind in KINDS if (TEMPLATES / kind).is_dir())


def new(
    kind: Annotated[str, typer.Argument(metavar="|".join(MADE), help="What to make.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as parrot or my-parrot.")],
    path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder to make; by default specplug-NAME in this one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a package with a plug-in of your own, which works as it is and which you then change.

    It has the plug-in in one module, specplug's conformance kit as its tests, a README with the commands that try it,
    and a workflow for continuous integration.

    Example: `specplug new proposer parrot`
    """
    _check_name(kind, name)
    folder = path or Path(_filled("specplug-example", name))
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        found = f"{folder}, which is not an empty folder"
        remedy = "Name another with --path"
        raise SettingsError.build("the folder exists", who="specplug new", found=found, remedy=remedy)
    files = _files(kind, name)
    try:
        for made, text in files.items():
            (folder / made).parent.mkdir(parents=True, exist_ok=True)
            (folder / made).write_text(text, "utf-8")
    except OSError as error:
        raise SettingsError.build("cannot write the package", who="specplug new", found=error) from error
    commands = [f"cd {quote(str(folder))}", *files["README.md"].split("```sh\n")[1].split("\n```")[0].splitlines()]
    lines = [f"Made {folder}:", *(f"  {made}" for made in files), "Try it:", *(f"  {command}" for command in commands)]
    about = {"kind": kind, "name": name, "folder": str(folder), "files": list(files), "commands": commands}
    show(about, *lines, as_json=as_json)


def _files(kind: str, name: str) -> dict[str, str]:
    found = [(folder, file) for folder in (TEMPLATES / "common", TEMPLATES / kind) for file in folder.rglob("*")]
    texts = {
        _filled(file.relative_to(folder).as_posix(), name): _filled(file.read_text("utf-8"), name)
        for folder, file in found
        if file.is_file() and file.suffix != ".pyc"
    }
    return dict(sorted(texts.items()))


def _check_name(kind: str, name: str) -> None:
    who = f"specplug new {kind} {name}"
    if kind not in MADE:
        raise SettingsError.build(f"{kind!r} is not made", who=who, remedy=suggest(kind, MADE))
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or keyword.iskeyword(_filled("Example", name)):
        expected = "small letters and digits, in words joined by - or _, that make no keyword of Python's"
        raise SettingsError.build("not a name for a plug-in", who=who, found=repr(name), expected=expected)
    entry = default_registry().entries(KINDS[kind]).get(name)
    module = _filled("specplug_example", name)
    if entry is not None or (kind, name) == ("proposer", ENGINE_DRAFTER):
        owner = "the engine's own drafter" if entry is None else entry.owner
        found = f"{kind} {name!r} of {owner}"
        raise PluginError.build("the name is taken", who=who, found=found, remedy="Choose another")
    if importlib.util.find_spec(module) is not None:
        remedy = "Choose another name, since this package's module would hide it, or be hidden"
        raise PluginError.build("the name is taken", who=who, found=f"an installed module {module!r}", remedy=remedy)


def _filled(text: str, name: str) -> str:
    """Return a template's text with a plug-in's name in place of `example`, in the form that each place needs."""
    words = re.split("[-_]", name)
    forms = {"": name, "-": "-".join(words), "_": "_".join(words)}

    def form(match: re.Match[str]) -> str:
        before = match[1]
        return "".join(map(str.capitalize, words)) if before is None else before + forms[before]

    return re.sub(r"([-_]|\b)example\b|Example", form, text)
