"""Built-in plug-ins of the core, registered through the same hooks as third-party ones."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import CheckSpec, VerifierSpec, hookimpl
from specplug.types.caps import Distribution, VerifierCaps


@hookimpl
def specplug_register_verifiers(register: Callable[[VerifierSpec], None]) -> None:
    """Register the verifiers: the reference and two lossy ones."""
    register(
        VerifierSpec(
            name="reference",
            factory="specplug.verify.reference:ReferenceVerifier",
            summary="rejection sampling in plain torch: the reference for faster verifiers",
            caps=VerifierCaps(lossless=True, distributions=(Distribution.LOGITS, Distribution.PROBS)),
        )
    )
    lossy = VerifierCaps(lossless=False, distributions=(Distribution.LOGITS, Distribution.PROBS), thresholds=True)
    register(
        VerifierSpec(
            name="threshold",
            factory="specplug.verify.lossy:ThresholdVerifier",
            options="specplug.settings.model:ThresholdSettings",
            summary="lossy: accepts tokens of at least a share of the largest probability",
            caps=lossy,
        )
    )
    register(
        VerifierSpec(
            name="typical",
            factory="specplug.verify.lossy:TypicalVerifier",
            options="specplug.settings.model:TypicalSettings",
            summary="lossy: Medusa's typical acceptance, which asks less where the target is uncertain",
            caps=lossy,
        )
    )


@hookimpl
def specplug_register_checks(register: Callable[[CheckSpec], None]) -> None:
    """Register the checks of `specplug doctor` that need no engine."""
    own = "specplug.tools.cli.machine"
    register(CheckSpec(name="environment", factory=f"{own}:environment", summary="versions and devices"))
    register(CheckSpec(name="plug-ins", factory=f"{own}:plugins", summary="every plug-in loads"))
