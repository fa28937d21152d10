"""specplug's conformance kit: the docstring of each inherited test is a clause of the contract."""

from specplug import ProposerSpec, default_registry
from specplug.testing import ProposerContract


class TestExample(ProposerContract):
    spec = default_registry().get(ProposerSpec, "example")
