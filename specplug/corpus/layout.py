"""Names and layout of a store's files, and default sizes."""

from __future__ import annotations

import re

NO_TEXT = -1
"""The first and last entry of a text, and the separator after every document and prefix; as in `specplug.match`."""

COMPARED = 64
"""Number of tokens before a place that it is sorted by."""

VERSION = 1
STORE_FORMAT, MANIFEST_FORMAT, SEGMENT_FORMAT = (f"specplug corpus {kind}" for kind in ("store", "manifest", "segment"))

STORE_FILE, TENANTS, MANIFEST_FILE = "store.json", "tenants", "manifest.json"
LOCK_FILE, MERGE_LOCK_FILE, BUILDING_LOCK_FILE, ROOM_FILE = "lock", "merging", "building", "room"
SEGMENT_ENDING, ASIDE_ENDING, BEFORE_ENDING = ".safetensors", ".tmp", ".old"

SEGMENT_FILE = re.compile(r"[0-9a-f]{16}-\d{1,9}\.safetensors")
"""The only file names that a manifest may have, so that it cannot point outside its folder."""

OWN_FILE = re.compile(r"[0-9a-f]{16}-\d{1,9}\.(?:safetensors|tmp)")
"""Files of segments, which killed writers may leave in a tenant's folder."""

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
"""A segment's arrays with safetensors' names of their types, in file order: wide types first, so that each is aligned.
With n tokens of text, m places, d documents and b bytes of names:

    starts       [d + 1]  document i's texts are text[starts[i] : starts[i + 1]]: its body, then its prefixes, each
                          with a `NO_TEXT` after it; starts[0] is 1 and starts[d] is n
    lengths      [d]      tokens of its body, at least 1
    name_ends    [d]      the end of its name in names; it starts at the end of the previous one
    name_hashes  [d]      `names.name_hash` of all names, sorted
    text         [n]      token ids, and `NO_TEXT`
    places       [m]      all p for which text[p - 1] and text[p] are tokens, sorted by the text before them read
                          backwards: text[p - 1], text[p - 2], ..., up to `COMPARED` tokens or a `NO_TEXT`, which is the
                          smallest; ties are sorted by p
    corpus_of    [d]      index into the corpora that the metadata names
    name_order   [d]      the document of each entry of name_hashes; equal hashes are sorted by document
    names        [b]      UTF-8
"""

DTYPES = {"I64": "<i8", "U64": "<u8", "I32": "<i4", "U8": "|u1"}

SEGMENT_TOKENS = 64 << 20
"""The most text of one segment, in tokens; building one takes about 16 bytes of memory per token."""

MOST_SEGMENT_TOKENS = 1 << 30  # places are int32

LOCK_SECONDS = 10.0
"""Seconds to wait for another process that changes the same tenant."""

SEGMENTS_OF_A_SIZE = 4
"""The most adjacent segments of one size class; more are merged."""

DEAD_SHARE = 0.25
"""A segment with a larger share of removed tokens is rewritten."""
