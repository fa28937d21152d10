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
from specplug.input_errors import flatten, leaves
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import PolicySpec, ProposerSpec, VerifierSpec
from specplug.settings import CorporaSettings, Limits, Settings, load_settings
from specplug.settings.checks import plugin_options
from specplug.types.caps import ProposerCaps, VerifierCaps
from tests.plugins.planted import registry_of


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


def policy(name: str, **more: object) -> PolicySpec:
    return PolicySpec(name=name, factory="nowhere:Nothing", summary="", **more)  # type: ignore[arg-type]


REGISTRY = registry_of(
    proposers=[
        proposer("ngram", StrictOptions, deterministic=True),
        proposer("plain"),
        proposer("needy", NeedyOptions),
        proposer("ordered", OrderedOptions),
        proposer("twin", StrictOptions),
        proposer("broken", "no_such_module:Options"),
        proposer("odd", dict),
    ],
    policies=[
        policy("batch"),
        policy("fixed", options=LaxOptions),
        policy("twin", options=LaxOptions),
        policy("adaptive"),
        policy("own", trimmer="nowhere:Trims"),
        policy("his", trimmer="nowhere:Trims"),
    ],
    verifiers=[VerifierSpec(name="reference", factory="no:No", summary="", caps=VerifierCaps(lossless=True))],
)


def load(flags=None, config: str = "", **more) -> Settings:
    return load_settings(flags, env={"SPECPLUG_CONFIG": config}, registry=REGISTRY, **more).settings


def refusal(flags=None, config: str = "", **more) -> str:
    with pytest.raises(SettingsError) as caught:
        load(flags, config, **more)
    return str(caught.value)


def test_defaults_come_from_nowhere_else():
    resolved = load_settings(env={}, registry=REGISTRY)
    assert resolved.settings == Settings()
    assert set(resolved.origins) == {leaf.key for leaf in leaves(Settings)}
    assert set(resolved.origins.values()) == {"default"}
    assert not resolved.was_set("verifier")


def test_every_setting_has_a_default_and_a_description():
    for leaf in leaves(Settings):
        assert leaf.description, leaf.key
    assert Limits() == Settings().limits
    assert CorporaSettings() == Settings().corpora


def test_later_layers_win_and_every_value_knows_its_layer(tmp_path: Path):
    path = tmp_path / "server.toml"
    path.write_text("num_speculative_tokens = 4\nseed = 7\n[faults]\ncooldown_steps = 9\nhost_deadline_ms = 50\n")
    flags = {"num_speculative_tokens": 2, "faults": {"cooldown_steps": 10}, "verifier": "reference"}
    resolved = load_settings(flags, env={"SPECPLUG_CONFIG": str(path)})
    assert (resolved.settings.num_speculative_tokens, resolved.settings.seed) == (2, 7)
    faults = {"max_consecutive": 3, "cooldown_steps": 10, "host_deadline_ms": 50.0}
    assert resolved.settings.faults.model_dump() == faults
    file = f"SPECPLUG_CONFIG ({path})"
    origins = {
        "num_speculative_tokens": "engine flag",
        "seed": file,
        "faults.cooldown_steps": "engine flag",
        "faults.host_deadline_ms": file,
        "faults.max_consecutive": "default",
        "verifier": "engine flag",  # although it is the default value
    }
    assert {key: resolved.origins[key] for key in origins} == origins
    assert resolved.was_set("verifier")


def test_one_key_of_a_layer_may_come_from_another_flag():
    more = {
        "flags_origin": "--config",
        "origins_of": {"num_speculative_tokens": "--draft-length", "verifier": "--verifier"},
    }
    resolved = load_settings({"seed": 3, "num_speculative_tokens": 4}, env={}, **more)
    origins = [resolved.origins[key] for key in ("seed", "num_speculative_tokens", "verifier")]
    assert origins == ["--config", "--draft-length", "default"], "no layer gives a verifier"
    message = refusal({"num_speculative_tokens": 300}, **more)
    assert message.startswith("--draft-length: bad value for setting 'num_speculative_tokens'")


JSON = '{"mode": "off", "faults": {"max_consecutive": 5}}'
TOML = 'mode = "off"\nfaults.max_consecutive = 5'


@pytest.mark.parametrize(
    ("text", "file"),
    [(JSON, "s.json"), (JSON, "s.JSON"), (TOML, "s.toml"), (TOML, "a=1#.toml"), (JSON, None), (TOML, None)],
)
def test_config_variable_takes_the_path_of_a_file_or_the_settings_themselves(tmp_path, text, file):
    path = tmp_path / str(file)
    path.write_text(text)
    resolved = load_settings(env={"SPECPLUG_CONFIG": text if file is None else f" {path}\n"})
    assert (resolved.settings.mode, resolved.settings.faults.max_consecutive) == ("off", 5)
    assert resolved.origins["mode"] == ("SPECPLUG_CONFIG" if file is None else f"SPECPLUG_CONFIG ({path})")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('trace.path = "a.json"', Settings(trace={"path": "a.json"})),  # ends like a path
        ("seed = 3\n# like a.json", Settings(seed=3)),
        ("seed = 3  # like a.json", Settings(seed=3)),
        ("seed=3#~/a.toml", Settings(seed=3)),
        ("", Settings()),
        ("   ", Settings()),
        ("\n", Settings()),
    ],
)
def test_config_variable_may_be_empty_or_end_like_a_path(config, expected):
    assert load(config=config) == expected


FILES = {"list.json": b"[1]", "latin.toml": b'proposer = "\xe9"'}


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ("/nowhere/server.toml", ["SPECPLUG_CONFIG (/nowhere/server.toml)", "cannot read", "No such file", "unset"]),
        ("~nosuchuser/x.toml", ["cannot read the settings file"]),
        ("/x\0y.toml", ["cannot read the settings file"]),
        ("/x\ud800y.toml", ["cannot read the settings file"]),
        ("list.json", ["list.json)", "found [1]; expected a JSON object"]),
        ("latin.toml", ["expected a readable file in UTF-8"]),
        ("folder.toml", ["cannot read the settings file"]),
        ("run=5/server.toml", ["cannot read the settings file"]),
        ("server", ["SPECPLUG_CONFIG", "'server'", ".json or .toml"]),
        ('{"mode": "off"', ["SPECPLUG_CONFIG", "malformed", "line 1", "expected a JSON object"]),
        ("mode = off", ["SPECPLUG_CONFIG", "malformed", "line 1", "expected TOML"]),
        ('{"seed": 1, "seed": 2}', ["key 'seed' twice"]),
        ("[" * 100_000 + "=", ["malformed", "expected TOML"]),
        # nested without end
        ("a." * 2_000 + "b = 1", ["malformed settings"]),
        ("x = " + "[" * 500 + "]" * 500, ["malformed settings"]),
        ("x = " + "[" * 20_000 + "]" * 20_000, ["malformed settings"]),
        ('{"options": ' + '{"a": ' * 500 + "1" + "}" * 500 + "}", ["malformed settings"]),
        ("[" + ".".join("a" * 5000) + "]", ["malformed settings"]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_unreadable_config_is_one_clear_error(tmp_path, monkeypatch, config: str, parts: list[str]):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    message = refusal(config=config)
    assert [part for part in parts if part not in message] == []
    assert len(message.encode().splitlines()) == 1


EACH = {"draft_ranks": "each"}
PLAIN = "proposer 'plain' does not declare that its drafts are deterministic"


def bad(key: str, found: str, expected: str) -> list[str]:
    return [f"engine flag: bad value for setting {key!r}; found {found}", f"; expected {expected}"]


HEADER = "the name of an HTTP header, as 'X-Tenant': ASCII letters, digits and"
UNSENT = ("", "X-Tenant ", "X-Tenant:", "X Y\n", "X-Tenant\n", "X-Ménage")

REFUSED = [
    ([1], ["engine flag: malformed settings; found [1]; expected a mapping of settings"]),
    ({"num_speculative_tokens": "8"}, bad("num_speculative_tokens", "'8'", "a valid integer")),
    ({"num_speculative_tokens": True}, bad("num_speculative_tokens", "True", "a valid integer")),
    ({"num_speculative_tokens": -1}, bad("num_speculative_tokens", "-1", "greater than or equal to 0")),
    ({"seed": 1.5}, bad("seed", "1.5", "a valid integer")),
    ({"seed": -1}, bad("seed", "-1", "greater than or equal to 0")),
    ({"seed": 2**63}, bad("seed", str(2**63), f"less than or equal to {2**63 - 1}")),
    ({"seed": "x" * 10_000}, bad("seed", "'xxx", "a valid integer")),
    ({"mode": True}, bad("mode", "True", "'on' or 'off'")),
    ({"proposer": None}, bad("proposer", "None", "a valid string")),
    ({"extra_proposers": "ngram"}, bad("extra_proposers", "'ngram'", "a list")),
    ({"extra_proposers": ["ngram"]}, bad("extra_proposers", "['ngram']", "names that differ")),
    ({"extra_proposers": ["a", "a"]}, bad("extra_proposers", "['a', 'a']", "names that differ")),
    ({"faults": 3}, bad("faults", "3", "a mapping")),
    ({"options": {"ngram": 3}}, bad("options.ngram", "3", "a mapping")),
    ({"faults": {"max_consecutive": 0}}, bad("faults.max_consecutive", "0", "greater than or equal to 1")),
    ({"faults": {"host_deadline_ms": 0}}, bad("faults.host_deadline_ms", "0", "greater than 0")),
    ({"faults": {"host_deadline_ms": float("inf")}}, bad("faults.host_deadline_ms", "inf", "a finite number")),
    ({"limits": {"max_reference_tokens": 0}}, bad("limits.max_reference_tokens", "0", "greater than or equal to 1")),
    ({"limits": {"max_references": -1}}, bad("limits.max_references", "-1", "greater than or equal to 0")),
    ({"limits": {"max_documents": -1}}, bad("limits.max_documents", "-1", "greater than or equal to 0")),
    ({"limits": {"max_corpora": "1"}}, bad("limits.max_corpora", "'1'", "a valid integer")),
    ({"corpora": {"store": ""}}, ["bad value for setting 'corpora.store'; found ''", "at least 1 character"]),
    ({"corpora": {"poll_seconds": 0}}, bad("corpora.poll_seconds", "0", "greater than 0")),
    ({"corpora": {"max_tokens": 0}}, bad("corpora.max_tokens", "0", "greater than or equal to 1")),
    ({"trace": {"path": ""}}, ["bad value for setting 'trace.path'; found ''", "at least 1 character"]),
    ({"tenants": {"header": "X", "keys": "f"}}, bad("tenants", "{'header': 'X'", "either 'header' or 'keys'")),
    *(({"tenants": {"header": text}}, bad("tenants.header", repr(text), HEADER)) for text in UNSENT),
    ({3: 4}, bad("3", "3", "a string as key")),
    ({"cooldown_steps": 5}, ["Did you mean 'faults.cooldown_steps'?"]),
    ({"acceptance_thresholds": {"prose": 0}}, ["'acceptance_thresholds.prose'", "greater than 0"]),
    # names of plug-ins
    ({"proposer": "plian"}, ["'proposer'", "unknown proposer 'plian'", "Did you mean 'plain'?", "specplug list"]),
    ({"extra_proposers": ["plian"]}, ["'extra_proposers.0'", "Did you mean 'plain'?"]),
    ({"verifier": "referenc"}, ["'verifier'", "Did you mean 'reference'?"]),
    ({"proposer": "engine"}, ["the engine's own drafter is not used here"]),
    ({"policy": "batch+fixd"}, ["'policy'; found 'fixd'. unknown policy 'fixd'. Did you mean 'fixed'?"]),
    ({"policy": "batch+"}, ["unknown policy ''"]),
    ({"policy": "batch+batch"}, ["expected names that differ from each other, joined by '+'"]),
    (
        {"policy": "own+batch+his"},
        ["trim halves of their own cannot be joined; found 'own' and 'his'; expected at most"],
    ),
    # their options
    ({"acceptance_thresholds": {"prose": 0.3}}, ["verifier 'reference' takes no thresholds", "acceptance_thresholds"]),
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
    # where each rank drafts, all would have to draft the same
    ({**EACH, "extra_proposers": ["plain"]}, ["setting 'draft_ranks' 'each' needs equal drafts", PLAIN]),
    ({**EACH, "policy": "own"}, ["'each' needs", "policy 'own' has a trim half of its own"]),
    ({**EACH, "trace": {"path": "t.jsonl"}}, ["'each' needs no trace, as every rank would write it"]),
]


@pytest.mark.parametrize(("flags", "parts"), REFUSED)
def test_a_wrong_setting_is_one_line_with_key_value_expectation_and_layer(flags, parts: list[str]):
    message = refusal(flags)
    assert [part for part in parts if part not in message] == []
    assert "\n" not in message
    assert len(message) < 900, "long values are shortened"


def test_all_mistakes_are_reported_each_with_its_layer():
    flags = {"num_speculative_tokens": 300, "policy": "fixd"}
    lines = refusal(flags, 'mode = "onn"\nfaults.cooldown_stepz = 5').split("\n  ")
    assert lines[0] == "4 settings are wrong:"
    wrong = (
        "SPECPLUG_CONFIG: bad value for setting 'mode'; found 'onn'; expected 'on' or 'off'. Did you mean 'on'?",
        "SPECPLUG_CONFIG: unknown setting 'faults.cooldown_stepz'; found 5. Did you mean 'faults.cooldown_steps'?",
        "engine flag: bad value for setting 'num_speculative_tokens'; found 300; expected less than or equal to 256",
        "engine flag: bad value for setting 'policy'; found 'fixd'. unknown policy 'fixd'. Did you mean 'fixed'?",
    )
    assert [sum(line.startswith(each) for line in lines) for each in wrong] == [1, 1, 1, 1]
    assert len(lines) == 5


def test_a_dotted_key_is_told_to_be_nested():
    expected = (
        'unknown setting \'faults.max_consecutive\'; found 3. A dot is a level: {"faults": {"max_consecutive": ...}}'
    )
    assert refusal({"faults.max_consecutive": 3}).endswith(expected)


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ({**EACH, "trace": {"path": "t.jsonl"}}, ["seed", "draft_ranks"]),
        ({"proposer": "engine", "corpora": {"store": "s"}, "trace": {}}, ["seed", "corpora.store"]),
        ({"proposer": 5, "extra_proposers": ["ngram"]}, ["proposer", "seed"]),  # the default proposer is no extra one
    ],
)
def test_sections_are_checked_beside_a_mistake_elsewhere(flags, keys: list[str]):
    lines = refusal({**flags, "seed": -1}, engine_drafts=True).split("\n  ")[1:]
    assert len(lines) == len(keys)
    assert [key for key, line in zip(keys, lines, strict=True) if f"setting {key!r}" not in line] == []


@pytest.mark.parametrize(
    ("flags", "config", "expected"),
    [
        ({"options": {"plain": {"a": 1}}}, '{"options": {"plain": {"b": 1}}}', "SPECPLUG_CONFIG and engine flag: "),
        (
            {"options": {"ordered": {"low": 3}}},
            '{"options": {"ordered": {"high": 2}}}',
            "SPECPLUG_CONFIG and engine flag: bad value for setting 'options.ordered'",
        ),
    ],
)
def test_mistakes_of_options_name_all_layers_that_gave_them(flags, config, expected):
    assert refusal(flags, config).startswith(expected)


def test_settings_are_frozen_and_travel_between_processes():
    settings = load({"options": {"ngram": {"min_n": 3}}})
    with pytest.raises(ValidationError, match="frozen"):
        settings.seed = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        settings.limits.max_references = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_loading_changes_no_layer_and_shares_nothing_with_it():
    flags = {"options": {"ngram": {"min_n": 3}}}
    settings = load_settings(flags, env={"SPECPLUG_CONFIG": '{"options": {"ngram": {"max_n": 9}}}'}).settings
    assert settings.options == {"ngram": {"min_n": 3, "max_n": 9}}
    assert flags == {"options": {"ngram": {"min_n": 3}}}


@pytest.mark.parametrize("name", ["retrieval", "hybrid", "crosstok", "ngram-reference"])
def test_of_specplugs_proposers_ngram_alone_may_draft_on_each_rank(name):
    assert load_settings(EACH, env={}, registry=default_registry()).settings.proposer == "ngram"
    with pytest.raises(SettingsError, match=f"proposer {name!r} does not declare that its drafts are deterministic"):
        load_settings({**EACH, "proposer": name}, env={}, registry=default_registry())
    assert load(EACH).draft_ranks == "each"


@pytest.mark.parametrize("part", ["lookup", "model"])
def test_the_parts_of_hybrid_are_named_by_their_settings(part):
    parts = {"model": "engine", part: "ngarm"}
    with pytest.raises(SettingsError, match=f"'options.hybrid.{part}'; found 'ngarm'.* Did you mean 'ngram'"):
        load_settings({"proposer": "hybrid", "options": {"hybrid": parts}}, env={}, registry=default_registry())


def test_a_hybrid_of_others_has_no_parts_that_are_checked():
    def load_with(options: object) -> Settings:
        known = {"policies": [policy("batch")], "verifiers": [REGISTRY.get(VerifierSpec, "reference")]}
        registry = registry_of(proposers=[proposer("hybrid", options)], **known)
        return load_settings({"proposer": "hybrid"}, env={}, registry=registry).settings

    assert load_with(LaxOptions).proposer == load_with(None).proposer == "hybrid"
    with pytest.raises(SettingsError, match=r"'proposer'; found 'hybrid'.* cannot load 'no_such_module:Options'"):
        load_with("no_such_module:Options")


def test_options_reach_the_plugin_as_its_own_model():
    spec = REGISTRY.get(ProposerSpec, "ngram")
    assert plugin_options(Settings(), spec) == StrictOptions()
    assert plugin_options(Settings(options={"ngram": {"min_n": 5}}), spec) == StrictOptions(min_n=5)
    assert plugin_options(Settings(), REGISTRY.get(ProposerSpec, "plain")) is None
    with pytest.raises(SettingsError, match=r"options\.ngram\.min_m"):
        plugin_options(Settings(options={"ngram": {"min_m": 5}}), spec)


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
    found = dict(flatten(merged))
    above = dict(flatten(high))
    for key, value in above.items():
        if value != {}:  # an empty mapping adds nothing
            assert found[key] == value
    for key, value in flatten(low):
        touched = any(key == k or key.startswith(f"{k}.") or k.startswith(f"{key}.") for k in above)
        assert touched or found[key] == value


def test_policies_are_joined_by_name():
    assert load({"policy": "batch+fixed"}).policies == ("batch", "fixed")
    assert load({"policy": "own+batch"}).policy == "own+batch"


def test_the_engines_own_drafter_is_a_proposer_only_where_the_engine_has_one():
    found = load_settings({"proposer": "engine"}, env={}, registry=REGISTRY, engine_drafts=True)
    assert found.settings.drafts_in_engine
    assert (found.settings.policy, found.was_set("policy")) == ("adaptive+batch", False)
    assert load_settings({"proposer": "engine", "policy": "batch"}, env={}).settings.policies == ("batch",)
    assert not load(engine_drafts=True).drafts_in_engine


def test_settings_that_nothing_reads_are_mistakes_when_the_engine_drafts():
    unread = {"extra_proposers": ["plain"], "trace": {"path": "t.jsonl"}, "corpora": {"store": "s"}, **EACH}
    message = refusal({"proposer": "engine", **unread}, engine_drafts=True)
    for key in ("extra_proposers", "trace.path", "corpora.store", "draft_ranks"):
        assert f"setting {key!r} has no effect on the engine's own drafter" in message
    assert "'verifier'" not in message


@pytest.mark.parametrize("key", ["trace.path", "corpora.store", "tenants.keys", "control.file"])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~nosuchuser/x", "expected a path in the home folder of a user that exists"),
        ("a\0b", "expected a path without NUL characters"),
        ("a\ud800b", "expected a valid string"),
        ("~/x", None),
    ],
)
def test_paths_begin_in_the_home_folder_and_one_that_no_file_can_have_is_one_message(key, path, words, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    section, name = key.split(".")
    if words is None:
        assert getattr(getattr(load({section: {name: path}}), section), name) == "/home/someone/x"
        return
    message = refusal({section: {name: path}})
    assert len(message.encode().splitlines()) == 1
    assert repr(key) in message
    assert words in message
