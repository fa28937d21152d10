"""specplug's conformance kit: the docstring of each inherited test is a clause of the contract."""

from specplug import VerifierSpec, default_registry
from specplug.testing import VerifierContract


class TestExample(VerifierContract):
    spec = default_registry().get(VerifierSpec, "example")
