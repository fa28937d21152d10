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
    store=st.booleans(),
    corpora=st.lists(names, max_size=3).map(tuple),
    documents=st.lists(st.builds(StoredDocument, names, st.none() | names), max_size=3).map(tuple),
)
tenants = st.none() | st.text(min_size=1, max_size=5)


@given(options, references, tenants)
def test_whatever_is_encoded_comes_back(given_options, given_references, tenant):
    extra_args = {"other": 1, wire.WIRE_KEY: wire.encode(given_options, given_references, tenant)}
    by_msgpack = msgpack.decode(msgpack.encode(extra_args))
    for arrived in (extra_args, copy.deepcopy(extra_args), pickle.loads(pickle.dumps(extra_args)), by_msgpack):
        assert wire.is_encoded(arrived)
        assert wire.decode(arrived) == (given_options, given_references, tenant)


@given(options, references, tenants)
def test_the_packed_form_survives_a_transport_of_texts(given_options, given_references, tenant):
    """SGLang's: of each argument it takes texts and numbers, and flat lists and mappings of them."""
    extra_args = {"other": 1, wire.WIRE_KEY: wire.encode(given_options, given_references, tenant)}
    packed = wire.pack(extra_args)
    scalar = None | bool | int | float | str
    decoder = msgpack.Decoder(dict[str, scalar | list[scalar] | dict[str, scalar]])
    for arrived in (packed, decoder.decode(msgpack.encode(packed)), pickle.loads(pickle.dumps(packed))):
        assert wire.decode(arrived) == (given_options, given_references, tenant)
        assert arrived["other"] == 1
    assert extra_args[wire.WIRE_KEY] == wire.encode(given_options, given_references, tenant)


def test_only_what_was_packed_here_counts_as_parsed():
    """A client can send what looks like it."""
    packed = wire.pack({wire.WIRE_KEY: wire.encode(RequestOptions(), (Reference.of([1]),), None)})
    assert wire.is_encoded(packed)
    assert wire.is_encoded({**packed})
    assert not wire.is_encoded(json.loads(json.dumps(packed)))


@pytest.mark.parametrize("extra_args", [None, {}, {"kv_transfer_params": {}}, {"specplug": {"enabled": False}}])
def test_without_the_wire_form_there_are_the_defaults(extra_args):
    assert wire.decode(extra_args) == (RequestOptions(), (), None)


def test_a_client_cannot_send_the_wire_form():
    """JSON is never accepted as parsed fields, as its sizes and ids have not been checked."""
    encoded = wire.encode(RequestOptions(), (Reference.of([1]),), None)
    sent = json.loads(json.dumps({wire.WIRE_KEY: encoded}, default=lambda value: value.decode()))
    assert not wire.is_encoded(sent)


def test_ids_are_bytes_on_the_way_and_views_behind_it():
    ids = np.arange(1000, dtype=np.int32)
    encoded = wire.encode(RequestOptions(), (Reference(ids),), None)
    ((_, data),) = encoded["references"]
    assert data == ids.astype("<i4").tobytes()
    _, (reference,), _ = wire.decode({wire.WIRE_KEY: encoded})
    assert np.shares_memory(reference.token_ids, np.frombuffer(data, dtype=np.uint8))
    assert not reference.token_ids.flags.writeable
