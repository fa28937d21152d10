"""Commands, hooks, settings and request fields are documented, and the documented ones exist."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from specplug.input_errors import leaves
from specplug.plugins import specs
from specplug.plugins.registry import KINDS
from specplug.plugins.specs import CheckResult, PluginSpec
from specplug.requests.parsing import parse_request_fields
from specplug.requests.schema import RequestFields
from specplug.settings import Limits, Settings, load_settings
from specplug.tools.cli.app import app
from specplug.tools.cli.new import TEMPLATES
from tests.plugins.planted import registry_of

DOCS = Path(__file__).parents[1] / "docs"
PLUGINS = "writing-plugins.md"
CLI = (DOCS / "cli.md").read_text(encoding="utf-8")


def commands(group, before: str = "") -> dict:
    """Return all commands by what is typed, those of groups included."""
    found = {}
    for name, command in group.commands.items():
        inner = hasattr(command, "commands")
        found |= commands(command, f"{before}{name} ") if inner else {f"{before}{name}": command}
    return found


COMMANDS = commands(typer.main.get_command(app))
HOOKS = {name: hook for name, hook in vars(specs).items() if name.startswith("specplug_register_")}
SIGNATURES = {name: f"def {name}{inspect.signature(hook)}".replace("'", "") for name, hook in HOOKS.items()}
SPECS = {spec.__name__: spec for spec in KINDS.values()}
SPEC_OF_HOOK = {name: SPECS[re.search(r"\w+Spec", signature)[0]] for name, signature in SIGNATURES.items()}  # type: ignore[index]


def sections(document: str) -> dict[str, str]:
    """Return the text below each `## heading` of a document."""
    parts = re.split(r"^## (.+)$", (DOCS / document).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table(text: str, header: str) -> dict[str, list[str]]:
    """Return the rows of the table whose first column is called `header`, by what stands there in backticks."""
    body = text.split(f"| {header} |", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]
    return {name: row[1:] for row in rows for name in re.findall(r"`([^`]+)`", row[0])}


def section_of_hook(name: str) -> str:
    """Return the section on the kind of plug-in that a hook registers, such as "Proposers"."""
    return sections(PLUGINS)[name.removeprefix("specplug_register_").capitalize()]


def code_blocks(document: str, language: str) -> list[str]:
    text = (DOCS / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def options_of(command) -> set[str]:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    return {name for parameter in shown for name in (*parameter.opts, *parameter.secondary_opts) if name[0] == "-"}


def test_every_command_has_a_section_and_every_section_a_command():
    found = re.findall(r"^##+ `specplug (.+)`$", CLI, re.MULTILINE)
    assert set(found) - {"corpus"} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_what_the_help_of_a_command_says(name: str):
    """`make cli-docs` writes the page."""
    section = CLI.split(f"# `specplug {name}`\n", 1)[1].split("\n##", 1)[0]
    assert inspect.cleandoc(COMMANDS[name].help).replace("\n\n\n", "\n\n") in section
    shown = re.findall(r"^\* `(.+?)`: (.+?)(?:  \[|$)", section, re.MULTILINE)
    options = {word for names, _ in shown for word in re.findall(r"(?<!\w)--?[a-z][a-z-]*", names)}
    assert options - {"--help"} == options_of(COMMANDS[name])
    helps = {parameter.help for parameter in COMMANDS[name].params if not getattr(parameter, "hidden", False)}
    assert helps <= {help for _, help in shown}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_help_for_every_option(name: str):
    assert "Example" in (COMMANDS[name].help or "")
    lacking = [parameter.name for parameter in COMMANDS[name].params if not parameter.help]
    assert lacking == []


def test_every_hook_has_a_section_and_every_section_a_hook():
    text = (DOCS / PLUGINS).read_text(encoding="utf-8")
    assert set(re.findall(r"^def (specplug_register_\w+)\(register: ", text, re.MULTILINE)) == set(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hooks_section_shows_its_signature_and_the_fields_of_its_description(name: str):
    section = section_of_hook(name)
    spec = SPEC_OF_HOOK[name]
    assert SIGNATURES[name] == re.search(r"```python\n(def .*)\n```", section)[1]  # type: ignore[index]
    common = {field.name for field in dataclasses.fields(PluginSpec)}
    own = {field.name for field in dataclasses.fields(spec)} - common
    assert set(table(sections(PLUGINS)["Fields of every description"], "Field")) == common
    heading = f"Field of `{spec.__name__}`"
    assert (set(table(section, heading)) if heading in section else set()) == own


@pytest.mark.parametrize("name", HOOKS)
def test_a_hooks_example_registers_something(name: str):
    """The example of a verifier is the template of `specplug new`."""
    made = [file.read_text(encoding="utf-8") for file in TEMPLATES.glob("*/specplug_example.py")]
    shown = [*code_blocks(PLUGINS, "python"), *made]
    examples = [block for block in shown if f"@specplug.hookimpl\ndef {name}(" in block]
    assert examples
    for example in examples:
        module = ModuleType("example")
        exec(example, module.__dict__)
        assert len(registry_of(module).entries(SPEC_OF_HOOK[name])) == 1


def test_the_example_check_gives_a_result():
    (example,) = [block for block in code_blocks(PLUGINS, "python") if "CheckResult(" in block]
    names: dict = {}
    exec(example, names)
    assert names["disk"](Settings()).status in ("ok", "warn")
    assert set(table(section_of_hook("specplug_register_checks"), "Field of `CheckResult`")) == {
        field.name for field in dataclasses.fields(CheckResult)
    }


def test_every_setting_is_documented_with_its_default_and_no_other():
    rows = table(sections("settings.md")["Server settings"], "Setting")
    documented = {key: json.loads(row[1].strip("`")) for key, row in rows.items()}
    defaults = {leaf.key: leaf.default for leaf in leaves(Settings)}
    assert documented == {key: list(value) if value == () else value for key, value in defaults.items()}


def test_every_request_field_is_documented_with_its_default_and_no_other():
    rows = table(sections("settings.md")["Request fields"], "Field")
    documented = {key: json.loads(row[1].strip("`")) for key, row in rows.items()}
    defaults = RequestFields().model_dump()
    assert documented == {key: list(value) if value == () else value for key, value in defaults.items()}


def test_example_settings_are_valid():
    (toml,) = code_blocks("settings.md", "toml")
    assert load_settings(tomllib.loads(toml), env={}).settings.options == {"ngram": {"min_n": 3}}
    (shell,) = code_blocks("settings.md", "sh")
    inline = re.search(r"SPECPLUG_CONFIG='(.*)'", shell)[1]  # type: ignore[index]
    assert load_settings(env={"SPECPLUG_CONFIG": inline}).settings.num_speculative_tokens == 6


@pytest.mark.parametrize("page", ["settings.md", "corpus.md", "plan.md"])
def test_example_in_python_prints_what_it_says(page: str, monkeypatch, capsys):
    monkeypatch.delenv("SPECPLUG_CONFIG", raising=False)
    (example,) = code_blocks(page, "python")
    exec(example, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"# (.*)$", example, flags=re.MULTILINE)


def test_example_requests_are_valid_and_the_three_forms_say_the_same():
    references, names, fields = code_blocks("settings.md", "json")

    def parse(text: str):
        return parse_request_fields(
            json.loads(text), tokenize=lambda s: list(s.encode()), vocab_size=256, limits=Limits()
        )

    for forms in (references, names):
        first, *others = [parse(line) for line in forms.splitlines()]
        assert len(others) == 2
        assert all(other == first for other in others)
        assert first != parse("{}")
    options, _, _ = parse(fields)
    assert (options.num_speculative_tokens, options.corpora) == (16, ("handbook", "letters"))


PAGES = sorted(page.name for page in DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_settings_in_commands_are_valid(page: str):
    """This checks settings that a shell quotes: in `SPECPLUG_CONFIG`, and in the engine's own flag."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for inline in re.findall(r"SPECPLUG_CONFIG='([^']*)'", text):
        load_settings(env={"SPECPLUG_CONFIG": inline})
    for flag in re.findall(r"--additional-config '(\{[^']*\})'", text):
        load_settings(json.loads(flag)["specplug"], env={})
    for flag in re.findall(r"--speculative-config '(\{[^']*\})'", text):
        named = {} if "..." in flag else json.loads(flag)
        assert named.get("method") != "custom_class" or named["model"] == "specplug_vllm.Proposer"


@pytest.mark.parametrize("page", ["operations.md"])
def test_answers_are_json(page: str):
    for block in code_blocks(page, "json"):
        json.loads(block)


@pytest.mark.parametrize("page", ["serving.md", "requests.md", "operations.md"])
def test_snippets_are_python(page: str):
    for block in code_blocks(page, "python"):
        compile(block, page, "exec")


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_anchors_are_headings(page: Path):
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    missing = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in headings((page.parent / target) if target else page)
    ]
    assert missing == []
