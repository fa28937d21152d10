"""`specplug list` and `specplug doctor`, and how the command line reports mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from specplug import CheckResult, __version__
from specplug.errors import PluginError, SettingsError
from specplug.input_errors import leaves
from specplug.interfaces import Planner, Proposer
from specplug.plugins.registry import KINDS, Owner, Registry, default_registry
from specplug.plugins.specs import CheckSpec, PolicySpec, ProposerSpec, VerifierSpec
from specplug.settings import Settings
from specplug.tools.cli import machine
from specplug.tools.cli.machine import environment, plugins
from specplug.types.caps import Distribution, ProposerCaps, VerifierCaps
from specplug.types.step import StepPlan
from tests.plugins.planted import plugin
from tests.tools.cli.tools import invoke

ACME = Owner("main", "acme", "1.2")
EXTRA = Owner("extra", "acme", "1.2")


class Idle(Proposer):
    """Drafts nothing, and notes its life."""

    life: ClassVar[list[str]] = []

    def __init__(self, context):
        self.life.append("built")

    def propose(self, batch, limits, draft):
        pass

    def warmup(self):
        self.life.append("warmed up")

    def close(self):
        self.life.append("closed")


class Silent(Planner):
    def __init__(self, context):
        pass

    def plan(self, stats):
        return StepPlan(draft_length=0)


def broken(context):
    raise OSError("no such model")


PROPOSER = ProposerSpec(
    name="ngram",
    factory=Idle,
    summary="drafts [B, N] tokens",
    caps=ProposerCaps(needs_host=True, distribution=Distribution.PROBS, trees=True, learns=True),
)
POLICY = PolicySpec(name="batch", factory=Silent, summary="constant")
VERIFIER = VerifierSpec(
    name="reference",
    factory="specplug.verify.reference:ReferenceVerifier",
    summary="exact",
    caps=VerifierCaps(lossless=True),
)


def mine(check, **more) -> ModuleType:
    """A plug-in of one check, `mine`."""
    return plugin(checks=[CheckSpec(name="mine", factory=check, summary="", **more)])


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of healthy plug-ins that all commands see instead of the installed ones."""
    registry = Registry()
    registry.add(plugin(proposers=[PROPOSER], policies=[POLICY], verifiers=[VERIFIER]), ACME)
    for module in ("specplug.tools.cli.list", "specplug.tools.cli.doctor", "specplug.tools.cli.machine"):
        monkeypatch.setattr(sys.modules[module], "default_registry", lambda: registry)
    monkeypatch.delenv("SPECPLUG_CONFIG", raising=False)
    monkeypatch.delenv("SPECPLUG_DEBUG", raising=False)
    return registry


def run(*arguments: str, code: int = 0, **env: str) -> str:
    return invoke(*arguments, code=code, env={"COLUMNS": "200", **env}).output


def checks_of(output: str, name: str) -> list[dict[str, str]]:
    return [check for check in json.loads(output)["checks"] if check["check"] == name]


def test_list_shows_what_a_plugin_is_and_can_do(registry):
    shown, found = run("list"), json.loads(run("list", "--json"))
    for part in ("proposer", "acme", "1.2", "host, draft_probs, trees, learns", "drafts [B, N] tokens", "lossless"):
        assert part in shown
    assert "Failed to load" not in shown
    assert found["errors"] == []
    assert [row["name"] for row in found["plugins"]] == ["ngram", "batch", "reference"]
    capabilities = ["host", "draft_probs", "trees", "learns"]
    about = {"kind": "proposer", "name": "ngram", "package": "acme", "version": "1.2", "capabilities": capabilities}
    assert found["plugins"][0] == {**about, "summary": "drafts [B, N] tokens"}
    assert [row["name"] for row in json.loads(run("list", "--kind", "policy", "--json"))["plugins"]] == ["batch"]
    refused = " ".join(run("list", "--kind", "polici", code=2).replace("│", " ").split())
    assert "'polici' is not a kind of plug-in. Did you mean 'policy'?" in refused


def test_list_and_doctor_show_capabilities_by_device(registry):
    def caps(device):
        return ProposerCaps(needs_host=device == "cpu")

    def lost(device):
        raise OSError("no such device")

    anywhere = ProposerSpec(name="anywhere", factory=Idle, summary="", caps=caps)
    broken = ProposerSpec(name="lost", factory=Idle, summary="", caps=lost)
    by_path = ProposerSpec(name="by path", factory=Idle, summary="", caps="specplug.types.caps:ProposerCaps")
    registry.add(plugin(proposers=[anywhere, broken, by_path]), EXTRA)
    rows = {row["name"]: row["capabilities"] for row in json.loads(run("list", "--json"))["plugins"]}
    assert rows["anywhere"] == ["host on cpu", "one-hot", "device on cuda"]
    assert "unknown: proposer 'lost': capabilities on 'cpu' are not known" in rows["lost"][0]
    found = {result.summary: result.status for result in plugins(Settings())}
    assert found["proposer 'anywhere': host on cpu, one-hot, device on cuda"] == "ok"
    assert found["proposer 'by path': host, one-hot"] == "ok"
    assert "warn" in [status for summary, status in found.items() if "'lost'" in summary]


def test_list_shows_broken_plugins_and_duplicates_beside_the_healthy(registry):
    registry.add(plugin(proposers=[RuntimeError("boom [red]")]), Owner("bad", "broken", "0.3"))
    registry.add(plugin(policies=[POLICY]), Owner("main", "zeta", "9"))
    shown = run("list")
    for part in ("ngram", "Failed to load", "broken", "0.3", "RuntimeError: boom [red]", "policy 'batch'", "zeta"):
        assert part in shown
    errors = json.loads(run("list", "--json"))["errors"]
    where = {"package": "broken", "version": "0.3", "entry_point": "bad", "stage": "specplug_register_proposers"}
    assert errors[0] == {**where, "error": "RuntimeError: boom [red]"}
    assert "acme 1.2 (entry point 'main') and zeta 9 (entry point 'main')" in errors[1]["error"]


def test_doctor_is_content_with_a_healthy_machine(registry):
    registry.add(mine(lambda settings: CheckResult("ok", settings.policy)), EXTRA)
    report = json.loads(run("doctor", "--json"))
    assert report["ok"] is True
    assert [check["check"] for check in report["checks"]] == ["settings", "mine"]
    own = {"check": "mine", "owner": str(EXTRA), "status": "ok", "summary": "batch", "remedy": ""}
    assert report["checks"][1] == own


def test_doctor_shows_every_setting_with_value_origin_and_meaning(registry, tmp_path):
    path = tmp_path / "server.toml"
    path.write_text("faults.cooldown_steps = 9")
    env = {"SPECPLUG_CONFIG": str(path)}
    rows = json.loads(run("doctor", "--json", **env))["settings"]
    assert [row["key"] for row in rows] == [leaf.key for leaf in leaves(Settings)]
    assert [row["description"] for row in rows] == [leaf.description for leaf in leaves(Settings)]
    given = {row["key"]: (row["value"], row["origin"]) for row in rows}
    assert given["faults.cooldown_steps"] == (9, f"SPECPLUG_CONFIG ({path})")
    assert given["seed"] == (0, "default")
    shown = run("doctor", "--all", **env)
    assert [leaf.key for leaf in leaves(Settings) if leaf.key not in shown] == []
    shown = run("doctor", **env)
    assert [leaf.key for leaf in leaves(Settings) if f"\n│ {leaf.key} " in shown] == ["faults.cooldown_steps"]
    assert f"{len(rows) - 1} settings are at their defaults; --all shows them." in shown


def test_doctor_accepts_the_drafter_of_a_servers_engine():
    (settings,) = checks_of(run("doctor", "--json", SPECPLUG_CONFIG='{"proposer": "engine"}'), "settings")
    assert settings["status"] == "ok"


@pytest.mark.parametrize(
    ("options", "status", "found"),
    [
        (
            {"model_tokens": 4},
            "ok",
            "ngram continues the drafts of the engine's own drafter: of at most 15 draft tokens the first 4",
        ),
        ({"model_tokens": 15}, "fail", "nothing is left to draft after the engine's own drafter; found 15 of 15"),
        ({"lookup": "ngram-reference"}, "fail", "found ngram-reference; expected ngram or retrieval"),
    ],
)
def test_doctor_says_what_continues_the_engines_own_drafter(options, status, found):
    given = {"proposer": "hybrid", "options": {"hybrid": {"model": "engine", **options}}}
    output = run("doctor", "--json", code=int(status == "fail"), SPECPLUG_CONFIG=json.dumps(given))
    (settings,) = checks_of(output, "settings")
    assert settings["status"] == status
    assert found in settings["summary"]
    assert [check["status"] for check in checks_of(output, "plug-ins")].count("fail") == 0


def test_doctor_reports_wrong_settings_and_still_runs_the_checks(registry):
    registry.add(mine(lambda settings: CheckResult("ok", "ran")), EXTRA)
    report = json.loads(run("doctor", "--json", code=1, SPECPLUG_CONFIG='{"proposr": "ngram"}'))
    assert (report["ok"], report["settings"]) == (False, [])
    settings, other = report["checks"]
    assert settings["status"] == "fail"
    assert "SPECPLUG_CONFIG: unknown setting 'proposr'" in settings["summary"]
    assert other["summary"] == "ran"


def _raises(settings: Settings) -> CheckResult:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("check", "code", "status", "summary", "remedy"),
    [
        (lambda s: [CheckResult("warn", "slow", "buy"), CheckResult("ok", "fine")], 0, "warn", "slow", "buy"),
        (lambda s: CheckResult("fail", "gone", "fetch"), 1, "fail", "gone", "fetch"),
        (_raises, 1, "fail", "the check itself failed: RuntimeError: boom", f"Report this to {EXTRA}"),
        ("no_such_module:check", 1, "fail", "the check itself failed: PluginError", f"Report this to {EXTRA}"),
        (lambda s: CheckResult("bad", ""), 1, "fail", "expected a CheckResult of status ok, warn or fail", "Report"),
        (lambda s: "fine", 1, "fail", "found 'fine'; expected a CheckResult", "Report"),
        (lambda s: None, 1, "fail", "found None; expected a CheckResult", "Report"),
    ],
)
def test_doctor_survives_any_check_and_fails_when_one_fails(registry, check, code, status, summary, remedy):
    registry.add(mine(check), EXTRA)
    result, *more = checks_of(run("doctor", "--json", code=code), "mine")
    assert result["status"] == status
    assert summary in result["summary"]
    assert remedy in result["remedy"]
    assert [other["summary"] for other in more] == ["fine"] * (status == "warn")
    assert status in run("doctor", code=code)


def test_environment_reports_interpreter_libraries_devices_and_cores(registry):
    summaries = "\n".join(result.summary for result in environment(Settings()))
    for part in ("Python 3.", "torch ", "pydantic ", "devices: cpu", "torch threads"):
        assert part in summaries
    assert "extra" not in summaries  # optional libraries are the adapters' matter


V1 = "4:memory:/a\n1:cpu,cpuacct:/a/b\n"
QUOTA = "cpu.cfs_quota_us"
PERIOD = "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("groups", "files", "want"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000"}, 16),
        ("0::/\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/\n", {"cpu.max": "250000 100000"}, 3),
        ("0::/\n", {"cpu.max": "10000 100000"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000"}, 4),
        ("0::/../seen/from/inside\n", {"cpu.max": "300000 100000"}, 3),
        (V1, {f"cpu/a/b/{QUOTA}": "-1", f"cpu/a/b/{PERIOD}": "100000"}, 16),
        (V1, {f"cpu/a/b/{QUOTA}": "150000", f"cpu/a/b/{PERIOD}": "100000"}, 2),
        (V1, {f"cpu/{QUOTA}": "800000", f"cpu/{PERIOD}": "100000"}, 8),
        (V1, {f"memory/a/{QUOTA}": "100000", f"memory/a/{PERIOD}": "100000"}, 16),
        (None, {}, 16),
    ],
)
def test_quotas_of_control_groups_hold(monkeypatch, tmp_path: Path, groups, files, want):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(machine, "_MOUNT", tmp_path / "mount")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "cgroup")
    if groups is not None:
        (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert machine.usable_cores() == want


def test_a_missing_library_of_specplug_itself_is_a_failure(registry, monkeypatch):
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["no-such-distribution>=2", "x>1; extra == 'plot'"])
    failed = [result for result in environment(Settings()) if result.status == "fail"]
    assert [result.summary for result in failed] == ["no-such-distribution>=2 is not installed"]


def test_plugins_check_loads_the_code_behind_every_name(registry):
    assert {result.status for result in plugins(Settings())} == {"ok"}
    assert "proposer: ngram" in [result.summary for result in plugins(Settings())]
    lossless = VerifierCaps(lossless=True)
    wrong = plugin(
        proposers=[ProposerSpec(name="p", factory="no_such:P", summary="", caps=ProposerCaps())],
        policies=[PolicySpec(name="q", factory=len, summary="", trimmer="no_such:T")],
        verifiers=[VerifierSpec(name="v", factory=len, summary="", options="no_such:O", caps=lossless)],
    )
    registry.add(wrong, Owner("main", "zeta", "9"))
    registry.add(plugin(checks=[ValueError("boom")]), Owner("main", "broken", "0.3"))
    failed = [result.summary for result in plugins(Settings()) if result.status == "fail"]
    assert len(failed) == 4
    for part in ("proposer 'p'", "policy 'q'", "verifier 'v'", "broken 0.3 (entry point 'main')"):
        assert any(part in summary for summary in failed)


def test_plugins_check_builds_what_it_calls_ok_and_releases_it(registry):
    Idle.life.clear()
    assert {result.status for result in plugins(Settings())} == {"ok"}
    assert Idle.life == ["built", "warmed up", "closed"]
    spare = ProposerSpec(name="spare", factory=broken, summary="", caps=ProposerCaps())
    chosen = PolicySpec(name="chosen", factory=broken, summary="")
    halved = PolicySpec(name="halved", factory=Silent, summary="", trimmer=broken)
    registry.add(plugin(proposers=[spare], policies=[chosen, halved]), Owner("main", "zeta", "9"))
    results = plugins(Settings(policy="chosen"))
    found = [result for result in results if "does not start" in result.summary]
    statuses = {name: r.status for r in found for name in ("spare", "chosen", "halved") if repr(name) in r.summary}
    assert statuses == {"spare": "warn", "chosen": "fail", "halved": "warn"}
    assert all("OSError: no such model" in result.summary for result in found)
    assert any(result.remedy.startswith("Needed only to use this proposer") for result in found)
    assert "proposer: ngram" in [result.summary for result in results]


def test_a_healthy_installation_has_no_warnings():
    registry = default_registry()
    assert {"crosstok", "hybrid"} <= set(registry.entries(ProposerSpec))
    found = plugins(Settings())
    assert {result.status for result in found} == {"ok"}
    assert [result.remedy for result in found if "no draft model is named" in result.summary] == [
        "Needed only to use this proposer: correct its options in the settings"
    ] * 2
    named = plugins(Settings(options={"crosstok": {"model": ""}}))
    assert [result.status for result in named if result.summary.startswith("proposer 'crosstok'")] == ["warn"]


def test_a_plugin_whose_part_does_not_start_is_named(registry):
    def made_of_another(context):
        raise PluginError.build("no model is named", who="proposer 'part'")

    whole = ProposerSpec(name="whole", factory=made_of_another, summary="", caps=ProposerCaps())
    registry.add(plugin(proposers=[whole]), Owner("main", "zeta", "9"))
    warnings = [result.summary for result in plugins(Settings()) if result.status == "warn"]
    assert len(warnings) == 1
    assert warnings[0].startswith("proposer 'whole': proposer 'part'")


def test_every_kind_of_plugin_is_listed():
    from specplug.plugins import specs

    registered = {name.removeprefix("specplug_register_") for name in vars(specs) if name.startswith("specplug_")}
    assert registered == {kind.replace("policy", "policie") + "s" for kind in KINDS}


@pytest.fixture
def failing(registry, monkeypatch: pytest.MonkeyPatch):
    def fail():
        raise SettingsError("two lines:\n  [bold] is no markup")

    monkeypatch.setattr(sys.modules["specplug.tools.cli.list"], "default_registry", fail)


def test_a_mistake_is_one_message_and_exit_code_2(failing):
    result = invoke("list")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: two lines:\n  [bold] is no markup\n"


@pytest.mark.parametrize(("arguments", "env"), [(["--debug"], {}), ([], {"SPECPLUG_DEBUG": "1"})])
def test_debug_shows_where_it_happened(failing, arguments: list[str], env: dict[str, str]):
    result = invoke(*arguments, "list", env=env)
    assert isinstance(result.exception, SettingsError)


def test_version():
    assert run("--version") == f"specplug {__version__}\n"


PROBE = """
import sys
from specplug.tools.cli import main
sys.argv = ["specplug", *{arguments!r}]
try:
    main()
except SystemExit as leaving:
    assert not leaving.code, leaving.code
heavy = [name for name in ("torch", "transformers", "matplotlib", "prometheus_client") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "--json"]])
def test_help_and_list_import_no_heavy_library(arguments: list[str]):
    done = subprocess.run([sys.executable, "-c", PROBE.format(arguments=arguments)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "specplug" in done.stdout


LINE = "one serve 'a model' --flag"


def add_launch_checks(registry: Registry) -> None:
    """Add a check that takes a launch line, of an engine called "one", beside one that takes none."""

    def check(settings, launch):
        return [CheckResult("fail" if "bad" in launch else "ok", f"launch {launch!r}")] * (
            not launch or "one" in launch
        )

    registry.add(mine(check, takes_launch=True), EXTRA)
    other = CheckSpec(name="other", factory=lambda settings: CheckResult("warn", "slow", "buy"), summary="")
    registry.add(plugin(checks=[other]), Owner("other", "acme", "1.2"))


@pytest.mark.parametrize(
    ("arguments", "checks", "first"),
    [
        ([], ["settings", "mine", "other"], "Nothing failed, with 1 warning."),
        (["--launch", LINE], ["mine"], f"The server starts: launch {LINE!r}"),
        (["--launch", LINE, "--all"], ["settings", "mine", "other"], "Nothing failed, with 1 warning."),
        (["--launch", "one bad"], ["mine"], "The server does not start: launch 'one bad'"),
        (
            ["--launch", "two serve"],
            ["launch"],
            "The server does not start: no check knows the launch line 'two serve'",
        ),
    ],
)
def test_a_launch_line_is_looked_at_alone_and_the_verdict_comes_first(registry, arguments, checks, first):
    add_launch_checks(registry)
    code = int("not" in first)
    report = json.loads(run("doctor", "--json", *arguments, code=code))
    assert [check["check"] for check in report["checks"]] == checks
    assert report["ok"] == (code == 0)
    assert ("settings" in report) == ("settings" in checks)
    assert run("doctor", *arguments, code=code).startswith(first)


@pytest.mark.parametrize("columns", ["80", "60"])
def test_names_are_whole_on_narrow_terminals(monkeypatch, columns):
    monkeypatch.setattr("specplug.tools.cli.output._PIPED_WIDTH", int(columns))
    narrow = {"COLUMNS": columns, "TERMINAL_DRAFT_LENGTH": columns}
    listed = invoke("list", env=narrow).output
    for name in ("ngram-reference", "retrieval", "transformers", "sglang launch"):
        assert name in listed
    stated = invoke("replay", "--help", env=narrow).output
    for name in ("--cut-documents", "--distractors", "PLUGIN.KEY=VALUE"):
        assert name in stated
    assert "--num-speculative-tokens" in invoke("generate", "--help", env=narrow).output
