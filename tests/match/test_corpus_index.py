"""Static texts: sorted, searched and counted as the plain references say, whatever stands in them."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.errors import ContractError
from specplug.match.cpu import sorting
from specplug.match.cpu.corpus_index import IndexSegment
from specplug.match.cpu.lookup import Lookup
from specplug.match.cpu.sorting import sorted_places
from specplug.match.cpu.texts import NO_TEXT
from specplug.match.options import LookupSettings
from tests.match.driver import Client, segment_of
from tests.match.reference.corpus_index import sorted_places as plainly_sorted
from tests.match.reference.recency import key_of

POISON = 10**9 + 7


def text_at_random(rng: random.Random) -> list[int]:
    """Return a text between two that are none: repetitive, periodic, or anything."""
    alphabet, size = rng.choice([1, 2, 5, 1000, 2**31 - 1]), rng.randrange(0, 300)
    text = [NO_TEXT if rng.random() < 0.03 else rng.randrange(alphabet) for _ in range(size)]
    if rng.random() < 0.4:
        text = text[: rng.randrange(1, 20)] * 12
    return [NO_TEXT, *text, NO_TEXT]


@given(seed=st.integers(0, 2**32), cap=st.sampled_from([1, 2, 7, 64]))
@settings(max_examples=100)
def test_places_are_sorted_by_the_text_before_them(seed: int, cap: int) -> None:
    text = text_at_random(random.Random(seed))
    assert sorted_places(np.array(text, np.int32), cap).tolist() == plainly_sorted(text, cap)


def test_a_large_id_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are counted in a table: as long as there are different ids, not as large as they are."""
    lengths, real = [], sorting._by_last_token
    monkeypatch.setattr(sorting, "_by_last_token", lambda text, size: lengths.append(size) or real(text, size))
    text = [NO_TEXT, 5, 10**7, 5, 3, 10**7, 5, NO_TEXT]
    assert sorted_places(np.array(text, np.int32)).tolist() == plainly_sorted(text, 64)
    assert lengths == [3]


def test_a_long_repetitive_text_is_sorted_too() -> None:
    text = np.full(200_000, 7, np.int32)
    text[::1000] = 5
    text[0] = text[-1] = NO_TEXT
    places = sorted_places(text)
    assert np.array_equal(np.sort(places), np.flatnonzero((text[:-1] >= 0) & (text[1:] >= 0)) + 1)
    keys = [key_of(text.tolist()[max(0, p - 65) : p], min(p, 65), 64) for p in places[:: len(places) // 200].tolist()]
    assert keys == sorted(keys, key=lambda key: key if len(key) == 64 else (*key, NO_TEXT))


def drafter(segments: list[IndexSegment], **start: object) -> Client:
    """Return what drafts from segments of the tenant "", and a slot of its own."""
    lookup = Lookup(1, 256, 8, LookupSettings(memory_tokens=0), trees=False)
    lookup.load({"": segments})
    lookup.start(0, **{"tenant": "", **start})  # type: ignore[arg-type]
    return Client(lookup, 8, trees=False)


def drafted(client: Client, new: list[int], length: int | None = None) -> list[int]:
    """Return the draft after some new tokens, which bring the text to `length`."""
    client.ingest([0], [new], [length or len(new)])
    return client.propose([0], [8])[0].ids


def test_of_equal_matches_a_named_corpus_is_preferred() -> None:
    # Sixteen other documents that match as well would take all the places of candidates.
    others = [("big", [[1, 2, 3, 50 + k]]) for k in range(40)]
    documents = [*others, ("mine", [[1, 2, 3, 99, 98]])]
    assert drafted(drafter([segment_of(documents)], corpora=["mine"]), [1, 2, 3])[:2] == [99, 98]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_damaged_segment_costs_drafts_only(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = segment_of([("c", [range(100, 140)]), ("d", [range(200, 240)])], dead=[1])

    def damaged(array: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return rng.integers(-(2**31), 2**31 - 1, array.shape).astype(array.dtype)

    text = whole.text.copy()
    text[1:-1] = np.abs(damaged(text[1:-1]))
    segment = IndexSegment(
        text if seed % 2 else whole.text, damaged(whole.places), damaged(whole.starts),
        damaged(whole.corpus_of), whole.corpora, whole.dead,
    )  # fmt: skip
    client = drafter([segment], corpora=["d"])
    for step in range(12):
        drafted(client, [int(whole.text[5 + step])], step + 1)


_BEFORE_A_TEXT = """
import ctypes, mmap
import numpy as np
from specplug.match.cpu.searching import insertion_point
from specplug.match.cpu.corpus_index import CorpusIndex, IndexSegment, IdTable
from tests.match.test_corpus_index import drafted, drafter, segment_of

libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
text = np.frombuffer(memory, np.int32)[page // 4 :]
assert libc.mprotect(ctypes.c_void_p(text.ctypes.data - page), page, 0) == 0, ctypes.get_errno()
whole = segment_of([("c", [[4, *[5] * 63, 7, 6, *[5] * 63, 8]])])
text[: len(whole.text)] = whole.text
below, above = 65, 130  # behind 63 times 5, of which the tokens before are below and above what is sought
places = np.array([below] * 4 + [1] + [above] * 2, np.int32)
segment = IndexSegment(text[: len(whole.text)], places, whole.starts, whole.corpus_of, whole.corpora)
print("prepared", flush=True)
corpus_index = CorpusIndex({"": [segment]}, IdTable())
print(insertion_point(corpus_index.view(), 0, np.full(70, 5, np.int32), 70, 64))
drafted(drafter([segment]), [5] * 70)
"""


def test_damaged_places_lead_nowhere_before_a_text() -> None:
    """An unreadable page precedes the text: two far matches share tokens that do not exist before a near place."""
    done = subprocess.run([sys.executable, "-c", _BEFORE_A_TEXT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "prepared\n5\n"), done.stderr[-2000:]


def test_segments_that_do_not_fit_are_refused() -> None:
    good = segment_of([("c", [range(100, 140)])])
    with pytest.raises(ContractError, match="NO_TEXT at both ends"):
        IndexSegment(good.text[1:], good.places, good.starts, good.corpus_of, good.corpora)
    with pytest.raises(ContractError, match="fitting lengths"):
        IndexSegment(good.text, good.places, good.starts[1:], good.corpus_of, good.corpora)
    with pytest.raises(ContractError, match="fitting lengths"):
        IndexSegment(good.text, good.places, good.starts, good.corpus_of, good.corpora, np.zeros(9, np.uint8))
