"""Registry that discovers plug-ins and holds what they register.

A plug-in that fails to load is recorded with its error and skipped; the others stay usable.  Two plug-ins with one name
are an error that names both owners; it is raised when that name is looked up, and `specplug list` shows it.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import pluggy

from specplug.errors import PluginError, describe, ends_process, suggest
from specplug.plugins import specs
from specplug.plugins.specs import (
    ENGINE_DRAFTER,
    ENTRY_POINT_GROUP,
    JOINS_POLICIES,
    CheckSpec,
    PluginSpec,
    PolicySpec,
    ProposerSpec,
    VerifierSpec,
)

S = TypeVar("S", bound=PluginSpec)

_HOOKS: dict[str, type[PluginSpec]] = {
    "specplug_register_proposers": ProposerSpec,
    "specplug_register_policies": PolicySpec,
    "specplug_register_verifiers": VerifierSpec,
    "specplug_register_checks": CheckSpec,
}

KINDS: dict[str, type[PluginSpec]] = {spec.kind: spec for spec in _HOOKS.values()}
"""Every kind of plug-in, in the order of listings."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The package that provides a plug-in."""

    plugin: str
    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version} (entry point {self.plugin!r})"


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """One registered plug-in and its owner."""

    spec: PluginSpec
    owner: Owner


@dataclass(frozen=True, slots=True)
class LoadError:
    """A plug-in that was skipped, the stage at which it failed, and the error."""

    owner: Owner
    stage: str
    error: str


class Registry:
    """The plug-ins of one process.  `Registry.discover()` finds the installed ones; `add` takes a module directly."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
        self._manager.add_hookspecs(specs)
        self._entries: dict[str, dict[str, list[PluginEntry]]] = {spec.kind: {} for spec in _HOOKS.values()}
        self._errors: list[LoadError] = []

    @classmethod
    def discover(cls) -> Registry:
        """Load every entry point of the group `specplug`, built-ins and third parties alike, in name order."""
        registry = cls()
        found = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
        for entry_point in sorted(found, key=lambda e: (e.dist.name if e.dist else "", e.name)):
            dist = entry_point.dist
            owner = Owner(entry_point.name, dist.name if dist else "unknown", dist.version if dist else "?")
            with registry._recording(owner, f"import of {entry_point.value!r}"):
                registry.add(entry_point.load(), owner)
        return registry

    def add(self, module: Any, owner: Owner) -> None:
        """Call the hooks of `module`; record the ones that fail and keep what the others register."""
        name = f"{owner.package}:{owner.plugin}"
        is_checked = False
        with self._recording(owner, "hook signatures"):
            self._manager.register(module, name)
            self._manager.check_pending()
            is_checked = True
        if not is_checked:
            if self._manager.has_plugin(name):  # a hook that stays pending would fail every later plug-in's check
                self._manager.unregister(name=name)
            return
        callers = self._manager.get_hookcallers(module)
        if not callers:
            found = "no function marked with specplug.hookimpl"
            expected = f"one of {', '.join(_HOOKS)}"
            with self._recording(owner, "hooks"):
                raise PluginError.build("the module registers nothing", found=found, expected=expected)
        for caller in callers or ():
            impl = next(impl for impl in caller.get_hookimpls() if impl.plugin_name == name)
            register = functools.partial(self._take, owner, caller.name, _HOOKS[caller.name])
            with self._recording(owner, caller.name):
                impl.function(register)

    def _take(self, owner: Owner, hook: str, expected: type[PluginSpec], spec: PluginSpec) -> None:
        wrong: tuple[str, str, str] | None = None
        if type(spec) is not expected:
            wrong = ("wrong kind of plug-in", type(spec).__name__, expected.__name__)
        elif spec.kind == ProposerSpec.kind and spec.name == ENGINE_DRAFTER:
            wrong = ("reserved name", repr(spec.name), "a name other than the engine's own drafter's")
        elif spec.kind == PolicySpec.kind and JOINS_POLICIES in spec.name:
            wanted = f"a name without {JOINS_POLICIES!r}, which joins the names of policies"
            wrong = ("reserved character", repr(spec.name), wanted)
        if wrong is not None:
            what, found, wanted = wrong
            raise PluginError.build(what, who=hook, found=found, expected=wanted)
        self._entries[spec.kind].setdefault(spec.name, []).append(PluginEntry(spec, owner))

    @contextmanager
    def _recording(self, owner: Owner, stage: str) -> Iterator[None]:
        """Record what a package's code raises, so that one broken package does not hide the others."""
        try:
            yield
        except BaseException as error:
            if ends_process(error):
                raise
            self._errors.append(LoadError(owner, stage, describe(error)))

    @property
    def load_errors(self) -> tuple[LoadError, ...]:
        """Return the plug-ins that were skipped, and duplicate names."""
        doubles = (
            LoadError(entries[1].owner, f"{kind} {name!r}", _duplicate(kind, name, entries))
            for kind, names in self._entries.items()
            for name, entries in names.items()
            if len(entries) > 1
        )
        return (*self._errors, *doubles)

    def entries(self, spec_type: type[S]) -> Mapping[str, PluginEntry]:
        """Return a read-only mapping from name to plug-in of one kind; a duplicate name maps to its first owner."""
        named = self._entries[spec_type.kind]
        return MappingProxyType({name: named[name][0] for name in sorted(named)})

    def get(self, spec_type: type[S], name: str) -> S:
        """Return one plug-in.

        Raises:
            PluginError: no plug-in of that kind has the name, or several do.
        """
        named = self._entries[spec_type.kind]
        if spec_type.kind == ProposerSpec.kind and name == ENGINE_DRAFTER:
            raise PluginError.build(
                "the engine's own drafter is not used here",
                found=f"proposer {name!r}",
                expected=f"one of {', '.join(sorted(named))}",
                remedy="Start the engine with one of its own speculative methods; see docs/engine-drafters.md",
            )
        if name not in named:
            broken = f" Plug-ins that failed to load: {self._broken()}." if self._errors else ""
            raise PluginError.build(
                f"unknown {spec_type.kind} {name!r}",
                remedy=f"{suggest(name, named)}.{broken} See 'specplug list'",
            )
        if len(named[name]) > 1:
            raise PluginError(_duplicate(spec_type.kind, name, named[name]))
        spec = named[name][0].spec
        assert isinstance(spec, spec_type)
        return spec

    def _broken(self) -> str:
        return "; ".join(sorted({f"{error.owner}: {error.error}" for error in self._errors}))


def _duplicate(kind: str, name: str, entries: Iterable[PluginEntry]) -> str:
    owners = " and ".join(str(entry.owner) for entry in entries)
    return f"{kind} {name!r} is registered twice, by {owners}; expected one owner. Uninstall or rename one of them"


@functools.cache
def default_registry() -> Registry:
    """Return the registry of the installed plug-ins, discovered once per process."""
    return Registry.discover()
