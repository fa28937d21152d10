"""Parsed request fields survive the way through an engine's processes."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from specplug.requests import wire
from specplug.types.request import Reference, RequestOptions, StoredDocument

int32 = st.integers(-(2**31), 2**31 - 1)
references = st.lists(st.builds(Reference.of, st.lists(int32, max_size=20), st.text(max_size=5)), max_size=3).map(tuple)
names = st.text(min_size=1, max_size=5)
options = st.builds(
    RequestOptions,
    enabled=st.booleans(),
    num_speculative_tokens=st.none() | st.integers(0, 256),
    proposer=st.none() | st.text(max_size=5),
    verifier=st.none() | st.text(max_size=5),
    acceptance_threshold=st.none() | st.floats(0.01, 1),
    store=st.booleans(),
    group=st.none() | names,
    corpora=st.lists(names, max_size=3).map(tuple),
    documents=st.lists(st.builds(StoredDocument, names, st.none() | names), max_size=3).map(tuple),
)
tenants = st.none() | st.text(min_size=1, max_size=5)
scalar = None | bool | int | float | str
flat = msgpack.Decoder(dict[str, scalar | list[scalar] | dict[str, scalar]])
"""SGLang's transport: of each argument it takes texts and numbers, and flat lists and mappings of them."""


@given(options, references, tenants, st.none() | names, st.none() | names)
def test_whatever_is_encoded_comes_back(given_options, given_references, tenant, client, assigned):
    parsed = {"other": 1, wire.WIRE_KEY: wire.encode(given_options, given_references, tenant)}
    own = wire.with_client(parsed, client, assigned)
    here = (own, copy.deepcopy(own), pickle.loads(pickle.dumps(own)))
    for arrived in (*here, msgpack.decode(msgpack.encode(own)), flat.decode(msgpack.encode(own))):
        assert wire.decode(arrived) == (given_options, given_references, assigned or tenant)
        assert wire.client_of(arrived) == client
        assert arrived["other"] == 1
        assert wire.reference_tokens(arrived) == sum(len(reference.token_ids) for reference in given_references)
    assert all(map(wire.is_encoded, here))
    assert wire.client_of(parsed) is None


def test_only_what_was_parsed_here_counts_as_parsed():
    """A client can send what looks like it, whose sizes and ids have not been checked."""
    encoded = {wire.WIRE_KEY: wire.encode(RequestOptions(), (Reference.of([1]),), None)}
    assert wire.is_encoded(encoded)
    assert wire.is_encoded({**encoded})
    assert not wire.is_encoded(json.loads(json.dumps(encoded)))


@pytest.mark.parametrize("extra_args", [None, {}, {"kv_transfer_params": {}}, {"specplug": {"enabled": False}}])
def test_without_the_wire_form_there_are_the_defaults(extra_args):
    assert wire.decode(extra_args) == (RequestOptions(), (), None)


@pytest.mark.parametrize("given_args", [None, {}, {"other": 1}])
def test_a_client_travels_without_fields(given_args):
    own = wire.with_client(given_args, "digest", "acme")
    assert wire.client_of(own) == "digest"
    assert wire.decode(own) == (RequestOptions(), (), "acme")
    assert wire.client_of(given_args) is None
    assert {key: own[key] for key in given_args or ()} == (given_args or {})


def test_references_are_read_only_views_of_one_array():
    ids = np.arange(1000, dtype=np.int32)
    encoded = wire.encode(RequestOptions(), (Reference(ids, "a"), Reference(ids[:10], "b")), None)
    _, (first, second), _ = wire.decode({wire.WIRE_KEY: encoded})
    assert first.token_ids.base is not None
    assert np.array_equal(first.token_ids, ids)
    assert np.array_equal(second.token_ids, ids[:10])
    assert not first.token_ids.flags.writeable
