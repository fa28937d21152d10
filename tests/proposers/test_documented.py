"""Settings of the proposers are checked and documented, and registering the plug-ins imports nothing heavy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from specplug.lookup.layout import SOURCES
from specplug.lookup.options import LookupSettings
from specplug.settings import load_settings
from specplug_crosstok.options import CrossTokSettings
from specplug_ngram.reference import ReferenceSettings

DOCS = Path(__file__).parents[2] / "docs"
WRONG_LOOKUP = ({"min_n": -1}, {"max_m": 4})
WRONG = {
    LookupSettings: (*WRONG_LOOKUP, {"min_n": 65, "max_n": 1024}),
    ReferenceSettings: (*WRONG_LOOKUP, {"min_n": 3, "max_n": 2}),
    CrossTokSettings: ({"route": "tly"}, {"max_context": 8}, {"max_ms": 0}, {"dtype": "int8"}, {"modell": "a"}),
}


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("model", "wrong"), [(model, wrong) for model, rows in WRONG.items() for wrong in rows])
def test_options_are_checked(model: type[BaseModel], wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        model.model_validate(wrong)


def test_the_longest_match_may_be_required_and_max_n_has_no_effect() -> None:
    assert LookupSettings(min_n=64, max_n=8).min_n == 64


@pytest.mark.parametrize(
    ("name", "heading", "model"),
    [
        ("ngram", "\nOf `ngram`", LookupSettings),
        ("ngram", "\nOf `ngram-reference`", ReferenceSettings),
        ("crosstok", "\n| `options.crosstok` |", CrossTokSettings),
    ],
)
def test_every_option_is_documented_with_its_default_and_no_other(
    name: str, heading: str, model: type[BaseModel]
) -> None:
    table = page(name).split(heading)[1].split("\n|---", 1)[1].split("\n\n", 1)[0]
    found = dict(re.findall(r"^\| `(\w+)` \| ?`?([\w.\"]*)`? \|", table, re.MULTILINE))
    expected = model().model_dump()
    assert found.keys() == expected.keys()
    read = {key: it.strip('"') if isinstance(expected[key], str) else json.loads(it) for key, it in found.items()}
    assert read == expected


@pytest.mark.parametrize(("name", "model"), [("ngram", LookupSettings), ("crosstok", CrossTokSettings)])
def test_the_documented_settings_are_valid(name: str, model: type[BaseModel]) -> None:
    texts = re.findall(r"```toml\n(.*?)```", page(name), re.DOTALL)
    assert texts
    for text in texts:
        model.model_validate(load_settings(tomllib.loads(text), env={}).settings.options[name])


def test_every_proposer_and_source_of_lookup_is_documented() -> None:
    names = ["ngram", "ngram-reference", *(f"ngram/{source}" for source in SOURCES[:3])]
    assert [name for name in names if f"`{name}`" not in page("ngram")] == []


def test_registering_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'pydantic', 'numpy', 'numba'}"
    names = ("ngram", "hybrid", "crosstok", "retrieval", "fixed", "batch", "adaptive")
    plugins = ", ".join(f"specplug_{name}.plugin" for name in names)
    code = f"import sys, {plugins}; sys.exit(sorted({heavy} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
