"""Conformance kit applied to one's own proposer: inherit the contract and set the spec."""

from specplug import ProposerCaps, ProposerSpec
from specplug.testing.contract import ProposerContract


class TestParrot(ProposerContract):
    spec = ProposerSpec(
        name="parrot",
        factory="specplug_parrot:Parrot",
        summary="repeats itself",
        caps=ProposerCaps(needs_host=True),
    )
