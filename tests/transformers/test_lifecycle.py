"""Requests wait, start and end; plug-ins receive these events, and their faults are contained."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

import pytest
import torch

from specplug.errors import EngineError, RequestError
from specplug.types.request import Lifecycle
from specplug_fixed.policy import ConstantGamma
from specplug_transformers import GenerateRequest, SamplingParams
from tests.engines import plain
from tests.engines.hopeless import ROWS, TEXT, assert_forgotten
from tests.transformers.conftest import assert_plain, greedy, requests_of
from tests.transformers.toys import Recorder, prompts

PROMPTS = prompts(5)
STARTED, FINISHED, ABORTED = Lifecycle.STARTED, Lifecycle.FINISHED, Lifecycle.ABORTED


def request(name, prompt=(5, 9, 33), max_tokens=12):
    return GenerateRequest(
        prompt=prompt, request_id=name, params=SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    )


@pytest.mark.parametrize("name", ["max_num_seqs", "max_length", "prefill_chunk"])
@pytest.mark.parametrize("size", [0, -1])
def test_sizes_below_one_are_refused(make_engine, name, size):
    with pytest.raises(EngineError, match=f"Engine: bad {name}; found {size}; expected an integer >= 1. Leave it out"):
        make_engine(**{name: size})


def limit_memory(monkeypatch, engine, fits) -> None:
    """Let an engine's cache have no memory for so many rows and columns unless they fit."""
    reserve = engine.runner.cache.reserve

    def limited(rows, columns):
        if not fits(rows, columns):
            raise torch.OutOfMemoryError("planted")
        reserve(rows, columns)

    monkeypatch.setattr(engine.runner.cache, "reserve", limited)


@pytest.mark.parametrize("victim", [0, 2, 4])
def test_abort_a_running_or_waiting_request(make_engine, llama, victim):
    """The others go on undisturbed, also the one whose cache row moves."""
    engine = make_engine(proposer="recorder", max_num_seqs=3)
    names = [engine.add(request(f"r{index}", prompt)) for index, prompt in enumerate(PROMPTS)]
    last = {output.request_id: output for _ in range(2) for output in engine.step()}
    aborted = engine.abort(names[victim])
    assert aborted.finish_reason == "abort"
    assert aborted.token_ids == (last[names[victim]].token_ids if victim < 3 else ())
    last |= {output.request_id: output for output in engine.run()}
    rest = [index for index in range(5) if index != victim]
    assert_plain(llama, [PROMPTS[i] for i in rest], [last[names[i]] for i in rest], 12)
    seen = [event.visible for event in Recorder.newest.events if event.kind is ABORTED]
    expected = [len(PROMPTS[victim]) + len(aborted.token_ids)] if victim < 3 else []
    assert seen == expected, "plug-ins never heard of one that only waited"


def test_requests_that_end_beside_one_that_raises_have_ended(make_engine, llama):
    """Their output comes with the next step, though that raises as well."""
    engine = make_engine()
    engine.add(request("ended", max_tokens=1))
    engine.add(replace(request("bad"), stop_when=lambda _ids: 1 // 0))
    engine.add(request("next"))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            engine.step()
    engine.abort("bad")
    last = {output.request_id: output for output in engine.run()}
    assert (last["ended"].token_ids, last["ended"].finish_reason) == (last["next"].token_ids[:1], "length")
    assert_plain(llama, [[5, 9, 33]], [last["next"]], 12)


def test_one_line_says_what_starts(make_engine, caplog):
    with caplog.at_level(logging.INFO, logger="specplug"):
        make_engine(proposer="recorder", num_speculative_tokens=3)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "specplug"]
    assert line.endswith(": recorder, policy fixed, up to 3 draft tokens, transformers, synchronous")


@pytest.mark.parametrize("short_of_memory", [False, True])
def test_what_does_not_fit_waits_in_order_of_arrival(make_engine, llama, monkeypatch, short_of_memory):
    """For a slot, or for memory: the first comes first, and nobody who was admitted stops before the end."""
    engine = make_engine(proposer="recorder", max_num_seqs=8 if short_of_memory else 3, prefill_chunk=4)
    limit_memory(monkeypatch, engine, lambda rows, columns: rows <= 3)
    names = [engine.add(request(f"r{index}", prompt)) for index, prompt in enumerate(PROMPTS)]
    last = {output.request_id: output for output in engine.run()}
    assert_plain(llama, PROMPTS, [last[name] for name in names], 12)
    events = [(event.kind, event.request.request_id) for event in Recorder.newest.events]
    assert [name for kind, name in events if kind is STARTED] == names
    assert [kind for kind, _ in events[:4]] == [STARTED, STARTED, STARTED, FINISHED]
    assert Counter(kind for kind, _ in events) == {STARTED: 5, FINISHED: 5}


def test_a_request_that_never_fits_is_named_and_the_others_go_on(make_engine, monkeypatch):
    engine = make_engine()
    limit_memory(monkeypatch, engine, lambda rows, columns: columns <= 100)
    for name, length in (("large", 150), ("small", 5)):
        engine.add(request(name, max_tokens=length))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        engine.step()
    assert "'large' does not fit" in caught.value.__notes__[0]
    engine.abort("large")
    assert len([*engine.run()][-1].token_ids) == 5


def test_the_end_of_a_prompt_beside_a_longer_chunk_of_another_fits(make_engine, llama):
    """Rows of a pass are padded to the longest chunk, also beyond the text that a request has reserved."""
    engine = make_engine(max_num_seqs=2, prefill_chunk=120)
    texts = [[5, 9] * 61, [7, 33] * 65]
    answers = {}
    for name, text in zip("ab", texts, strict=True):
        engine.add(request(name, text))
        answers |= {output.request_id: output for output in engine.step()}
    answers |= {output.request_id: output for output in engine.run()}
    assert_plain(llama, texts, [answers["a"], answers["b"]], 12)


def test_a_request_alone_has_the_memory_of_many_that_ended(make_engine, monkeypatch):
    engine = make_engine()
    cache = engine.runner.cache
    limit_memory(
        monkeypatch, engine, lambda rows, columns: max(cache.size[0], rows) * max(cache.size[1], columns) < 700
    )
    for index in range(8):
        engine.add(request(f"r{index}"))
    list(engine.run())
    assert cache.size[0] == 8
    engine.add(request("alone", max_tokens=100))
    assert len([*engine.run()][-1].token_ids) == 100


def test_a_request_has_the_memory_of_its_whole_text_from_the_start(make_engine):
    engine = make_engine(num_speculative_tokens=4)
    engine.add(request("a", max_tokens=30))
    engine.step()
    shapes = [stored.shape for stored in engine.runner.cache.stored()]
    assert min(shape[2] for shape in shapes) >= 3 + 30 + 4
    list(engine.run())
    assert [stored.shape for stored in engine.runner.cache.stored()] == shapes


def test_events_come_in_order_with_their_place(make_engine):
    engine = make_engine(proposer="recorder", max_num_seqs=2)
    for name, length in (("a", 2), ("b", 30), ("c", 30)):
        engine.add(request(name, max_tokens=length))
    for _ in range(4):
        engine.step()
    engine.abort("c")
    list(engine.run())
    recorder = Recorder.newest
    found = [(event.kind, event.request.request_id, event.slot, event.generation) for event in recorder.events]
    assert found == [
        (STARTED, "a", 0, 1),
        (STARTED, "b", 1, 1),
        (FINISHED, "a", 0, 1),
        (STARTED, "c", 0, 2),
        (ABORTED, "c", 0, 2),
        (FINISHED, "b", 1, 1),
    ]
    assert [slots for slots in recorder.resets if slots] == [(0, 1), (0,)]


def test_every_token_is_ingested_once_per_generation(make_engine):
    engine = make_engine(proposer="recorder", num_speculative_tokens=3)
    engine.add(request("a", PROMPTS[1], max_tokens=20))
    news = []
    for output in engine.run():
        news.append(len(output.new_token_ids))
        if len(news) == 3:
            engine.set_ceiling(0)
        if len(news) == 6:
            engine.set_ceiling(None)
    ingested = [batch["a"] for batch in Recorder.newest.ingested]
    caught_up = sum(news[2:6])  # by the first step that drafts again
    assert ingested == [len(PROMPTS[1]), *news[:2], caught_up, *news[6:-1]], "what the steps since had emitted"
    text = [*PROMPTS[1], *output.token_ids]
    assert Recorder.newest.texts["a"] == text[: len(text) - news[-1]]


def test_the_ceiling_changes_while_serving(make_engine, llama):
    engine = make_engine()
    engine.add(request("a", max_tokens=40))
    draft_lengths = []
    texts = []
    for step, output in enumerate(engine.run()):
        texts.append(output.token_ids)
        draft_lengths.append(engine.last_step.draft_length)
        if step == 2:
            engine.set_ceiling(0)
        if step == 5:
            engine.set_ceiling(2)
        if step == 8:
            engine.set_ceiling(None)
    assert draft_lengths[:12] == [4, 4, 4, 0, 0, 0, 2, 2, 2, 4, 4, 4]
    assert list(texts[-1]) == greedy(llama, [5, 9, 33], 40, eos_token_id=None)


@pytest.mark.parametrize(
    ("proposer", "faults", "kind"),
    [
        ("raising", {}, "raised"),
        ("impossible", {}, "malformed"),
        ("hanging", {"host_deadline_ms": 20.0}, "late"),
    ],
)
def test_a_failing_proposer_costs_its_drafts_only(make_engine, llama, proposer, faults, kind):
    engine = make_engine(proposer=proposer, faults={"host_deadline_ms": None, **faults})
    outputs = engine.generate(requests_of(PROMPTS, max_tokens=10, ignore_eos=True))
    assert_plain(llama, PROMPTS, outputs, 10)
    assert engine.metrics.snapshot().faults[proposer][kind] > 0
    assert engine.metrics.snapshot().total.proposed == 0


def test_planners_get_the_engines_own_step_times(make_engine, monkeypatch):
    received, plan = [], ConstantGamma.plan
    monkeypatch.setattr(ConstantGamma, "plan", lambda self, stats: received.append(stats) or plan(self, stats))
    engine = make_engine(max_num_seqs=2)
    assert engine.last_step is None
    for index, prompt in enumerate(PROMPTS[:3]):
        engine.add(request(f"r{index}", prompt))
    engine.step()
    first = engine.last_step
    assert first.seconds > 0
    assert (first.requests, first.draft_length, first.tokens) == (2, 4, 2 * 5)
    assert first.context_tokens == len(PROMPTS[0]) + len(PROMPTS[1])
    list(engine.run())
    assert received[0].last_step is None
    assert received[1].last_step is first
    assert [stats.step for stats in received] == list(range(engine.steps))
    [*_, figures] = received[3].requests
    assert figures.verified == 3 * 4 >= figures.accepted
    assert figures.room < 12


def test_easy_requests_in_slots_of_hopeless_ones_are_drafted_for_as_before(make_engine):
    engine = make_engine(
        plain.model(), proposer="ngram", policy="fixed", num_speculative_tokens=8, max_num_seqs=ROWS, max_length=1024
    )

    def share(prompts, hopeless):
        params = SamplingParams(**TEXT, max_tokens=100) if hopeless else SamplingParams(max_tokens=40)
        fields = {} if hopeless else {"store": False}
        given = [GenerateRequest(prompt=prompt, params=params, specplug=fields) for prompt in prompts]
        outputs = engine.generate(given)
        return sum(output.accepted for output in outputs) / sum(len(output.token_ids) for output in outputs)

    assert_forgotten(share)


def test_what_is_not_there(make_engine):
    engine = make_engine(proposer="recorder")
    assert engine.generate([]) == engine.step() == []
    assert not engine.has_work
    with pytest.raises(EngineError, match="unknown event; found 'weights'; expected cache flushed, weights changed"):
        engine.announce("weights")
    engine.announce("weights changed")
    assert [event.kind for event in Recorder.newest.events] == ["weights changed"]
    with pytest.raises(RequestError):
        engine.generate([request("a"), request("b", prompt=[])])
    assert not engine.has_work, "it leaves nothing behind"
    [output] = engine.generate([request("a")])
    assert output.finish_reason == "length"
    assert engine.abort("a") is engine.abort("never") is None


def test_outputs_of_other_requests_wait_for_the_next_step(make_engine, llama):
    engine = make_engine(max_num_seqs=2)
    for name, length in (("short", 2), ("long", 40), ("aborted", 2)):
        engine.add(request(name, max_tokens=length))
    [own] = engine.generate([request("own")])
    assert_plain(llama, [[5, 9, 33]], [own], 12)
    assert engine.abort("aborted") is None
    with pytest.raises(RequestError, match="duplicate request id; found 'short'"):
        engine.add(request("short"))
    outputs = list(engine.run())
    ended = {output.request_id: output for output in outputs if output.finished}
    assert list(ended) == ["short", "long"]
    news = [output.new_token_ids for output in outputs if output.request_id == "long"]
    assert sum(news, ()) == ended["long"].token_ids
    assert list(ended["long"].token_ids) == greedy(llama, [5, 9, 33], 40, eos_token_id=None)
    assert not engine.has_work


def test_who_comes_later_decodes_at_once(make_engine):
    engine = make_engine()
    engine.add(request("a"))
    engine.step()
    engine.add(request("b", [7]))
    assert [output.request_id for output in engine.step() if output.new_token_ids] == ["a", "b"]
