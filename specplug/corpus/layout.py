"""What a store's files are called and made of, and the sizes that hold where nobody sets others."""

from __future__ import annotations

import re

NO_TEXT = -1
"""Stands first in a text, last, and behind every document and prefix; as in `specplug.match`."""

COMPARED = 64
"""Tokens before a place that places are sorted by."""

VERSION = 1
STORE_FORMAT, MANIFEST_FORMAT, SEGMENT_FORMAT = (f"specplug corpus {kind}" for kind in ("store", "manifest", "segment"))

STORE_FILE, TENANTS, MANIFEST_FILE = "store.json", "tenants", "manifest.json"
LOCK_FILE, MERGE_LOCK_FILE = "lock", "merging"
SEGMENT_ENDING, BUILDING_ENDING, ASIDE_ENDING, BEFORE_ENDING = ".safetensors", ".building", ".tmp", ".old"

SEGMENT_FILE = re.compile(r"([0-9a-f]{16})-\d{1,9}\.safetensors")
"""What a manifest may name: nothing else, so that it cannot point outside its folder."""

OWN_FILE = re.compile(r"([0-9a-f]{16})(?:-\d{1,9})?\.(?:safetensors|building|tmp)|manifest\.(?:tmp|old)")
"""What writers may leave in a tenant's folder when they are killed."""

SECTIONS = {
    "starts": "I64",
    "lengths": "I64",
    "name_ends": "I64",
    "name_hashes": "U64",
    "text": "I32",
    "places": "I32",
    "corpus_of": "I32",
    "name_order": "I32",
    "names": "U8",
}
"""A segment's arrays in the order of the file, wide ones first so that each is aligned, and safetensors' names of their
types.  With n tokens of text, m places, d documents and b bytes of names:

    starts       [d + 1]  document i's texts are text[starts[i] : starts[i + 1]]: its body, then its prefixes, each
                          with a `NO_TEXT` behind it; starts[0] is 1 and starts[d] is n
    lengths      [d]      tokens of its body, at least 1
    name_ends    [d]      where its name ends in names; it begins where the one before ends
    name_hashes  [d]      `names.name_hash` of all names, sorted
    text         [n]      token ids, and `NO_TEXT`
    places       [m]      all p with text[p - 1] and text[p] tokens, sorted by the text before them read backwards:
                          text[p - 1], text[p - 2], ..., `COMPARED` tokens of it or up to a `NO_TEXT`, which is the
                          smallest; where that is equal, by p
    corpus_of    [d]      index into the corpora that the metadata names
    name_order   [d]      the documents that name_hashes are of; those of one hash by number
    names        [b]      UTF-8
"""

DTYPES = {"I64": "<i8", "U64": "<u8", "I32": "<i4", "U8": "|u1"}

SEGMENT_TOKENS = 64 << 20
"""Text of one segment at most; building one takes some 16 bytes of memory a token."""

MOST_SEGMENT_TOKENS = 1 << 30  # places are int32

LOCK_SECONDS = 10.0
"""Waited for whoever else changes the same tenant."""

SEGMENTS_OF_A_SIZE = 4
"""More than these are merged."""

DEAD_SHARE = 0.25
"""A segment with a larger share of removed tokens is written anew."""
