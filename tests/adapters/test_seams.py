"""The tables of the engines' seams hold every name that the adapters use.  Needs neither engine."""

from __future__ import annotations

import ast
from types import ModuleType
from typing import get_args

import pytest

import specplug_sglang.seams
import specplug_vllm.seams
from tests.seams.tools import ROOT, Adapter, duplicates, used

OURS = """
_specplug _specplug_intake _specplug_original specplug specplug_access specplug_control specplug_status
"""
PYTHONS = """
aclose add_subparsers addFilter getMessage loop origin parent release returncode run_until_complete span util value
"""
TORCHS = "Module current_stream empty_cache load_weights mem_get_info query"
FASTAPIS = "add_middleware body_iterator detail headers json path raw refresh routes scope state"
OTHERS = "model_dump"  # of pydantic
TOKENIZERS = "additional_stop_token_ids backend_tokenizer clean_up_tokenization_spaces eos_token_id"
GRAMMARS = "compute_ff_tokens find_jump_forward_string"  # of llguidance and XGrammar
TRITONS = "arange constexpr full interpret jit knobs load next_power_of_2 program_id runtime store where"
SETTINGS = "graph"  # a group of SGLang's settings, which holds `CudaGraphConfig`; groups are made at run time
CONFIGS = "architectures"  # of transformers
ELSEWHERE = [OURS, PYTHONS, TORCHS, FASTAPIS, OTHERS, TOKENIZERS, GRAMMARS, TRITONS, SETTINGS, CONFIGS]

TABLES: dict[str, ModuleType] = {"vllm": specplug_vllm.seams, "sglang": specplug_sglang.seams}
GROUPS = {"vllm": ("vllm.general_plugins", "vllm.endpoint_plugins"), "sglang": ("sglang.srt.plugins",)}
ADAPTERS = {
    engine: Adapter(
        engine=engine,
        folder=ROOT / "adapters" / f"specplug_{engine}",
        seams=module.SEAMS,
        groups=frozenset(GROUPS[engine]),
        elsewhere=frozenset(" ".join(ELSEWHERE).split()),
    )
    for engine, module in TABLES.items()
}


@pytest.mark.parametrize("kind", ["imports", "names", "supers", "paths", "attributes"])
@pytest.mark.parametrize("engine", TABLES)
def test_every_name_of_an_engine_that_is_used_is_in_its_table(engine, kind):
    """Imports, names taken from modules and classes, overridden methods, hooked names in text, other attributes."""
    assert not getattr(ADAPTERS[engine], f"{kind}_lacking")()


@pytest.mark.parametrize("engine", TABLES)
def test_no_row_says_nothing_twice(engine):
    assert not duplicates(TABLES[engine].SEAMS)


@pytest.mark.parametrize("engine", TABLES)
def test_the_list_of_attributes_would_notice_a_new_one(engine):
    (name,) = {name for name, _ in used(ast.parse("runner._never_heard_of_it = 1"))}
    assert name not in ADAPTERS[engine].known | ADAPTERS[engine].listed


@pytest.mark.parametrize("engine", TABLES)
def test_every_part_of_the_adapter_has_its_seams_looked_at_and_optional_ones_say_what_is_off(engine):
    module, parts = TABLES[engine], set(get_args(TABLES[engine].Where))
    assert {where for seam in module.SEAMS for where in seam.where} == parts
    assert looked_at(ADAPTERS[engine]) == parts
    assert module.OPTIONAL.keys() < parts
    assert all(module.OPTIONAL.values())


def looked_at(adapter: Adapter) -> set[str]:
    """Return the parts of the adapter that its code has looked at, by name or in a loop over names."""
    found = set()
    for tree in adapter.trees.values():
        for node in ast.walk(tree):
            match node:
                case ast.For(iter=ast.Tuple(elts=elements)) if "seams.require" in ast.unparse(node):
                    found |= {str(element.value) for element in elements if isinstance(element, ast.Constant)}
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="seams"), attr="require" | "moved" | "available"),
                    args=[ast.Constant(value=name)],
                ):
                    found.add(name)
    return found
