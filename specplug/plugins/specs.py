"""Specs that plug-ins register, each a name, capabilities and a factory, and the hooks for it.  Imports no torch.

A factory is either a callable or an import path ``"package.module:Name"``.  Prefer the path, because listing the
plug-ins then imports none of their code.

A plug-in package names a module in the entry-point group ``specplug``.  Functions of that module that are marked with
``specplug.hookimpl`` and have one of the hooks' names receive a `register` callback:

    import specplug

    @specplug.hookimpl
    def specplug_register_proposers(register):
        register(specplug.ProposerSpec(name="echo", factory="my_package:Echo", summary="...", caps=...))
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pluggy

from specplug.errors import PluginError, describe, ends_process, text_of
from specplug.types.caps import ProposerCaps, VerifierCaps

Factory = str | Callable[..., Any]
LISTED_DEVICES = ("cpu", "cuda")
"""The device types whose capabilities listings show."""

JOINS_POLICIES = "+"
"""Stands between the names of joined policies, so that no policy's own name may contain it."""

SURVIVAL_TRIMMER = "specplug.steps.trim:SurvivalTrimmer"
"""The default trim half."""

ENGINE_DRAFTER = "engine"
"""The proposer's name that stands for the engine's own drafter, such as EAGLE; no plug-in may use it."""

HYBRID = "hybrid"
"""The proposer whose model may be the engine's own drafter, whose drafts a lookup then continues."""


def resolve(factory: Factory, who: str) -> Callable[..., Any]:
    """Return the callable that a factory names.

    Raises:
        PluginError: the path is malformed, its module does not import, or it lacks the name.
    """
    if not isinstance(factory, str):
        return factory
    module, separator, name = factory.partition(":")
    if not separator:
        raise PluginError.build("malformed factory", who=who, found=repr(factory), expected="'package.module:Name'")
    try:
        found = getattr(importlib.import_module(module), name)
    except BaseException as error:
        if ends_process(error):
            raise
        raise PluginError.build(
            f"cannot load {factory!r}",
            who=who,
            found=describe(error),
            expected=f"a callable {name!r} in module {module!r}",
        ) from error
    if not callable(found):
        raise PluginError.build("factory is not callable", who=who, found=type(found).__name__, expected="a callable")
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class PluginSpec:
    """Fields that every kind of plug-in has.

    Attributes:
        name: unique among plug-ins of its kind.
        factory: builds it; see the kinds for its arguments.
        summary: one line for listings.
        options: import path or class of the pydantic model of its own settings; None when it has none.
        sections: names of the shared sections of the server's settings (see `specplug.settings.Settings`) that the
            plug-in reads besides its own; it finds them in `PluginContext.sections`.
    """

    kind: ClassVar[str]
    name: str
    factory: Factory
    summary: str
    options: Factory | None = None
    sections: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Replace subclasses of `str`, whose own methods may raise wherever a message is built from a name."""
        for name in ("name", "summary"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise PluginError.build(
                    f"{name} is not a string", who=f"a {self.kind}", found=text_of(value, repr), expected="a string"
                )
            object.__setattr__(self, name, str.__str__(value))

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Resolve the factory and call it."""
        return resolve(self.factory, f"{self.kind} {self.name!r}")(*args, **kwargs)

    def options_model(self) -> type[Any] | None:
        """Return the pydantic model of this plug-in's settings, or None."""
        if self.options is None:
            return None
        return resolve(self.options, f"{self.kind} {self.name!r}")  # type: ignore[return-value]

    def labels(self) -> tuple[str, ...]:
        """Return short labels of its capabilities, for listings."""
        return ()


@dataclass(frozen=True, kw_only=True)
class ProposerSpec(PluginSpec):
    """A proposer: ``factory(context: PluginContext) -> Proposer``.

    Attributes:
        caps: its capabilities.  If they depend on the device, a callable ``caps(device: str) -> ProposerCaps``, or
            the callable's import path.  `device` is the type of the device that holds the batches: "cpu", "cuda".
        memory: ``memory(context) -> int``, or its import path.  It returns the peak number of bytes that the proposer
            uses on `context.device`, counting weights, caches and the temporaries of a step, and is called before the
            proposer is built.  None: a negligible amount.
    """

    kind: ClassVar[str] = "proposer"
    caps: ProposerCaps | Factory
    memory: Factory | None = None

    def memory_for(self, context: Any) -> int:
        """Return how many bytes the proposer uses when built with a `PluginContext`."""
        return 0 if self.memory is None else int(resolve(self.memory, f"proposer {self.name!r}")(context))

    def caps_for(self, device: str) -> ProposerCaps:
        """Return the proposer's capabilities for batches on a device of type `device`.

        Raises:
            PluginError: `caps` cannot be imported, raises, or returns something else.
        """
        if isinstance(self.caps, ProposerCaps):
            return self.caps
        who = f"proposer {self.name!r}"
        ask = resolve(self.caps, who)
        try:
            found = ask(device)
        except BaseException as error:
            if ends_process(error):
                raise
            found = describe(error)
        if isinstance(found, ProposerCaps):
            return found
        what = f"capabilities on {device!r} are not known"
        raise PluginError.build(what, who=who, found=repr(found), expected="a specplug.ProposerCaps from its `caps`")

    def labels(self) -> tuple[str, ...]:
        """Return its capabilities; a label that holds for some devices only names them."""
        found = {device: self.caps_for(device).labels() for device in LISTED_DEVICES}
        every = dict.fromkeys(label for labels in found.values() for label in labels)
        devices = {label: [device for device, labels in found.items() if label in labels] for label in every}
        return tuple(label if len(on) == len(found) else f"{label} on {', '.join(on)}" for label, on in devices.items())


@dataclass(frozen=True, kw_only=True)
class PolicySpec(PluginSpec):
    """A policy in two halves that share no state: ``factory(context) -> Planner``, ``trimmer(context) -> Trimmer``."""

    kind: ClassVar[str] = "policy"
    trimmer: Factory = SURVIVAL_TRIMMER

    def build_trimmer(self, *args: Any, **kwargs: Any) -> Any:
        """Resolve the trim half and build it."""
        return resolve(self.trimmer, f"policy {self.name!r}")(*args, **kwargs)


def trimming_policy(policies: Sequence[PolicySpec]) -> PolicySpec:
    """Return the one of several joined policies whose trim half runs: the one that does not take the default.

    Raises:
        PluginError: several have trim halves of their own.
    """
    own = [policy for policy in policies if policy.trimmer != SURVIVAL_TRIMMER]
    if len(own) > 1:
        raise PluginError.build(
            "policies with trim halves of their own cannot be joined",
            found=" and ".join(repr(policy.name) for policy in own),
            expected="at most one; the others take the default, specplug.steps.trim.SurvivalTrimmer",
            remedy="Leave one of them out",
        )
    return own[0] if own else policies[0]


@dataclass(frozen=True, kw_only=True)
class VerifierSpec(PluginSpec):
    """A verifier: ``factory(context) -> Verifier``.  A verifier that is not lossless must declare so in its `caps`."""

    kind: ClassVar[str] = "verifier"
    caps: VerifierCaps

    def labels(self) -> tuple[str, ...]:
        return self.caps.labels()


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a check.  status: "ok", "warn" or "fail"; the latter two come with a remedy."""

    status: str
    summary: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckSpec(PluginSpec):
    """A check for ``specplug doctor``: ``factory(settings: Settings) -> CheckResult | list[CheckResult]``.

    If `takes_launch`, the factory also takes `launch: str`, the engine's launch line given to doctor, or "" without
    one.
    """

    kind: ClassVar[str] = "check"
    takes_launch: bool = False


ENTRY_POINT_GROUP = "specplug"

hookspec = pluggy.HookspecMarker(ENTRY_POINT_GROUP)
hookimpl = pluggy.HookimplMarker(ENTRY_POINT_GROUP)


@hookspec
def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
    """Register proposers, which draft tokens."""


@hookspec
def specplug_register_policies(register: Callable[[PolicySpec], None]) -> None:
    """Register policies, which choose draft lengths and the draft tokens worth verifying."""


@hookspec
def specplug_register_verifiers(register: Callable[[VerifierSpec], None]) -> None:
    """Register verifiers, which decide which draft tokens are accepted."""


@hookspec
def specplug_register_checks(register: Callable[[CheckSpec], None]) -> None:
    """Register checks that `specplug doctor` runs."""
