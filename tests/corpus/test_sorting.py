"""Places are sorted as the plain reference says, whatever is in the text, by code compiled once for all processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.corpus import sorting
from specplug.corpus.segment import NO_TEXT
from specplug.corpus.sorting import sorted_places

Key = tuple[int, ...]


def key_of(text: Sequence[int], place: int, cap: int) -> Key:
    """Return the text before `place` backwards: at most `cap` tokens, up to a token that is not text (below 0).

    A shorter key ends with such a token, which is smaller than any other.
    """
    key: list[int] = []
    while len(key) < min(cap, place) and text[place - 1 - len(key)] >= 0:
        key.append(text[place - 1 - len(key)])
    return tuple(key) if len(key) == cap else (*key, NO_TEXT)


def plainly_sorted(text: Sequence[int], cap: int) -> list[int]:
    places = [place for place in range(1, len(text)) if text[place - 1] >= 0 and text[place] >= 0]
    return sorted(places, key=lambda place: (key_of(text, place, cap), place))


def text_at_random(rng: random.Random) -> list[int]:
    """Return a text between two that are none: repetitive, periodic, or anything."""
    alphabet, size = rng.choice([1, 2, 5, 1000, 2**31 - 1]), rng.randrange(0, 300)
    text = [NO_TEXT if rng.random() < 0.03 else rng.randrange(alphabet) for _ in range(size)]
    if rng.random() < 0.4:
        text = text[: rng.randrange(1, 20)] * 12
    return [NO_TEXT, *text, NO_TEXT]


@given(seed=st.integers(0, 2**32), cap=st.sampled_from([1, 2, 7, 64]))
@settings(max_examples=100, deadline=None)
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
    assert keys == sorted(keys)


USE = """
from numba.core import event
from specplug.corpus import sorting
with event.install_recorder("numba:compile") as compiled:
    assert sorting.sorted_places([-1, 1, 2, 1, 2, -1]).tolist() == [2, 4, 3]
print(sum(event.is_start for _, event in compiled.buffer))
"""


def compiled_in(folder: Path) -> int:
    """Sort in a process with this cache folder; return how many functions it compiled."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", USE], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    assert compiled_in(tmp_path) > 3
    kept = sorted(tmp_path.rglob("*.nbc"))
    assert kept
    assert compiled_in(tmp_path) == 0
    assert sorted(tmp_path.rglob("*.nbc")) == kept


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(sorting, "FOLDER", tmp_path / "file" / "below")
    assert sorting.compiled(lambda value: value + 1)(2) == 3
