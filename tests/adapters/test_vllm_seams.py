"""The table of vLLM's seams holds every name that the adapter uses.  Needs no vLLM."""

from __future__ import annotations

import ast
from typing import get_args

import pytest

from specplug_vllm import seams
from specplug_vllm.seams.table import OPTIONAL, SEAMS, Where
from tests.seams.tools import ROOT, Adapter, duplicates, used

OURS = """
_specplug _specplug_intake _specplug_original specplug specplug_access specplug_control specplug_status
"""
PYTHONS = """
aclose add_subparsers body digest f_locals origin parent parse_known_args returncode util value
"""
TORCHS = "Module load_weights"
FASTAPIS = "add_api_route add_middleware getlist headers include_router path_params query_params scope"
OTHERS = "model_dump model_json_schema"  # of pydantic
TOKENIZERS = "backend_tokenizer clean_up_tokenization_spaces"
GRAMMARS = "compute_ff_tokens find_jump_forward_string"  # of llguidance and XGrammar

ADAPTER = Adapter(
    engine="vllm",
    folder=ROOT / "adapters" / "specplug_vllm",
    seams=SEAMS,
    groups=frozenset({"vllm.general_plugins", "vllm.endpoint_plugins", "vllm.stat_logger_plugins"}),
    elsewhere=frozenset(
        [
            *OURS.split(),
            *PYTHONS.split(),
            *TORCHS.split(),
            *FASTAPIS.split(),
            *OTHERS.split(),
            *TOKENIZERS.split(),
            *GRAMMARS.split(),
        ]
    ),
)


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.32.0", (0, 32)), ("0.33.1rc2.dev4+g12ab", (0, 33)), ("1.0", (1, 0)), ("dev", None), ("x.y", None), ("", None)],
)
def test_versions_are_read(text: str, version):
    assert seams.parse(text) == version


def test_every_part_of_the_adapter_has_seams_and_optional_ones_say_what_is_off():
    parts = set(get_args(Where))
    assert {where for seam in SEAMS for where in seam.where} == parts
    assert OPTIONAL.keys() < parts
    assert all(OPTIONAL.values())


def test_no_row_says_nothing_twice():
    assert not duplicates(SEAMS)


def test_every_import_from_vllm_is_in_the_table():
    assert not ADAPTER.imports_lacking()


def test_every_name_taken_from_a_module_or_class_of_vllm_is_in_the_table():
    assert not ADAPTER.names_lacking()


def test_every_method_of_vllms_that_ours_override_and_call_is_in_the_table():
    assert not ADAPTER.supers_lacking()


def test_every_module_of_vllm_that_is_named_in_text_is_in_the_table():
    assert not ADAPTER.paths_lacking()


def test_every_attribute_that_can_only_be_vllms_is_in_the_table():
    assert not ADAPTER.attributes_lacking()


def test_the_list_of_attributes_would_notice_a_new_one():
    (name,) = {name for name, _ in used(ast.parse("runner._never_heard_of_it = 1"))}
    assert name not in ADAPTER.known | ADAPTER.listed
