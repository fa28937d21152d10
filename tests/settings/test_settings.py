"""Settings: layers, origins, and mistakes, which are all reported at once."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from specplug.errors import SettingsError
from specplug.mistakes import flatten, leaves
from specplug.plugins.registry import Owner, Registry, default_registry
from specplug.plugins.specs import PolicySpec, ProposerSpec, VerifierSpec, hookimpl
from specplug.settings import CorporaSettings, Limits, Settings, load_settings
from specplug.settings.checks import plugin_options
from specplug.types.caps import ProposerCaps, VerifierCaps


class StrictOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    min_n: int = 2


class LaxOptions(BaseModel):
    gamma: int = 4


class OrderedOptions(BaseModel):
    low: int = 0
    high: int = 9

    @model_validator(mode="after")
    def _check(self):
        assert self.low <= self.high, "low <= high"
        return self


class NeedyOptions(BaseModel):
    path: str


def proposer(name: str, options: object = None, **caps: bool) -> ProposerSpec:
    return ProposerSpec(name=name, factory="nowhere:Nothing", summary="", caps=ProposerCaps(**caps), options=options)


class Plugin:
    """A plug-in with a proposer, a policy and a verifier of each sort that the tests need."""

    def __init__(self) -> None:
        self.specplug_register_proposers = hook(
            proposer("ngram", StrictOptions, deterministic=True),
            proposer("plain"),
            proposer("needy", NeedyOptions),
            proposer("ordered", OrderedOptions),
            proposer("twin", StrictOptions),
            proposer("broken", "no_such_module:Options"),
            proposer("odd", dict),
        )
        self.specplug_register_policies = hook(
            PolicySpec(name="batch", factory="nowhere:Nothing", summary=""),
            PolicySpec(name="fixed", factory="nowhere:Nothing", summary="", options=LaxOptions),
            PolicySpec(name="twin", factory="nowhere:Nothing", summary="", options=LaxOptions),
            PolicySpec(name="adaptive", factory="nowhere:Nothing", summary=""),
            *(
                PolicySpec(name=name, factory="nowhere:No", summary="", trimmer="nowhere:Trims")
                for name in ("own", "his")
            ),
        )
        self.specplug_register_verifiers = hook(
            VerifierSpec(name="reference", factory="nowhere:Nothing", summary="", caps=VerifierCaps(lossless=True))
        )


def hook(*specs):
    @hookimpl
    def implementation(register):
        for spec in specs:
            register(spec)

    return implementation


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.add(Plugin(), Owner("tests", "specplug-tests", "1"))
    assert registry.load_errors == ()
    return registry


def mistakes(flags=None, env=None, registry=None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, env=env or {}, registry=registry)
    return str(caught.value)


def test_defaults_come_from_nowhere_else(registry):
    resolved = load_settings(env={}, registry=registry)
    assert resolved.settings == Settings()
    assert set(resolved.origins) == {leaf.key for leaf in leaves(Settings)}
    assert set(resolved.origins.values()) == {"default"}
    assert not resolved.was_set("verifier")


def test_later_layers_win_and_every_value_knows_its_layer(tmp_path: Path):
    path = tmp_path / "server.toml"
    path.write_text("num_speculative_tokens = 4\nseed = 7\n[faults]\ncooldown_steps = 9\nhost_deadline_ms = 50\n")
    resolved = load_settings(
        {"num_speculative_tokens": 2, "faults": {"cooldown_steps": 10}}, env={"SPECPLUG_CONFIG": str(path)}
    )
    assert (resolved.settings.num_speculative_tokens, resolved.settings.seed) == (2, 7)
    assert resolved.settings.faults.model_dump() == {
        "max_consecutive": 3,
        "cooldown_steps": 10,
        "host_deadline_ms": 50.0,
    }
    assert resolved.origins["num_speculative_tokens"] == "engine flag"
    assert resolved.origins["seed"] == f"SPECPLUG_CONFIG ({path})"
    assert resolved.origins["faults.cooldown_steps"] == "engine flag"
    assert resolved.origins["faults.host_deadline_ms"] == f"SPECPLUG_CONFIG ({path})"
    assert resolved.origins["faults.max_consecutive"] == "default"


def test_a_setting_given_as_its_default_counts_as_set():
    resolved = load_settings({"verifier": "reference"}, flags_origin="--verifier", env={})
    assert resolved.was_set("verifier")
    assert resolved.origins["verifier"] == "--verifier"


def test_one_key_of_a_layer_may_come_from_another_flag():
    flags = {"seed": 3, "num_speculative_tokens": 4}
    elsewhere = {"num_speculative_tokens": "--draft-length", "verifier": "--verifier"}
    resolved = load_settings(flags, flags_origin="--config", origins_of=elsewhere, env={})
    assert resolved.origins["seed"] == "--config"
    assert resolved.origins["num_speculative_tokens"] == "--draft-length"
    assert resolved.origins["verifier"] == "default", "no layer gives it"
    with pytest.raises(SettingsError, match=r"--draft-length: bad value for setting 'num_speculative_tokens'"):
        load_settings({"num_speculative_tokens": 300}, flags_origin="--config", origins_of=elsewhere, env={})


JSON = '{"mode": "off", "faults": {"max_consecutive": 5}}'
TOML = 'mode = "off"\nfaults.max_consecutive = 5'


@pytest.mark.parametrize(("text", "suffix"), [(JSON, ".json"), (JSON, ".JSON"), (TOML, ".toml")])
def test_config_variable_takes_the_path_of_a_file(tmp_path: Path, text: str, suffix: str):
    path = tmp_path / f"server{suffix}"
    path.write_text(text)
    resolved = load_settings(env={"SPECPLUG_CONFIG": f" {path}\n"})
    assert (resolved.settings.mode, resolved.settings.faults.max_consecutive) == ("off", 5)
    assert resolved.origins["mode"] == f"SPECPLUG_CONFIG ({path})"


@pytest.mark.parametrize("text", [JSON, TOML])
def test_config_variable_takes_the_settings_themselves(text: str):
    resolved = load_settings(env={"SPECPLUG_CONFIG": text})
    assert (resolved.settings.mode, resolved.settings.faults.max_consecutive) == ("off", 5)
    assert resolved.origins["mode"] == "SPECPLUG_CONFIG"


def test_inline_toml_whose_value_ends_like_a_path_is_no_path():
    assert load_settings(env={"SPECPLUG_CONFIG": 'trace.path = "a.json"'}).settings.trace.path == "a.json"


@pytest.mark.parametrize("value", ["", "   ", "\n"])
def test_empty_config_variable_is_no_layer(value: str):
    assert load_settings(env={"SPECPLUG_CONFIG": value}).settings == Settings()


@pytest.mark.parametrize(
    ("value", "fragments"),
    [
        ("/nowhere/server.toml", ["SPECPLUG_CONFIG (/nowhere/server.toml)", "cannot read", "No such file", "unset"]),
        ("server", ["SPECPLUG_CONFIG", "'server'", ".json or .toml"]),
        ('{"mode": "off"', ["SPECPLUG_CONFIG", "malformed", "line 1", "expected a JSON object"]),
        ("mode = off", ["SPECPLUG_CONFIG", "malformed", "line 1", "expected TOML"]),
        ('{"seed": 1, "seed": 2}', ["key 'seed' twice"]),
        ("[" * 100_000 + "=", ["malformed", "expected TOML"]),
    ],
)
def test_unreadable_config_is_one_clear_error(value: str, fragments: list[str]):
    message = mistakes(env={"SPECPLUG_CONFIG": value})
    assert [fragment for fragment in fragments if fragment not in message] == []


def test_config_file_must_hold_an_object_in_utf8(tmp_path: Path):
    (tmp_path / "list.json").write_text("[1]")
    assert "found [1]; expected a JSON object" in mistakes(env={"SPECPLUG_CONFIG": str(tmp_path / "list.json")})
    (tmp_path / "latin.toml").write_bytes(b'proposer = "\xe9"')
    assert "expected a readable file in UTF-8" in mistakes(env={"SPECPLUG_CONFIG": str(tmp_path / "latin.toml")})
    (tmp_path / "folder.toml").mkdir()
    assert "cannot read the settings file" in mistakes(env={"SPECPLUG_CONFIG": str(tmp_path / "folder.toml")})


def test_flags_must_be_a_mapping():
    with pytest.raises(
        SettingsError, match=r"--additional-config: malformed settings; found \[1\]; expected a mapping"
    ):
        load_settings([1], flags_origin="--additional-config", env={})  # type: ignore[arg-type]


def test_all_mistakes_are_reported_each_with_its_layer(registry):
    message = mistakes(
        {"num_speculative_tokens": 300, "policy": "fixd"},
        {"SPECPLUG_CONFIG": 'mode = "onn"\nfaults.cooldown_stepz = 5'},
        registry,
    )
    assert message.startswith("4 settings are wrong:\n")
    assert message.count("\n") == 4  # one line each
    for line in (
        "SPECPLUG_CONFIG: bad value for setting 'mode'; found 'onn'; expected 'on' or 'off'. Did you mean 'on'?",
        "SPECPLUG_CONFIG: unknown setting 'faults.cooldown_stepz'; found 5. Did you mean 'faults.cooldown_steps'?",
        "engine flag: bad value for setting 'num_speculative_tokens'; found 300; expected less than or equal to 256",
        "engine flag: bad value for setting 'policy'; found 'fixd'. unknown policy 'fixd'. Did you mean 'fixed'?",
    ):
        assert f"\n  {line}" in message


@pytest.mark.parametrize(
    ("flags", "key", "expected"),
    [
        ({"num_speculative_tokens": "8"}, "num_speculative_tokens", "a valid integer"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens", "a valid integer"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens", "greater than or equal to 0"),
        ({"seed": 1.5}, "seed", "a valid integer"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"mode": True}, "mode", "'on' or 'off'"),
        ({"proposer": None}, "proposer", "a valid string"),
        ({"extra_proposers": "ngram"}, "extra_proposers", "a list"),
        ({"extra_proposers": ["ngram"]}, "extra_proposers", "names that differ"),
        ({"extra_proposers": ["a", "a"]}, "extra_proposers", "names that differ"),
        ({"faults": 3}, "faults", "a mapping"),
        ({"options": {"ngram": 3}}, "options.ngram", "a mapping"),
        ({"faults": {"max_consecutive": 0}}, "faults.max_consecutive", "greater than or equal to 1"),
        ({"faults": {"host_deadline_ms": 0}}, "faults.host_deadline_ms", "greater than 0"),
        ({"faults": {"host_deadline_ms": float("inf")}}, "faults.host_deadline_ms", "a finite number"),
        ({"limits": {"max_reference_tokens": 0}}, "limits.max_reference_tokens", "greater than or equal to 1"),
        ({"limits": {"max_references": -1}}, "limits.max_references", "greater than or equal to 0"),
        ({"limits": {"max_documents": -1}}, "limits.max_documents", "greater than or equal to 0"),
        ({"limits": {"max_corpora": "1"}}, "limits.max_corpora", "a valid integer"),
        ({"corpora": {"store": ""}}, "corpora.store", "at least 1 character"),
        ({"corpora": {"poll_seconds": 0}}, "corpora.poll_seconds", "greater than 0"),
        ({"corpora": {"max_tokens": 0}}, "corpora.max_tokens", "greater than or equal to 1"),
        ({"trace": {"path": ""}}, "trace.path", "at least 1 character"),
        ({3: 4}, "3", "a string as key"),
    ],
)
def test_bad_values_name_key_value_expectation_and_layer(flags, key: str, expected: str):
    message = mistakes(flags)
    assert message.startswith(f"engine flag: bad value for setting {key!r}; found ")
    assert expected in message.split("; expected ")[1]


def test_a_misplaced_key_is_led_to_its_place():
    assert "Did you mean 'faults.cooldown_steps'?" in mistakes({"cooldown_steps": 5})


def test_long_values_are_shortened():
    assert len(mistakes({"seed": "x" * 10_000})) < 200


def test_settings_are_frozen_and_travel_between_processes():
    settings = load_settings({"options": {"ngram": {"min_n": 3}}}, env={}).settings
    with pytest.raises(ValidationError, match="frozen"):
        settings.seed = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        settings.limits.max_references = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_loading_changes_no_layer_and_shares_nothing_with_it():
    flags = {"options": {"ngram": {"min_n": 3}}}
    config = '{"options": {"ngram": {"max_n": 9}}}'
    settings = load_settings(flags, env={"SPECPLUG_CONFIG": config}).settings
    assert settings.options == {"ngram": {"min_n": 3, "max_n": 9}}
    assert flags == {"options": {"ngram": {"min_n": 3}}}


def test_each_rank_drafts_only_where_all_would_draft_the_same(registry):
    assert load_settings({"draft_ranks": "each"}, env={}, registry=registry).settings.draft_ranks == "each"
    flags = {"draft_ranks": "each", "extra_proposers": ["plain"], "policy": "own", "trace": {"path": "t.jsonl"}}
    found = mistakes(flags, registry=registry)
    assert "proposer 'plain' does not declare that its drafts are deterministic" in found
    assert "policy 'own' has a trim half of its own" in found
    assert "needs no trace, as every rank would write it" in found
    assert found.count("setting 'draft_ranks' 'each' needs") == 3
    assert "'ngram'" not in found


@pytest.mark.parametrize("name", ["retrieval", "hybrid", "crosstok", "ngram-reference"])
def test_of_specplugs_proposers_ngram_alone_may_draft_on_each_rank(name):
    assert load_settings({"draft_ranks": "each"}, env={}, registry=default_registry()).settings.proposer == "ngram"
    found = mistakes({"draft_ranks": "each", "proposer": name}, registry=default_registry())
    assert f"proposer {name!r} does not declare that its drafts are deterministic" in found


@pytest.mark.parametrize(
    ("flags", "fragments"),
    [
        ({"proposer": "plian"}, ["'proposer'", "unknown proposer 'plian'", "Did you mean 'plain'?", "specplug list"]),
        ({"extra_proposers": ["plian"]}, ["'extra_proposers.0'", "Did you mean 'plain'?"]),
        ({"verifier": "referenc"}, ["'verifier'", "Did you mean 'reference'?"]),
        (
            {"acceptance_thresholds": {"prose": 0.3}},
            ["verifier 'reference' takes no thresholds", "acceptance_thresholds"],
        ),
        ({"acceptance_thresholds": {"prose": 0}}, ["'acceptance_thresholds.prose'", "greater than 0"]),
        ({"options": {"ngarm": {"a": 1}}}, ["unknown plug-in 'ngarm'", "{'a': 1}", "Did you mean 'ngram'?"]),
        ({"options": {"plain": {"a": 1}}}, ["proposer 'plain' has no options", "Remove 'options.plain'"]),
        ({"options": {"twin": {}}}, ["'twin' is the name of a proposer and policy", "Rename one"]),
        ({"options": {"ngram": {"min_m": 1}}}, ["'options.ngram.min_m'", "Did you mean 'options.ngram.min_n'?"]),
        ({"options": {"ngram": {"min_n": "x"}}}, ["bad value for setting 'options.ngram.min_n'", "'x'", "integer"]),
        ({"options": {"fixed": {"gama": 1}}}, ["'options.fixed.gama'", "Did you mean 'options.fixed.gamma'?"]),
        ({"proposer": "needy"}, ["setting 'options.needy.path' is missing"]),
        ({"options": {"broken": {"a": 1}}}, ["cannot load 'no_such_module:Options'"]),
        ({"proposer": "broken"}, ["bad value for setting 'proposer'", "cannot load 'no_such_module:Options'"]),
        ({"proposer": "odd"}, ["proposer 'odd': options are not a model", "expected a subclass of pydantic.BaseModel"]),
    ],
)
def test_names_and_options_of_plugins_are_checked(registry, flags, fragments: list[str]):
    message = mistakes(flags, registry=registry)
    assert [fragment for fragment in fragments if fragment not in message] == []
    assert message.count("\n") == 0  # one mistake, one line


def test_plugin_mistakes_name_all_layers_that_gave_the_options(registry):
    message = mistakes(
        {"options": {"plain": {"a": 1}}}, {"SPECPLUG_CONFIG": '{"options": {"plain": {"b": 1}}}'}, registry
    )
    assert message.startswith("SPECPLUG_CONFIG and engine flag: ")


def test_mistakes_of_options_as_a_whole_name_the_layers_that_gave_them(registry):
    config = {"SPECPLUG_CONFIG": '{"options": {"ordered": {"high": 2}}}'}
    message = mistakes({"options": {"ordered": {"low": 3}}}, config, registry)
    assert message.startswith("SPECPLUG_CONFIG and engine flag: bad value for setting 'options.ordered'")


def test_options_reach_the_plugin_as_its_own_model(registry):
    spec = registry.get(ProposerSpec, "ngram")
    assert plugin_options(Settings(), spec) == StrictOptions()
    assert plugin_options(Settings(options={"ngram": {"min_n": 5}}), spec) == StrictOptions(min_n=5)
    assert plugin_options(Settings(), registry.get(ProposerSpec, "plain")) is None
    with pytest.raises(SettingsError, match=r"options\.ngram\.min_m"):
        plugin_options(Settings(options={"ngram": {"min_m": 5}}), spec)


def test_every_setting_has_a_default_and_a_description():
    for leaf in leaves(Settings):
        assert leaf.description, leaf.key
    assert Limits() == Settings().limits
    assert CorporaSettings() == Settings().corpora


trees = st.recursive(
    st.integers(), lambda below: st.dictionaries(st.sampled_from("abc"), below, max_size=3), max_leaves=8
)


@given(
    st.dictionaries(st.sampled_from("abc"), trees, max_size=3),
    st.dictionaries(st.sampled_from("abc"), trees, max_size=3),
)
def test_merging_keeps_every_leaf_that_the_higher_layer_does_not_replace(low, high):
    merged = load_settings(
        {"options": {"x": high}}, env={"SPECPLUG_CONFIG": json.dumps({"options": {"x": low}})}
    ).settings.options["x"]
    found, above = dict(flatten(merged)), dict(flatten(high))
    for key, value in above.items():
        if value != {}:  # an empty mapping adds nothing
            assert found[key] == value
    for key, value in flatten(low):
        touched = any(key == k or key.startswith(f"{k}.") or k.startswith(f"{key}.") for k in above)
        assert touched or found[key] == value


def test_policies_are_joined_by_name(registry):
    assert load_settings({"policy": "batch+fixed"}, env={}, registry=registry).settings.policies == ("batch", "fixed")
    for policy, parts in (
        ("batch+fixd", ["'policy'; found 'fixd'. unknown policy 'fixd'. Did you mean 'fixed'?"]),
        ("batch+", ["unknown policy ''"]),
        ("batch+batch", ["expected names that differ from each other, joined by '+'"]),
        ("own+batch+his", ["trim halves of their own cannot be joined; found 'own' and 'his'; expected at most one"]),
    ):
        message = mistakes({"policy": policy}, registry=registry)
        assert all(part in message for part in parts), message
        assert "\n" not in message
    assert load_settings({"policy": "own+batch"}, env={}, registry=registry).settings.policy == "own+batch"


def test_the_engines_own_drafter_is_a_proposer_only_where_the_engine_has_one(registry):
    found = load_settings({"proposer": "engine"}, env={}, registry=registry, engine_drafts=True)
    assert found.settings.drafts_in_engine
    assert (found.settings.policy, found.was_set("policy")) == ("adaptive+batch", False)
    assert load_settings({"proposer": "engine", "policy": "batch"}, env={}).settings.policies == ("batch",)
    assert not load_settings({}, env={}, registry=registry, engine_drafts=True).settings.drafts_in_engine
    message = mistakes({"proposer": "engine"}, registry=registry)
    assert "the engine's own drafter is not used here" in message


def test_settings_that_nothing_reads_are_mistakes_when_the_engine_drafts(registry):
    flags = {
        "proposer": "engine",
        "extra_proposers": ["plain"],
        "trace": {"path": "t.jsonl"},
        "corpora": {"store": "s"},
        "draft_ranks": "each",
    }
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, env={}, registry=registry, engine_drafts=True)
    for key in ("extra_proposers", "trace.path", "corpora.store", "draft_ranks"):
        assert f"setting {key!r} has no effect on the engine's own drafter" in str(caught.value)
    assert "'verifier'" not in str(caught.value)


PATHS = ("trace.path", "corpora.store", "tenants.keys", "control.file")


@pytest.mark.parametrize("key", PATHS)
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~nosuchuser/x", "expected a path in the home folder of a user that exists"),
        ("a\0b", "expected a path without NUL characters"),
        ("a\ud800b", "expected a valid string"),
    ],
)
def test_a_path_that_no_file_can_have_is_one_message(key, path, words):
    section, name = key.split(".")
    with pytest.raises(SettingsError) as caught:
        load_settings({section: {name: path}})
    assert len(str(caught.value).encode().splitlines()) == 1
    assert repr(key) in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("key", PATHS)
def test_paths_begin_in_the_home_folder(key, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    section, name = key.split(".")
    found = load_settings({section: {name: "~/x"}}).settings
    assert getattr(getattr(found, section), name) == "/home/someone/x"


@pytest.mark.parametrize("path", ["~nosuchuser/x.toml", "/x\0y.toml", "/x\ud800y.toml"])
def test_a_settings_file_that_cannot_be_is_one_message(path):
    with pytest.raises(SettingsError, match="cannot read the settings file") as caught:
        load_settings(env={"SPECPLUG_CONFIG": path})
    assert len(str(caught.value).encode().splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a." * 2_000 + "b = 1",
        "x = " + "[" * 500 + "]" * 500,
        "x = " + "[" * 20_000 + "]" * 20_000,
        '{"options": ' + '{"a": ' * 500 + "1" + "}" * 500 + "}",
        "[" + ".".join("a" * 5000) + "]",
    ],
)
def test_settings_that_are_nested_without_end_are_one_message(text):
    with pytest.raises(SettingsError, match="malformed settings") as caught:
        load_settings(env={"SPECPLUG_CONFIG": text}, registry=Registry())
    assert len(str(caught.value).encode().splitlines()) == 1
