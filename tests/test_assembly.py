"""The stages as settings build them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
import torch

from specplug.assembly import build_draft_stage, build_plan_stage, build_verifier, try_to_build
from specplug.corpus.store import Store
from specplug.errors import CorpusError, PluginError, SettingsError
from specplug.interfaces import Planner, PluginContext
from specplug.plugins.registry import Registry, default_registry
from specplug.plugins.specs import PolicySpec, ProposerSpec, VerifierSpec
from specplug.settings.model import CorporaSettings, Settings
from specplug.steps.handles import HostHandle, ProposerHandle
from specplug.steps.trim import SurvivalTrimmer
from specplug.text.fingerprint import Fingerprint
from specplug.types.caps import Distribution, EngineCaps, ProposerCaps, VerifierCaps
from specplug.types.plan import HostStats
from specplug.types.step import Draft, StepPlan
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms
from specplug.verify.reference import ReferenceVerifier
from tests.plugins.planted import registry_of
from tests.steps.tools import Recorder

META = PluginContext(EngineCaps(4), vocab_size=16, max_slots=2, max_length=32, device=torch.device("meta"))


class Started(Recorder):
    """Keeps the context that it was built with, and notes that it was warmed up."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__()
        self.context = context

    def warmup(self) -> None:
        self._called("warmup")


class Compiled(Started):
    """Has a step for batches in host memory, as a C function."""

    def host_step(self) -> None:
        raise AssertionError("nobody calls it")


class CompiledTrimmer(SurvivalTrimmer):
    def host_trim(self) -> None:
        raise AssertionError("nobody calls it")


class TakesProbs(ReferenceVerifier):
    """Notes the drafts that it is handed."""

    handed: ClassVar[list[Draft]] = []

    def verify(self, draft, target, sampling, uniforms):
        self.handed.append(draft)
        return super().verify(draft, target, sampling, uniforms)


class Always(Planner):
    """Plans one draft length, or fails."""

    def __init__(self, context: PluginContext) -> None:
        self._draft_length = context.caps.max_draft_length

    def plan(self, stats: HostStats) -> StepPlan:
        if stats.step < 0:
            raise ZeroDivisionError("planted")
        return StepPlan(self._draft_length)


def broken(_context: PluginContext) -> None:
    raise ZeroDivisionError("planted in a factory")


def anywhere(device: str) -> ProposerCaps:
    return ProposerCaps(needs_host=True, inline=True) if device == "cpu" else ProposerCaps()


def leaving(_context: PluginContext) -> None:
    raise SystemExit(3)


def nothing(_context: PluginContext) -> object:
    return ("nothing that drafts",)


def mistaken(_context: PluginContext) -> None:
    raise SettingsError("a mistake in its options, explained")


def broken_warmup(context: PluginContext) -> Started:
    proposer = Started(context)
    proposer.fails = {"warmup"}
    return proposer


def proposer(name: str, factory: object = Started, caps: object = None, **more: object) -> ProposerSpec:
    return ProposerSpec(name=name, factory=factory, summary="", caps=caps or ProposerCaps(), **more)  # type: ignore[arg-type]


def policy(name: str, factory: object = Always, trimmer: object = SurvivalTrimmer) -> PolicySpec:
    return PolicySpec(name=name, factory=factory, summary="", trimmer=trimmer)  # type: ignore[arg-type]


def verifier(name: str, factory: object, *distributions: Distribution) -> VerifierSpec:
    caps = VerifierCaps(lossless=True, **({"distributions": distributions} if distributions else {}))
    return VerifierSpec(name=name, factory=factory, summary="", caps=caps)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return registry_of(
        proposers=[
            proposer("dev"),
            proposer("cold", broken_warmup),
            proposer("bad", broken),
            proposer("wrong", mistaken),
            proposer("exits", leaving),
            proposer("no proposer", nothing),
            proposer("host", caps=ProposerCaps(needs_host=True)),
            proposer("quick", caps=ProposerCaps(needs_host=True, inline=True)),
            proposer("anywhere", caps=anywhere),
            proposer("compiled", Compiled),
            proposer("nowhere", caps=broken),
            proposer("reads corpora", sections=("corpora",)),
            proposer("reads too much", sections=("corpora", "proposer")),
        ],
        policies=[
            policy("always"),
            policy("compiled", trimmer=CompiledTrimmer),
            policy("bad", broken, broken),
            policy("no policy", nothing, nothing),
        ],
        verifiers=[
            verifier("bad", broken),
            verifier("takes probs", TakesProbs, Distribution.PROBS),
            verifier("no verifier", nothing),
        ],
    )


def settings(**changes) -> Settings:
    return Settings(**{"proposer": "dev", "policy": "always", "verifier": "bad"} | changes)


def test_proposers_are_built_warmed_up_and_placed_where_they_need_to_be(registry):
    stage = build_draft_stage(settings(extra_proposers=("host",)), registry, META)
    device, host = (runner.handle for runner in stage.runners)
    assert (type(device), type(host)) == (ProposerHandle, HostHandle)
    assert device.proposer.context.device == torch.device("meta")
    assert host.proposer.context.device == torch.device("cpu")
    assert device.proposer.calls == host.proposer.calls == ["warmup"]
    assert stage.sources == ("dev", "host")
    stage.close()


def test_shared_settings_reach_only_who_registered_for_them(registry):
    corpora = CorporaSettings(max_tokens=7)
    stage = build_draft_stage(settings(extra_proposers=("reads corpora",), corpora=corpora), registry, META)
    assert {name: it.context.sections for name, it in stage.proposers.items()} == {
        "dev": {},
        "reads corpora": {"corpora": corpora},
    }
    stage.close()
    with pytest.raises(
        PluginError, match=r"'reads too much': no such section .*\['proposer'\]; expected .*corpora, costs, trace"
    ):
        build_draft_stage(settings(proposer="reads too much"), registry, META)


@pytest.mark.parametrize(("device", "expected"), [("cpu", ProposerHandle), ("meta", HostHandle)])
def test_a_quick_host_proposer_runs_inline_where_the_batch_lies_in_host_memory(registry, device, expected):
    context = replace(META, device=torch.device(device))
    stage = build_draft_stage(settings(proposer="quick"), registry, context)
    [handle] = [runner.handle for runner in stage.runners]
    assert type(handle) is expected
    assert handle.proposer.context.device == torch.device("cpu")
    stage.close()


@pytest.mark.parametrize(("device", "expected"), [("cpu", ProposerHandle), ("meta", ProposerHandle)])
def test_capabilities_are_those_of_the_engines_device(registry, device, expected):
    context = replace(META, device=torch.device(device))
    stage = build_draft_stage(settings(proposer="anywhere"), registry, context)
    [handle] = [runner.handle for runner in stage.runners]
    assert type(handle) is expected
    assert handle.caps == anywhere(device)
    assert handle.proposer.context.device == context.device
    stage.close()


@pytest.mark.parametrize(("milliseconds", "seconds"), [(250.0, 0.25), (None, None)])
def test_the_deadline_is_given_in_milliseconds(registry, milliseconds, seconds):
    faults = {"host_deadline_ms": milliseconds, "max_consecutive": 2, "cooldown_steps": 5}
    stage = build_draft_stage(settings(proposer="host", faults=faults), registry, META)
    [runner] = stage.runners
    handle = runner.handle
    guard = runner.guard
    assert handle._deadline == seconds
    assert (guard.name, guard._max_consecutive, guard._cooldown_steps) == ("host", 2, 5)
    stage.close()


def test_a_planners_faults_reach_the_sink(registry):
    found = []
    stage = build_plan_stage(settings(), registry, META, lambda name, kind: found.append((name, kind)))
    assert stage.plan(HostStats(0, ())).draft_length == 4
    assert stage.plan(HostStats(-1, ())).draft_length == 0
    assert found == [("policy always", "raised")]


@pytest.mark.parametrize(("ranks", "draft_ranks"), [(1, "each"), (2, "first"), (2, "each")])
def test_faults_are_contained_unless_several_ranks_each_draft(registry, ranks, draft_ranks):
    several = replace(META, caps=replace(META.caps, tensor_parallel_size=ranks))
    stage = build_draft_stage(settings(draft_ranks=draft_ranks), registry, several)
    for guard in (stage.runners[0].guard, stage.trimmer_guard):
        if (ranks, draft_ranks) == (2, "each"):
            with pytest.raises(SystemExit):
                guard.step(partial(broken, META))
        else:
            assert guard.step(partial(broken, META)) is False
    stage.close()


def test_mode_off_plans_no_speculation(registry):
    stage = build_plan_stage(settings(mode="off"), registry, META, lambda *_: None)
    assert stage.plan(HostStats(0, ())).draft_length == 0


BUILDS = {
    "draft": lambda found, registry: build_draft_stage(found, registry, META),
    "plan": lambda found, registry: build_plan_stage(found, registry, META, lambda *_: None),
    "verifier": lambda found, registry: build_verifier(found, registry, META),
}
PLANTED = "does not start; found ZeroDivisionError: planted"
NO_KIND = r"found \('nothing that drafts',\) from its factory; expected a specplug.%s\."


@pytest.mark.parametrize(
    ("build", "changes", "message"),
    [
        ("draft", {"proposer": "bad"}, f"proposer 'bad' {PLANTED}"),
        ("draft", {"proposer": "cold"}, f"proposer 'cold' {PLANTED}"),
        ("draft", {"proposer": "exits"}, "proposer 'exits' does not start; found SystemExit: 3"),
        ("draft", {"proposer": "nowhere"}, "proposer 'nowhere': capabilities on 'meta' are not known; found 'Zero"),
        ("draft", {"policy": "bad"}, f"policy 'bad' {PLANTED}"),
        ("plan", {"policy": "bad"}, f"policy 'bad' {PLANTED}"),
        ("verifier", {}, f"verifier 'bad' {PLANTED}"),
        ("draft", {"proposer": "no proposer"}, NO_KIND % "Proposer"),
        ("plan", {"policy": "no policy"}, NO_KIND % "Planner"),
        ("draft", {"policy": "no policy"}, NO_KIND % "Trimmer"),
        ("verifier", {"verifier": "no verifier"}, NO_KIND % "Verifier"),
        ("draft", {"proposer": "compiled"}, r"proposer 'compiled'.*a method host_step; expected `step` on the engine"),
        ("draft", {"policy": "compiled"}, r"policy 'compiled'.*a method host_trim.*see docs/upgrading.md"),
        ("draft", {"proposer": "wrong"}, r"^a mistake in its options, explained$"),
    ],
)
def test_what_fails_at_start_up_is_named_and_errors_that_explain_themselves_are_left_alone(
    registry, build, changes, message
):
    with pytest.raises((PluginError, SettingsError), match=message):
        BUILDS[build](settings(**changes), registry)


def test_capabilities_of_old_plug_ins_are_refused_with_what_to_declare_now():
    with pytest.raises(PluginError, match=r"host_step=True\); expected .*, or needs_host=True"):
        ProposerCaps(needs_host=True, inline=True, host_step=True)
    assert replace(ProposerCaps(learns=True), trees=True) == ProposerCaps(learns=True, trees=True)


def test_the_message_shows_where_in_the_plug_in_it_failed(registry):
    with pytest.raises(PluginError) as caught:
        build_plan_stage(settings(policy="bad"), registry, META, lambda *_: None)
    remedy, place, line = str(caught.value).splitlines()
    assert remedy.endswith("or choose another one. It was raised here:")
    assert f'File "{__file__}"' in place
    assert place.endswith("in broken")
    assert line.strip() == 'raise ZeroDivisionError("planted in a factory")'


@pytest.mark.parametrize("stated", list(Distribution))
def test_a_verifier_is_handed_what_it_declares(registry, stated):
    verifier = build_verifier(settings(verifier="takes probs"), registry, META)
    draft = Draft.allocate(1, 2, distribution=stated, vocab_size=4)
    uniforms = Uniforms(torch.zeros(1, 2), torch.zeros(1, 3))
    verifier.verify(draft, TargetLogits.dense(torch.zeros(1, 3, 4)), SamplingBatch(torch.zeros(1)), uniforms)
    handed = TakesProbs.handed.pop()
    if stated is Distribution.LOGITS:
        assert (handed.distribution, handed.draft_logits) == (Distribution.ONE_HOT, None)
    else:
        assert handed is draft


def test_a_trial_of_a_proposer_makes_no_corpus_store(tmp_path):
    """It would be of no tokenizer, and servers would refuse it."""
    settings = Settings(corpora=CorporaSettings(store=str(tmp_path / "store")))
    registry = default_registry()
    context = PluginContext(EngineCaps(4), vocab_size=64, max_length=64)
    try_to_build(registry.get(ProposerSpec, "retrieval"), settings, registry, context)
    assert [*tmp_path.iterdir()] == []
    Store.create(tmp_path / "store", Fingerprint("any", "0" * 32, 64))
    try_to_build(registry.get(ProposerSpec, "retrieval"), settings, registry, context)
    (tmp_path / "store" / "store.json").write_text("torn")
    with pytest.raises(CorpusError):
        try_to_build(registry.get(ProposerSpec, "retrieval"), settings, registry, context)
