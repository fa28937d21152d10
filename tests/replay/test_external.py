from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.errors import PluginError
from specplug.replay.external import load_factory, replay_external
from tests.replay.tools import EOS, ITEMS, harness, item


class Remembers:
    """Drafts what followed the newest token in the texts that it received, searching other finished texts last."""

    def __init__(self, gamma: int, mode: str) -> None:
        self.calls: list[tuple[str, object]] = []

    def reset(self):
        self.old, self.texts = [], {}

    def start(self, request_id, prompt, documents):
        assert prompt.dtype == np.int32
        self.texts[request_id] = prompt.tolist()
        self.calls.append(("start", request_id))

    def update(self, request_id, new_tokens):
        assert all(type(token) is int for token in new_tokens)
        self.texts[request_id] += new_tokens

    def propose(self, request_id, context, max_tokens):
        assert context.tolist() == self.texts[request_id]
        text = self.old + self.texts[request_id]
        for place in range(len(text) - 2, -1, -1):
            if text[place] == text[-1]:
                return text[place + 1 : place + 1 + max_tokens]
        return []

    def finish(self, request_id):
        self.old = self.old + self.texts.pop(request_id)
        self.calls.append(("finish", request_id))

    def memory(self):
        return 4 * len(self.old)


@given(ITEMS, st.sampled_from(["cold", "serving"]))
@settings(max_examples=40, deadline=None)
def test_the_loop_counts_what_a_plain_one_does(items, mode):
    ours = replay_external(items, Remembers, gamma=3, mode=mode)
    assert ours.counts.histogram == harness(Remembers(3, mode), items, 3, mode)
    assert replay_external(items, Remembers, gamma=3, mode=mode, in_flight=1).counts == ours.counts


def test_in_flight_requests_take_steps_in_turn_and_feed_memory_when_they_finish():
    made = []

    def factory(gamma, mode):
        made.append(Remembers(gamma, mode))
        return made[-1]

    same = [item([1, 2], [3, 4, 5], name) for name in "abc"]
    alone = replay_external(same, factory, gamma=4)
    together = replay_external(same, factory, gamma=4, in_flight=2)
    assert [call for call in made[1].calls if call[0] == "finish"] == [("finish", name) for name in "abc"]
    assert made[1].calls[:2] == [("start", "a"), ("start", "b")]
    # The second request no longer profits from the first, which runs beside it; the third does.
    assert alone.counts.steps == 3 + 1 + 1
    assert together.counts.steps == 3 + 3 + 1


def test_reading_past_the_context_gains_nothing():
    class Cheat(Remembers):
        def propose(self, request_id, context, max_tokens):
            whole = context.base
            return whole.ravel()[context.size : context.size + max_tokens].tolist()

    found = replay_external([item([1], [2, 3, 4])] * 2, Cheat, gamma=4)
    assert found.counts.accepted == 0


def test_trees_pay_for_all_they_process_and_probabilities_are_confidences():
    answers = [
        SimpleNamespace(tokens=[7, 2, 3], parents=[-1, -1, 1], width=5),
        ([4, 9], [0.75, 0.25]),
    ]

    class Scripted(Remembers):
        def propose(self, request_id, context, max_tokens):
            return answers.pop(0)

    found = replay_external([item([5], [1, 2, 3, 3, 4])], lambda gamma, mode: Scripted(gamma, mode), gamma=4)
    assert found.counts.histogram == {(5, 2, 3): 1, (2, 1, 2): 1}
    assert found.calibration.count == 2
    assert found.calibration.brier == pytest.approx(0.0625)
    assert found.survival.brier == pytest.approx((0.25**2 + (0.75 * 0.25) ** 2) / 2)


def test_the_fate_of_tokens_after_a_rejected_one_is_known_and_that_of_those_after_the_end_is_not():
    answers = [([9, 4, 4], [0.5, 0.5, 0.5]), ([EOS, 3, 3], [0.5, 0.5, 0.5])]

    class Scripted(Remembers):
        def propose(self, request_id, context, max_tokens):
            return answers.pop(0)

    found = replay_external([item([5], [1, 2])], Scripted, gamma=4)
    assert found.counts.histogram == {(3, 0, 1): 1, (3, 1, 1): 1}
    assert (found.calibration.count, found.survival.count) == (2, 4)
    assert found.survival.brier == pytest.approx((0.5**2 + 0.25**2 + 0.125**2 + 0.5**2) / 4)


def test_documents_are_loaded_once_in_serving_mode():
    loaded = []

    class Preloads(Remembers):
        def preload(self, documents):
            loaded.append([document.tolist() for document in documents])

    items = [item([1], [2], "a", [[1, 1]]), item([1], [2], "b", [[2], [3]])]
    replay_external(items, Preloads, gamma=2)
    replay_external(items, Preloads, gamma=2, mode="cold")
    assert loaded == [[[1, 1], [2], [3]]]


def test_an_object_without_state_runs_alone():
    class Stateless(Remembers):
        stateless = True

        def start(self, request_id, prompt, documents):
            assert not self.texts
            super().start(request_id, prompt, documents)

    assert replay_external([item([1], [2, 2])] * 3, Stateless, gamma=2, in_flight=3).items == 3


def test_most_memory_is_noted():
    assert replay_external([item([1], [2, 2])] * 3, Remembers, gamma=2).memory == 4 * 2 * 4


def test_factories_by_path(tmp_path, monkeypatch):
    (tmp_path / "my_peers.py").write_text(
        "def make(gamma, mode): return (gamma, mode)\nTABLE = {'a-0.1': make}\nN = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_factory("my_peers:make")(4, "cold") == (4, "cold")
    assert load_factory("my_peers:TABLE[a-0.1]")(4, "cold") == (4, "cold")
    for path, words in [
        ("my_peers", "malformed factory"),
        ("my_peers:gone", "cannot load"),
        ("my_peers:TABLE[b]", "cannot load"),
        ("my_peers:N", "no factory"),
        ("no_such_module:make", "cannot load"),
    ]:
        with pytest.raises(PluginError, match=words):
            load_factory(path)


def test_a_mode_that_is_not_served_is_an_error():
    with pytest.raises(PluginError, match="no such mode"):
        replay_external([], lambda gamma, mode: None, gamma=2)
