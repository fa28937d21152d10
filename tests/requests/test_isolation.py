"""Different tenants, engine keys and adapters have different isolation keys, whatever clients call themselves."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from specplug.requests.clients import isolation_key

TEXTS = st.text(alphabet="a1/:'\",()\\ \ud83d\ude00\U0001f600", max_size=6) | st.sampled_from(
    ["a/lora:1", "lora:1", "tenant", "engine", "None", "a', None)"]
)
ENGINES = st.tuples(st.none() | TEXTS) | st.tuples(st.none() | TEXTS, st.none() | TEXTS)
LORAS = st.none() | st.integers(1, 3) | TEXTS
CLIENTS = st.none() | TEXTS
REQUESTED = st.tuples(st.none() | TEXTS, ENGINES, LORAS, CLIENTS)


def meant(tenant, engine, lora_id, client=None):
    """Return everything that identifies a request's owner, including the LoRA adapter."""
    own = tuple(part or None for part in engine) if any(engine) else None
    brings = tenant is not None or lora_id is not None or client or own
    return (tenant, own, lora_id, client or None) if brings else ("nobody",)


@given(one=REQUESTED, other=REQUESTED)
@example(one=("a/lora:1", (None,), None), other=("a", (None,), 1))
@example(one=("x", (None,), None), other=(None, ("x",), None))
@example(one=("a", (None,), 1), other=("a", (None,), "1"))
@example(one=(None, ("a", "b"), None), other=(None, ("a/b", None), None))
@example(one=("\ud83d\ude00", (None,), None), other=("\U0001f600", (None,), None))
def test_keys_are_equal_where_requests_may_share_and_nowhere_else(one, other):
    assert (isolation_key(*one) == isolation_key(*other)) == (meant(*one) == meant(*other))


def test_requests_that_bring_nothing_share():
    assert isolation_key(None) == isolation_key(None, (None,)) == isolation_key(None, ("", None)) == ""


def test_a_tenant_takes_no_salts_place():
    """A client names its tenant, and could name another's: a salt that a proxy set still keeps them apart."""
    assert isolation_key("a", ("salt",)) != isolation_key("a", ("other",)) != isolation_key("a")
    assert isolation_key("", ("salt",)) != isolation_key(None, ("salt",)) != isolation_key(None)


def test_a_client_shares_with_itself():
    assert isolation_key(None, client="one") == isolation_key(None, (None,), None, "one")
    assert isolation_key(None, client="one") != isolation_key(None, client="two") != isolation_key(None)
    assert isolation_key("a", client="one") != isolation_key("a", client="two")
    assert isolation_key(None, client="") == ""
