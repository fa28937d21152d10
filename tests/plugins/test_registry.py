"""The registry: how plug-ins are found, and that a broken one does not affect the others."""

from __future__ import annotations

import itertools
import types
from pathlib import Path

import pytest

from specplug import hookimpl
from specplug.errors import PluginError
from specplug.plugins.registry import Owner, PluginEntry, Registry, default_registry
from specplug.plugins.specs import CheckSpec, PolicySpec, ProposerSpec, VerifierSpec
from specplug.types.caps import ProposerCaps
from tests.plugins.planted import plugin

KINDS = (ProposerSpec, PolicySpec, VerifierSpec, CheckSpec)
_numbers = itertools.count()


def proposer(name: str) -> ProposerSpec:
    return ProposerSpec(name=name, factory="nowhere:Nothing", summary="", caps=ProposerCaps())


def owner(package: str = "acme") -> Owner:
    return Owner("main", package, "1.2")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install distributions as pip would, into a folder on the import path: (name, {entry point: source})."""

    def install(distribution: str, **sources: str) -> None:
        entry_points = ["[specplug]"]
        for entry_point, source in sources.items():
            module = f"specplug_test_plugin_{next(_numbers)}"
            (tmp_path / f"{module}.py").write_text(source)
            entry_points.append(f"{entry_point} = {module}")
        info = tmp_path / f"{distribution}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text("\n".join(entry_points))

    monkeypatch.syspath_prepend(str(tmp_path))
    return install


SOURCE = """
import specplug

@specplug.hookimpl
def specplug_register_proposers(register):
    register(specplug.ProposerSpec(
        name={name!r}, factory="nowhere:Nothing", summary="a test", caps=specplug.ProposerCaps()))
"""


def test_built_ins_come_through_entry_points_like_everybody_else():
    entries = default_registry().entries(VerifierSpec)
    assert entries["reference"].owner.package == "specplug"
    assert entries["reference"].owner.plugin == "core"
    assert default_registry() is default_registry()
    assert Registry().entries(VerifierSpec) == {}  # nothing is registered but by discovery


def test_an_installed_third_party_is_found(install):
    install("acme-draft", echo=SOURCE.format(name="echo"))
    entry = Registry.discover().entries(ProposerSpec)["echo"]
    assert str(entry.owner) == "acme-draft 1.2 (entry point 'echo')"


def test_discovery_goes_by_package_and_then_by_entry_point(install):
    install("zeta", a=SOURCE.format(name="same"))
    install("acme", b=SOURCE.format(name="same"), a="raise ValueError('a')", c="raise ValueError('c')")
    registry = Registry.discover()
    assert str(registry.entries(ProposerSpec)["same"].owner) == "acme 1.2 (entry point 'b')"
    errors = [error.owner.plugin for error in registry.load_errors if error.owner.package == "acme"]
    assert errors == ["a", "c"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_plugin_that_does_not_import_is_recorded_and_left_out(install, source: str, message: str):
    install("acme", bad=source, good=SOURCE.format(name="echo"))
    registry = Registry.discover()
    (error,) = [error for error in registry.load_errors if error.owner.package == "acme"]
    assert error.owner == Owner("bad", "acme", "1.2")
    assert error.stage.startswith("import of 'specplug_test_plugin_")
    assert error.error == message
    assert "echo" in registry.entries(ProposerSpec)
    assert "reference" in registry.entries(VerifierSpec)


def test_a_raising_hook_keeps_what_was_registered_and_the_other_hooks():
    good = PolicySpec(name="fine", factory="nowhere:Nothing", summary="")
    module = plugin(proposers=[proposer("first"), RuntimeError("boom"), proposer("second")], policies=[good])
    registry = Registry()
    registry.add(module, owner())
    assert [(error.stage, error.error) for error in registry.load_errors] == [
        ("specplug_register_proposers", "RuntimeError: boom")
    ]
    assert list(registry.entries(ProposerSpec)) == ["first"]
    assert registry.get(PolicySpec, "fine") is good


def _unknown_argument() -> types.ModuleType:
    module = types.ModuleType("plugin")

    @hookimpl
    def specplug_register_proposers(register, engine):
        raise AssertionError("a hook of the wrong signature was called")

    module.specplug_register_proposers = specplug_register_proposers
    return module


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (_unknown_argument(), "engine"),
        (plugin(proposer=[proposer("echo")]), "specplug_register_proposer"),
    ],
    ids=["unknown argument", "unknown hook"],
)
def test_a_hook_that_fits_no_specification_is_recorded_and_hurts_nobody_else(module, found: str):
    registry = Registry()
    registry.add(module, owner("bad"))
    registry.add(plugin(proposers=[proposer("echo")]), owner("good"))
    (error,) = registry.load_errors
    assert (error.owner.package, error.stage) == ("bad", "hook signatures")
    assert found in error.error
    assert list(registry.entries(ProposerSpec)) == ["echo"]


def test_one_name_with_two_owners_is_an_error_that_names_both():
    registry = Registry()
    for package in ("acme", "zeta"):
        registry.add(plugin(proposers=[proposer("echo")]), owner(package))
    with pytest.raises(PluginError) as caught:
        registry.get(ProposerSpec, "echo")
    message = str(caught.value)
    assert "proposer 'echo' is registered twice" in message
    assert "acme 1.2 (entry point 'main') and zeta 1.2 (entry point 'main')" in message
    (error,) = registry.load_errors
    assert (error.owner.package, error.stage, error.error) == ("zeta", "proposer 'echo'", message)


def test_one_name_may_serve_plugins_of_different_kinds():
    registry = Registry()
    policy = PolicySpec(name="echo", factory="nowhere:Nothing", summary="")
    registry.add(plugin(proposers=[proposer("echo")]), owner("acme"))
    registry.add(plugin(policies=[policy]), owner("zeta"))
    assert registry.load_errors == ()
    assert registry.get(PolicySpec, "echo") is policy


def test_an_unknown_name_gets_the_nearest_the_list_and_what_failed_to_load():
    registry = Registry()
    registry.add(plugin(proposers=[proposer("ngram"), proposer("other")]), owner())
    with pytest.raises(PluginError) as caught:
        registry.get(ProposerSpec, "ngarm")
    assert str(caught.value) == (
        "unknown proposer 'ngarm'. Did you mean 'ngram'? Known: ngram, other. See 'specplug list'"
    )
    registry.add(plugin(proposers=[ValueError("boom")]), owner("zeta"))
    with pytest.raises(PluginError, match=r"failed to load: zeta 1\.2 \(entry point 'main'\): ValueError: boom\."):
        registry.get(ProposerSpec, "ngarm")


def test_a_module_whose_hooks_are_not_marked_is_recorded():
    module = types.ModuleType("plugin")
    module.specplug_register_proposers = lambda register: register(proposer("echo"))
    registry = Registry()
    registry.add(module, owner())
    (error,) = registry.load_errors
    assert (
        "found no function marked with specplug.hookimpl; expected one of specplug_register_proposers," in error.error
    )
    with pytest.raises(PluginError, match=r"unknown proposer 'echo'.*the module registers nothing"):
        registry.get(ProposerSpec, "echo")


@pytest.mark.parametrize(("name", "meant"), [("ngram-tree", "ngram"), ("retrieval-tree", "retrieval")])
def test_a_name_that_continues_another_means_that_one(name, meant):
    with pytest.raises(PluginError, match=f"unknown proposer '{name}'. Did you mean '{meant}'?"):
        default_registry().get(ProposerSpec, name)


def test_nothing_registered_is_stated_so():
    with pytest.raises(PluginError, match=r"unknown policy 'fixed'\. Known: none\."):
        Registry().get(PolicySpec, "fixed")


def test_entries_are_sorted_and_read_only():
    registry = Registry()
    registry.add(plugin(proposers=[proposer("b"), proposer("a")]), owner())
    entries = registry.entries(ProposerSpec)
    assert list(entries) == ["a", "b"]
    with pytest.raises(TypeError):
        entries["c"] = PluginEntry(proposer("c"), owner())  # type: ignore[index]
    with pytest.raises(AttributeError):
        entries["a"].owner = owner("zeta")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("factory", "fragments"),
    [
        ("nowhere", ["malformed factory", "'nowhere'", "'package.module:Name'"]),
        ("no_such_module:Name", ["cannot load", "ModuleNotFoundError", "callable 'Name' in module 'no_such_module'"]),
        ("json:no_such_name", ["cannot load", "AttributeError"]),
        ("json:__name__", ["not callable", "found str"]),
    ],
)
def test_a_factory_that_leads_nowhere_says_whose_it_is(factory: str, fragments: list[str]):
    spec = ProposerSpec(name="echo", factory=factory, summary="", caps=ProposerCaps())
    with pytest.raises(PluginError) as caught:
        spec.build()
    assert [part for part in ["proposer 'echo'", *fragments] if part not in str(caught.value)] == []


def _raises(device: str) -> ProposerCaps:
    raise OSError(f"no kernel for {device}")


@pytest.mark.parametrize(
    ("caps", "fragments"),
    [
        ("no_such_module:caps", ["cannot load", "ModuleNotFoundError"]),
        (_raises, ["capabilities on 'cuda' are not known", "OSError: no kernel for cuda", "expected a specplug.Prop"]),
        (lambda device: "host", ["capabilities on 'cuda' are not known", "found 'host'"]),
    ],
)
def test_capabilities_that_are_not_known_say_whose_they_are(caps, fragments: list[str]):
    spec = ProposerSpec(name="echo", factory="nowhere:Nothing", summary="", caps=caps)
    with pytest.raises(PluginError) as caught:
        spec.caps_for("cuda")
    assert [part for part in ["proposer 'echo'", *fragments] if part not in str(caught.value)] == []


def test_capabilities_are_requested_for_by_device_from_a_path_or_a_callable():
    by_path = ProposerSpec(name="echo", factory="x:Y", summary="", caps="specplug.types.caps:ProposerCaps")
    plain = ProposerSpec(name="echo", factory="x:Y", summary="", caps=ProposerCaps(trees=True))
    requested = ProposerSpec(name="echo", factory="x:Y", summary="", caps=lambda d: ProposerCaps(needs_host=d == "cpu"))
    assert plain.caps_for("cpu") is plain.caps_for("cuda")
    assert [requested.caps_for(device).needs_host for device in ("cpu", "cuda", "meta")] == [True, False, False]
    assert by_path.caps_for(True) == ProposerCaps(needs_host=True)


def test_a_factory_is_built_from_its_path_or_itself():
    by_path = ProposerSpec(name="echo", factory="collections:Counter", summary="", caps=ProposerCaps())
    assert by_path.build("aab") == {"a": 2, "b": 1}
    assert PolicySpec(name="echo", factory=len, summary="", trimmer=sorted).build_trimmer("ba") == ["a", "b"]


@pytest.mark.parametrize(
    ("hook", "spec", "error"),
    [
        ("proposers", proposer("engine"), "reserved name; found 'engine'"),
        ("policies", PolicySpec(name="one+two", factory="a:b", summary=""), "reserved character; found 'one+two'"),
        ("policies", proposer("echo"), "wrong kind of plug-in; found ProposerSpec; expected PolicySpec"),
    ],
)
def test_what_may_not_be_registered_is_recorded_with_what_was_expected(hook: str, spec, error: str):
    registry = Registry()
    registry.add(plugin(**{hook: [spec]}), owner())
    assert f"PluginError: specplug_register_{hook}: {error}" in registry.load_errors[0].error
    assert all(registry.entries(kind) == {} for kind in KINDS)


def test_the_engines_own_drafter_is_no_plugin():
    with pytest.raises(PluginError, match="own drafter is not used here"):
        default_registry().get(ProposerSpec, "engine")
