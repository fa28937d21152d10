"""Registers the test plug-ins."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import PolicySpec, ProposerSpec, hookimpl
from specplug.types.caps import Distribution, ProposerCaps

HOST = ProposerCaps(needs_host=True)
DEVICE = ProposerCaps()
LEARNS = ProposerCaps(needs_host=True, learns=True)
TREES = ProposerCaps(needs_host=True, trees=True)
LOGITS = ProposerCaps(distribution=Distribution.LOGITS)
PROBS = ProposerCaps(distribution=Distribution.PROBS)

ON_DEVICE = ProposerCaps(distribution=Distribution.LOGITS, learns=True)

PROPOSERS = {
    "oracle": ("oracle:Oracle", "OracleOptions", HOST, "the right continuation, with errors where told"),
    "thicket": ("thicket:Thicket", None, TREES, "the right continuation among wrong siblings, in trees"),
    "branches": ("thicket:Branches", "BranchesOptions", TREES, "the same tokens behind each, in trees"),
    "bigram": ("bigram:Bigram", None, DEVICE, "what followed the last token, in plain torch on the device"),
    "uniform": ("drawn:Drawn", "DrawnOptions", LOGITS, "tokens at random, with their logits"),
    "uniform-probs": ("drawn:Drawn", "DrawnOptions", PROBS, "tokens at random, with their probabilities"),
    "tiny-model": ("tiny_model:TinyModel", None, PROBS, "a draft model over half of the vocabulary"),
    "crosstok-device": (
        "composed:crosstok_on_device",
        "specplug_crosstok.options:CrossTokSettings",
        ON_DEVICE,
        "a draft model on the engine's device, on a CPU too",
    ),
    "raises": ("broken:RaisesOnHost", "RaisesOptions", LEARNS, "raises when told, on the host"),
    "raises-device": ("broken:RaisesOnDevice", "RaisesOptions", ProposerCaps(learns=True), "raises when told"),
    "garbage": ("broken:GarbageOnHost", None, HOST, "malformed drafts from the host"),
    "garbage-device": ("broken:GarbageOnDevice", None, DEVICE, "malformed drafts from the device"),
    "slow": ("broken:Slow", "SlowOptions", HOST, "takes its time"),
    "spliced": ("composed:Spliced", "SplicedOptions", ProposerCaps(learns=True), "what its parts draft, spliced"),
    "launched": ("launched:Launched", None, DEVICE, "ngram in compiled code that is launched like kernels"),
    "recorder": ("recorder:Recorder", None, LEARNS, "drafts like ngram and records what it is told"),
}


def spec_of(name: str) -> ProposerSpec:
    """Return the specification of one proposer."""
    factory, options, caps, summary = PROPOSERS[name]
    return ProposerSpec(
        name=name,
        factory=factory if factory.startswith("specplug_") else f"specplug_testkit.{factory}",
        summary=summary,
        options=options if options is None or ":" in options else f"specplug_testkit.options:{options}",
        caps=caps,
        memory="specplug_testkit.tiny_model:memory" if name == "tiny-model" else None,
    )


@hookimpl
def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
    for name in PROPOSERS:
        register(spec_of(name))


@hookimpl
def specplug_register_policies(register: Callable[[PolicySpec], None]) -> None:
    register(
        PolicySpec(
            name="ladder",
            factory="specplug_testkit.policies:Ladder",
            summary="another width at every step",
            options="specplug_testkit.options:LadderOptions",
        )
    )
    register(
        PolicySpec(
            name="listener",
            factory="specplug_testkit.policies:Listener",
            summary="a ladder that keeps its reports",
            options="specplug_testkit.options:LadderOptions",
        )
    )
    register(
        PolicySpec(
            name="learner",
            factory="specplug_testkit.policies:LearningPlanner",
            trimmer="specplug_testkit.policies:LearningTrimmer",
            summary="learns how far drafts are accepted",
        )
    )
