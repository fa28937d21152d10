"""specplug's conformance kit: the docstring of each inherited test is a clause of the contract."""

from specplug import PolicySpec, default_registry
from specplug.testing import PolicyContract


class TestExample(PolicyContract):
    spec = default_registry().get(PolicySpec, "example")
