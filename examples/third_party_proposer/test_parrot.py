"""The conformance kit on one's own proposer: inherit, name the spec, done."""

from specplug import ProposerCaps, ProposerSpec
from specplug.testing.contract import ProposerContract


class TestParrot(ProposerContract):
    spec = ProposerSpec(
        name="parrot",
        factory="specplug_parrot:Parrot",
        summary="repeats itself",
        caps=ProposerCaps(needs_host=True),
    )
