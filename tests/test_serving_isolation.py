"""Different tenants, engine keys and adapters have different isolation keys, whatever clients call themselves."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from specplug.serving.isolation import isolation_key

TEXTS = st.text(alphabet="a1/:'\",()\\ \ud83d\ude00\U0001f600", max_size=6) | st.sampled_from(
    ["a/lora:1", "lora:1", "tenant", "engine", "None", "a', None)"]
)
ENGINES = st.tuples(st.none() | TEXTS) | st.tuples(st.none() | TEXTS, st.none() | TEXTS)
LORAS = st.none() | st.integers(1, 3) | TEXTS
ASKED = st.tuples(st.none() | TEXTS, ENGINES, LORAS)


def meant(tenant, engine, lora_id):
    """Return what tells requests apart: the tenant, else the engine's own key, with the adapter."""
    if tenant is not None:
        return "tenant", tenant, lora_id
    own = tuple(part or None for part in engine)
    return ("nobody",) if lora_id is None and not any(own) else ("engine", own, lora_id)


@given(one=ASKED, other=ASKED)
@example(one=("a/lora:1", (None,), None), other=("a", (None,), 1))
@example(one=("x", (None,), None), other=(None, ("x",), None))
@example(one=("a", (None,), 1), other=("a", (None,), "1"))
@example(one=(None, ("a", "b"), None), other=(None, ("a/b", None), None))
@example(one=("\ud83d\ude00", (None,), None), other=("\U0001f600", (None,), None))
def test_keys_are_equal_where_requests_may_share_and_nowhere_else(one, other):
    assert (isolation_key(*one) == isolation_key(*other)) == (meant(*one) == meant(*other))


def test_requests_that_bring_nothing_share():
    assert isolation_key(None) == isolation_key(None, (None,)) == isolation_key(None, ("", None)) == ""


def test_a_tenant_goes_before_the_engines_key():
    assert isolation_key("a", ("salt",)) == isolation_key("a")
    assert isolation_key("", ("salt",)) != isolation_key(None, ("salt",)) != isolation_key(None)
