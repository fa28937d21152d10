"""Proposers that never draft, for measuring the adapter's own cost."""

from __future__ import annotations

import specplug
from specplug import ProposerCaps, ProposerSpec


class SilentHost(specplug.HostProposer):
    """Reads every request and drafts nothing."""

    def draft(self, tokens, limit, request):  # type: ignore[no-untyped-def]
        return ()


class SilentDevice(specplug.Proposer):
    """Leaves the empty draft unchanged."""

    def __init__(self, context):  # type: ignore[no-untyped-def]
        pass

    def propose(self, batch, limits, draft):  # type: ignore[no-untyped-def]
        pass


@specplug.hookimpl
def specplug_register_proposers(register):  # type: ignore[no-untyped-def]
    """Register both proposers."""
    register(
        ProposerSpec(
            name="silent-host",
            factory="specplug_silent:SilentHost",
            summary="never drafts, on the host",
            caps=ProposerCaps(needs_host=True),
        )
    )
    register(
        ProposerSpec(name="silent", factory="specplug_silent:SilentDevice", summary="never drafts", caps=ProposerCaps())
    )
