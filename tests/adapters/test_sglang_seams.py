"""The table of SGLang's seams holds every name that the adapter uses.  Needs no SGLang."""

from __future__ import annotations

import ast
from typing import get_args

from specplug_sglang.seams.table import OPTIONAL, SEAMS, VERSIONS, Where
from tests.seams.tools import ROOT, Adapter, duplicates, used

OURS = """
_specplug _specplug_intake _specplug_front _specplug_original specplug specplug_access
"""
PYTHONS = """
aclose acquire addFilter getMessage loop release run_until_complete span util value
"""
NUMPYS = "writeable"
TORCHS = "current_stream empty_cache is_available mem_get_info query synchronize"
FASTAPIS = "body_iterator detail headers json path raw refresh routes scope state"
OTHERS = "model_dump model_json_schema"  # of pydantic
TOKENIZERS = "additional_stop_token_ids backend_tokenizer eos_token_id"
TRITONS = "arange constexpr full interpret jit knobs load next_power_of_2 program_id runtime store where"
SETTINGS = "graph"  # a group of SGLang's settings, which holds `CudaGraphConfig`; groups are made at run time
CONFIGS = "architectures"  # of transformers

ADAPTER = Adapter(
    engine="sglang",
    folder=ROOT / "adapters" / "specplug_sglang",
    seams=SEAMS,
    groups=frozenset({"sglang.srt.plugins"}),
    elsewhere=frozenset(
        " ".join([OURS, PYTHONS, NUMPYS, TORCHS, FASTAPIS, OTHERS, TOKENIZERS, TRITONS, SETTINGS, CONFIGS]).split()
    ),
)


def test_a_post_release_is_judged_as_its_release():
    assert VERSIONS.parse("0.5.23.post1") == (0, 5, 23)


def test_parts_that_are_optional_exist_and_are_stated_to_be_off():
    assert OPTIONAL.keys() < set(get_args(Where))
    assert all(OPTIONAL.values())


def test_no_row_says_nothing_twice():
    assert not duplicates(SEAMS)


def test_every_import_from_sglang_is_in_the_table():
    assert not ADAPTER.imports_lacking()


def test_every_name_taken_from_a_module_or_class_of_sglang_is_in_the_table():
    assert not ADAPTER.names_lacking()


def test_every_method_of_sglangs_that_ours_override_and_call_is_in_the_table():
    assert not ADAPTER.supers_lacking()


def test_everything_of_sglang_that_is_named_in_text_is_in_the_table():
    """Hooks are put onto names in text."""
    assert not ADAPTER.paths_lacking()


def test_every_attribute_that_can_only_be_sglangs_is_in_the_table():
    assert not ADAPTER.attributes_lacking()


def test_the_list_of_attributes_would_notice_a_new_one():
    (name,) = {name for name, _ in used(ast.parse("worker._never_heard_of_it = 1"))}
    assert name not in ADAPTER.known | ADAPTER.listed


def requested_for() -> set[str]:
    """Return the parts of the adapter that its code has looked at."""
    return {
        str(node.args[0].value)
        for tree in ADAPTER.trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("require", "moved", "available")
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "seams"
        if isinstance(node.args[0], ast.Constant)
    }


def test_every_part_of_the_adapter_has_its_seams_looked_at():
    parts = set(get_args(Where))
    assert {where for seam in SEAMS for where in seam.where} == parts
    assert requested_for() == parts
